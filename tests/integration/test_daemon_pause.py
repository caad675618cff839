"""vllmd over the simulated server while the operator says: hands off."""

import json
import os
import signal
from pathlib import Path

from e2e.vllmd_process import Instance, VllmdProcess, free_port, running
from simulated import host, serve

LIMIT_S = 30.0


def crash(daemon: VllmdProcess) -> None:
    """Kill the server that serves now."""
    os.kill(daemon.status()["pid"], signal.SIGKILL)


def held(daemon: VllmdProcess) -> Instance:
    """Wait until the server is kept down."""
    return daemon.wait(lambda i: i["state"] == "held", "held", LIMIT_S)


def test_a_pause_keeps_a_crashed_server_down_and_resume_recovers_it(tmp_path: Path) -> None:
    """Paused means none after a crash either, and says so everywhere; resume makes up for what was not done."""
    with running(tmp_path, serve(free_port()), environ=host()) as daemon:
        daemon.wait_serving(1, LIMIT_S)
        paused = daemon.ask("pause", "--for", "2h", "--reason", "CHG-1182")
        assert paused.returncode == 0, paused.stderr
        assert "(CHG-1182)" in paused.stdout
        assert daemon.ask("status", "--exit-code").returncode == 11
        crash(daemon)
        instance = held(daemon)
        assert "CHG-1182" in instance["message"]
        assert (instance["generation"], instance["paused"]["reason"]) == (1, "CHG-1182")
        assert "`vllmd resume default`" in daemon.ask("status").stdout
        assert daemon.ask("resume").returncode == 0
        instance = daemon.wait_serving(2, LIMIT_S)
        assert instance["paused"] is None
        assert daemon.ask("resume").returncode == 5


def test_a_pause_may_keep_the_recovery(tmp_path: Path) -> None:
    """With --keep-recovery a crash is mended, and it is still paused."""
    with running(tmp_path, serve(free_port()), environ=host()) as daemon:
        daemon.wait_serving(1, LIMIT_S)
        assert daemon.ask("pause", "--forever", "--keep-recovery").returncode == 0
        crash(daemon)
        instance = daemon.wait_serving(2, LIMIT_S)
        assert (instance["paused"]["until"], instance["paused"]["keep_recovery"]) == (None, True)


def test_a_pause_ends_by_itself(tmp_path: Path) -> None:
    """After its time the server that it kept down is recovered, without a word of the operator."""
    with running(tmp_path, serve(free_port()), environ=host()) as daemon:
        daemon.wait_serving(1, LIMIT_S)
        asked = json.loads(daemon.ask("pause", "--for", "4s", "--json").stdout)
        assert (asked["schema"], asked["name"], asked["state"]) == ("vllmd.pause/v1", "default", "serving")
        crash(daemon)
        held(daemon)
        assert daemon.wait_serving(2, LIMIT_S)["paused"] is None


def test_a_pause_outlives_the_daemon(tmp_path: Path) -> None:
    """The next vllmd starts the server, and keeps its hands off it as the last one did."""
    port = free_port()
    with running(tmp_path, serve(port), environ=host()) as first:
        first.wait_serving(1, LIMIT_S)
        assert first.ask("pause", "--reason", "upgrade of vllmd").returncode == 0
        told = first.status()["paused"]
    with running(tmp_path, serve(port), environ=host()) as second:
        assert second.wait_serving(2, LIMIT_S)["paused"] == told
        crash(second)
        assert held(second)["generation"] == 2
