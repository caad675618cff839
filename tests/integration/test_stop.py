"""SIGTERM in every state: vllmd ends with code 0, and no process is left."""

import signal
from pathlib import Path
from typing import Any

import pytest

from e2e.load import Clients, traffic
from e2e.vllmd_process import Settings, VllmdProcess, free_port, running
from simulated import NAME, host, serve

LIMIT_S = 60.0
AGAIN = {"crash_breaker": "50 in 15m"}  # five failures of a kind do not hold it


@pytest.mark.parametrize(
    ("state", "sizes", "settings"),
    [
        ("starting", {"start_s": 5.0}, {}),
        ("serving", {}, {}),
        ("held", {"fault": "model-unknown"}, {}),
        ("backoff", {"fault": "process-dies", "fault_at": "start"}, {"budget": AGAIN}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_stop_leaves_nothing(tmp_path: Path, state: str, sizes: dict[str, Any], settings: Settings) -> None:
    """Whatever vllmd was about."""
    with running(tmp_path, serve(free_port()), settings, host(**sizes)) as daemon:
        daemon.wait(lambda i: i["state"] == state, state, LIMIT_S)
        ends_well(daemon)


def test_a_stop_before_anything_has_begun(tmp_path: Path) -> None:
    """A signal that comes while vllmd still imports ends it as any program; no server was launched."""
    with running(tmp_path, serve(free_port()), environ=host()) as daemon:
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.wait_ended(LIMIT_S) in (0, -signal.SIGTERM)


def test_a_second_stop_does_not_wait_for_the_drain(tmp_path: Path) -> None:
    """A drain that would take a minute is cut short by the operator who says it twice."""
    with running(tmp_path, serve(free_port()), {"engine": {"drain_timeout": "60s"}}, host()) as daemon:
        url = daemon.wait_serving(1, LIMIT_S)["url"]
        with traffic(url, NAME, (Clients(1, 32, 20_000),)) as seen:
            while not seen.gaps_s:
                daemon.status()  # the load is what is waited for; the test's own limit ends it
            daemon.process.send_signal(signal.SIGTERM)
            daemon.wait(lambda i: i["state"] == "draining", "draining", LIMIT_S)
            ends_well(daemon, within_s=20.0)


def test_a_stop_of_a_server_that_was_taken_over(tmp_path: Path) -> None:
    """A server that is nobody's child is drained and ended like any other."""
    argv = serve(free_port())
    with running(tmp_path, argv, environ=host()) as first:
        first.wait_serving(1, LIMIT_S)
        first.process.kill()
        first.process.wait()
        with running(tmp_path, argv, environ=host()) as second:
            second.wait(lambda i: i["state"] == "serving" and i["launches"] == {}, "taken over", LIMIT_S)
            ends_well(second)
        assert not first.leftovers()


def ends_well(daemon: VllmdProcess, within_s: float = LIMIT_S) -> None:
    """Stop it, and assert that it ends with code 0 and leaves no process."""
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.wait_ended(within_s) == 0, daemon.story("not stopped", {})
    assert not daemon.leftovers()


@pytest.mark.parametrize("first", [signal.SIGUSR1, signal.SIGTERM], ids=lambda s: s.name)
def test_a_service_manager_that_restarts_vllmd_sends_both_signals(tmp_path: Path, first: signal.Signals) -> None:
    """To leave its server, and to stop, in whatever order they are heard: the server is left."""
    argv = serve(free_port())
    with running(tmp_path, argv, environ=host()) as daemon:
        pid = daemon.wait_serving(1, LIMIT_S)["pid"]
        daemon.process.send_signal(signal.SIGSTOP)  # so that both are there when it goes on
        for number in (first, *({signal.SIGUSR1, signal.SIGTERM} - {first})):
            daemon.process.send_signal(number)
        daemon.process.send_signal(signal.SIGCONT)
        assert daemon.wait_ended(LIMIT_S) == 0
        with running(tmp_path, argv, environ=host()) as second:
            assert second.wait(lambda i: i["state"] == "serving", "taken over", LIMIT_S)["pid"] == pid
            ends_well(second)
