"""Restarts of the simulated server under load: planned, no request is lost; plain, the clients see errors."""

from pathlib import Path

from e2e.vllmd_process import VllmdProcess, free_port, running
from own_network import own_network
from simulated import NAME, host, serve
from steady_load import Outcomes, steady

LIMIT_S = 60.0
# The keep-alive time is waited for, so that no connection is reused while its server stops.
ENVIRON = {**host(start_s=1.5), "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "1"}
SETTINGS = {"engine": {"drain_timeout": "10s", "hold_timeout": "30s"}}


def restarted(daemon: VllmdProcess, seen: Outcomes, generation: int) -> None:
    """Restart the server, and wait until it has served for a while."""
    assert daemon.ask("restart").returncode == 0
    daemon.wait_serving(generation, LIMIT_S)
    before = seen.ended
    daemon.wait(lambda _: seen.ended >= before + 40, "the load goes on", LIMIT_S)


def test_two_planned_restarts_lose_no_request(tmp_path: Path) -> None:
    """Every request of a steady load is answered; those of the outage wait."""
    with own_network(), running(tmp_path, serve(free_port()), SETTINGS, ENVIRON) as daemon:
        instance = daemon.wait_serving(1, LIMIT_S)
        with steady(instance["url"], NAME, rate=20) as seen:
            restarted(daemon, seen, 2)
            restarted(daemon, seen, 3)
        assert seen.errors == []
        assert len(seen.took_s) >= 100
        assert max(seen.took_s) > 1.0
        assert daemon.log().count("the port is no longer parked") == 2


def test_a_plain_restart_loses_requests_and_says_why_it_is_plain(tmp_path: Path) -> None:
    """Without the kernel's setting connections are refused until the next server listens."""
    with own_network(migrating=False), running(tmp_path, serve(free_port()), SETTINGS, ENVIRON) as daemon:
        instance = daemon.wait_serving(1, LIMIT_S)
        with steady(instance["url"], NAME, rate=20) as seen:
            restarted(daemon, seen, 2)
        assert seen.errors
        assert "net.ipv4.tcp_migrate_req is 0" in daemon.log()
