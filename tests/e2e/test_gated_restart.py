"""A real vLLM restarted with and without the gate: the outage that a client sees, in pairs."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.cpu_vllm import FIXED_POOL, SERVED_NAME, START_LIMIT_S, serve
from e2e.vllmd_process import VllmdProcess, free_port, running
from own_network import own_network
from steady_load import Outcomes, steady

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_vllm")]

# A network of its own has loopback alone, by which vLLM finds itself then.
ENVIRON = {**FIXED_POOL, "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
RATE = 5.0  # a second
PAIRS = 2
LIMIT = 0.2  # outage gated / plain
AROUND_S = 10.0  # of serving before and after each restart


def settings(*, gate: bool) -> dict[str, dict[str, Any]]:
    """Return the configuration with the gate, or without."""
    return {"engine": {"hold_timeout": "5m", "drain_timeout": "30s", "gate": gate}}


class Restarts:
    """One server under load that is restarted again and again."""

    def __init__(self, daemon: VllmdProcess, argv: list[str], seen: Outcomes) -> None:
        self._daemon = daemon
        self._argv = argv
        self._seen = seen
        self._generation = 1

    def outage_s(self, *, gate: bool) -> float:
        """Restart once; return the longest time without a token that the clients saw."""
        taken = self._daemon.log().count("configuration taken")
        self._daemon.configure(self._argv, settings(gate=gate))
        self._daemon.process.send_signal(signal.SIGHUP)
        self._daemon.wait(lambda _: self._daemon.log().count("configuration taken") > taken, "the reload", 30)
        began_s = time.monotonic()
        self._go_on()
        assert self._daemon.ask("restart").returncode == 0
        self._generation += 1
        self._daemon.wait_serving(self._generation, 3 * START_LIMIT_S)
        self._go_on()
        return self._seen.longest_gap_s(began_s)

    def _go_on(self) -> None:
        least = self._seen.ended + RATE * AROUND_S
        self._daemon.wait(lambda _: self._seen.ended >= least, "the load goes on", 120)


@pytest.mark.timeout(1800)
def test_the_gate_takes_most_of_a_start_out_of_the_outage(
    tmp_path: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """From the last token of the old server to the first of the new: at most a fifth, and no request fails."""
    argv = serve("tiny", free_port())
    with own_network(), running(tmp_path, argv, settings(gate=True), ENVIRON) as daemon:
        instance = daemon.wait_serving(1, START_LIMIT_S)
        with steady(instance["url"], SERVED_NAME, RATE) as seen:
            restarts = Restarts(daemon, argv, seen)
            outages_s = [(restarts.outage_s(gate=True), restarts.outage_s(gate=False)) for _ in range(PAIRS)]
        log = daemon.log()
    print("outage, gated and plain, s:", [tuple(round(one, 2) for one in pair) for pair in outages_s])  # noqa: T201
    for number, (gated_s, plain_s) in enumerate(outages_s):
        record_testsuite_property(f"pair_{number}_gated_s", gated_s)
        record_testsuite_property(f"pair_{number}_plain_s", plain_s)
    assert seen.errors == []
    for reason in ("the processors are busy", "it was not at its gate"):
        if reason in log:
            pytest.skip(f"no room for a second server here: {reason}")
    assert log.count("the next server waits at its gate") == PAIRS
    assert [pair for pair in outages_s if pair[0] > LIMIT * pair[1]] == []
