"""A real vLLM restarted under load: no request is lost, and what the clients wait is written down."""

from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cpu_vllm import FIXED_POOL, SERVED_NAME, START_LIMIT_S, serve
from e2e.vllmd_process import free_port, running
from own_network import own_network
from steady_load import steady

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_vllm")]

# A network of its own has loopback alone, by which vLLM finds itself then.
ENVIRON = {**FIXED_POOL, "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
SETTINGS = {"engine": {"hold_timeout": "5m", "drain_timeout": "30s"}}
RATE = 5.0  # a second
RESTARTS = 2
SERVING_S = 10.0  # between the restarts, and after the last


@pytest.mark.timeout(1800)
def test_planned_restarts_of_a_real_vllm_lose_no_request(
    tmp_path: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Streaming and not, on kept and on fresh connections: all are answered, the longest wait is one restart."""
    with own_network(), running(tmp_path, serve("tiny", free_port()), SETTINGS, ENVIRON) as daemon:
        instance = daemon.wait_serving(1, START_LIMIT_S)
        assert instance["live"]["plain_restart"] is None
        with steady(instance["url"], SERVED_NAME, RATE) as seen:
            for number in range(RESTARTS):
                assert daemon.ask("restart").returncode == 0
                daemon.wait_serving(number + 2, 3 * START_LIMIT_S)
                before = seen.ended
                daemon.wait(lambda _, least=before + RATE * SERVING_S: seen.ended >= least, "the load goes on", 120)  # type: ignore[misc]
        log = daemon.log()
        told = [d["outcome"]["restart"] for d in daemon.status()["decisions"]]
    assert seen.errors == []
    # With the gate, where there was room for it.
    assert {r["kind"] for r in told} <= {"planned", "gated"}
    assert [(r["requests_cut"], r["requests_refused"]) for r in told] == [(0, 0)] * RESTARTS
    assert all(r["connections_held"] > 0 and r["longest_wait_seconds"] <= max(seen.took_s) for r in told)
    assert log.count("the port is no longer parked") == RESTARTS
    waits_s = sorted(seen.took_s)
    record_testsuite_property("requests", len(waits_s))
    record_testsuite_property("p50_s", waits_s[len(waits_s) // 2])
    record_testsuite_property("max_s", waits_s[-1])
