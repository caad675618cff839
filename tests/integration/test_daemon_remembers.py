"""vllmd over days and daemons, in seconds: it begins with what served, and tries a step back when it was quiet."""

from pathlib import Path

import httpx

from e2e.vllmd_process import Instance, free_port, running
from simulated import NAME, host, serve

LIMIT_S = 60.0
FLAG = "gpu-memory-utilization"


def value(instance: Instance) -> float:
    """Return the utilization in force."""
    (flag,) = [f for f in instance["flags"] if f["name"] == FLAG]
    return float(flag["value"])


def test_the_next_daemon_begins_with_what_served(tmp_path: Path) -> None:
    """The failed launch is paid for once; a new command of the operator's is launched as it is."""
    port = free_port()
    argv = serve(port, f"--{FLAG}", "0.2")
    with running(tmp_path, argv, environ=host()) as daemon:
        found = value(daemon.wait_serving(2, LIMIT_S))
    with running(tmp_path, argv, environ=host()) as daemon:
        instance = daemon.wait_serving(3, LIMIT_S)
        assert value(instance) == found
        assert instance["launches"] == {"first": 1}
        assert instance["decisions"][-1]["action"] == "remember"
    with running(tmp_path, serve(port, f"--{FLAG}", "0.5"), environ=host()) as daemon:
        assert value(daemon.wait_serving(4, LIMIT_S)) == 0.5


def asks(port: int) -> int:
    """Send a request whose step needs much memory; return the answer's code."""
    body = {"model": NAME, "prompt": "x" * 400, "max_tokens": 8}
    return httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=10).status_code


def test_a_step_back_that_crashes_is_taken_back_and_not_tried_again(tmp_path: Path) -> None:
    """The OOM that led to the recovery comes again within the soak: back to what served, and there it stays."""
    settings = {"budget": {"step_back_after": "2s", "soak": "30s", "restarts_per_hour": 5}}
    port = free_port()
    with running(tmp_path, serve(port), settings, host(runtime_peak_gib=9)) as daemon:
        daemon.wait_serving(1, LIMIT_S)
        assert asks(port) >= 500
        lowered = value(daemon.wait_serving(2, LIMIT_S))
        assert lowered < value(daemon.wait_serving(3, LIMIT_S))
        assert asks(port) >= 500
        assert value(daemon.wait_serving(4, LIMIT_S)) == lowered
        assert asks(port) == 200
        instance = daemon.wait(lambda i: i["holds"].get("already_tried"), "left alone", LIMIT_S)
        assert value(instance) == lowered
        assert [d["action"] for d in instance["decisions"]] == ["recover", "restart", "rollback"]
        assert instance["decisions"][1]["trigger"] == "quiet"
        assert instance["budget"]["restarts_hour"]["used"] == 1
