"""A real vLLM restarted under load: no request is lost but by a plain restart; what clients wait is written down."""

from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cpu_vllm import FIXED_POOL, SERVED_NAME, START_LIMIT_S, serve
from e2e.vllmd_process import VllmdProcess, free_port, running
from own_network import own_network, set_migrating
from steady_load import Outcomes, steady

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_vllm")]

# A network of its own has loopback alone, by which vLLM finds itself then.
ENVIRON = {**FIXED_POOL, "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
SETTINGS = {"engine": {"hold_timeout": "5m", "drain_timeout": "30s"}}
RATE = 5.0  # a second
RESTARTS = 3
REQUESTS = 500
SERVING_S = 10.0  # between the restarts, and after the last


def restarted(daemon: VllmdProcess, seen: Outcomes, generation: int) -> None:
    """Restart the server, and let it serve for a while."""
    assert daemon.ask("restart").returncode == 0
    daemon.wait_serving(generation, 3 * START_LIMIT_S)
    goes_on(daemon, seen, seen.ended + RATE * SERVING_S)


def goes_on(daemon: VllmdProcess, seen: Outcomes, requests: float) -> None:
    """Wait until so many requests have ended."""
    daemon.wait(lambda _: seen.ended >= requests, "the load goes on", 180)


def waits(seen: Outcomes, name: str) -> dict[str, object]:
    """Return how many requests there were, how many failed, and how long the others took (median and longest, s)."""
    took_s = sorted(seen.took_s)
    figures = {
        "requests": seen.ended,
        "failed": len(seen.errors),
        "p50_s": took_s[len(took_s) // 2],
        "max_s": took_s[-1],
    }
    return {f"{name}_{key}": value for key, value in figures.items()}


@pytest.mark.timeout(1800)
def test_planned_restarts_of_a_real_vllm_lose_no_request(
    tmp_path: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Streaming and not, on kept and on fresh connections: all are answered, the longest wait is one restart.

    A plain restart of the same server, where the kernel does not hand connections on, loses what comes meanwhile.
    """
    with own_network(), running(tmp_path, serve("tiny", free_port()), SETTINGS, ENVIRON) as daemon:
        instance = daemon.wait_serving(1, START_LIMIT_S)
        assert instance["live"]["plain_restart"] is None
        with steady(instance["url"], SERVED_NAME, RATE) as seen:
            for number in range(RESTARTS):
                restarted(daemon, seen, number + 2)
            goes_on(daemon, seen, REQUESTS)
        set_migrating(on=False)
        with steady(instance["url"], SERVED_NAME, RATE) as plain:
            goes_on(daemon, plain, RATE * SERVING_S)
            restarted(daemon, plain, RESTARTS + 2)
        log = daemon.log()
        *told, last = [d["outcome"]["restart"] for d in daemon.status()["decisions"]]
    for name, value in {**waits(seen, "planned"), **waits(plain, "plain")}.items():
        print(name, value)  # noqa: T201 - what it measures
        record_testsuite_property(name, value)
    assert seen.errors == []
    # With the gate, where there was room for it.
    assert {r["kind"] for r in told} <= {"planned", "gated"}
    assert [(r["requests_cut"], r["requests_refused"]) for r in told] == [(0, 0)] * RESTARTS
    assert all(r["connections_held"] > 0 and r["longest_wait_seconds"] <= max(seen.took_s) for r in told)
    assert log.count("the port is no longer parked") == RESTARTS
    assert last["kind"] == "plain"
    assert plain.errors != []
