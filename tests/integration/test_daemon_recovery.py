"""vllmd over the simulated server: from every first failure to a serving server, or to a held one that says why."""

import http.server
import os
import signal
import subprocess
import threading
from pathlib import Path

import httpx
import psutil

from e2e.vllmd_process import VLLMD, VllmdProcess, free_port, running
from simulated import host, serve

LIMIT_S = 30.0


def engine_of(daemon: VllmdProcess) -> psutil.Process:
    """Return the engine's process."""
    return next(p for p in daemon.server_processes() if "EngineCore" in " ".join(p.cmdline()))


def test_too_little_utilization_is_raised_by_the_number(tmp_path: Path) -> None:
    """20 % of 80 GiB do not hold the model: one failed launch, then a computed utilization that serves."""
    argv = serve(free_port(), "--gpu-memory-utilization", "0.2")
    with running(tmp_path, argv, environ=host()) as daemon:
        instance = daemon.wait_serving(2, LIMIT_S)
        assert instance["generation"] == 2
        (flag,) = [f for f in instance["flags"] if f["name"] == "gpu-memory-utilization"]
        assert 0.21 <= float(flag["value"]) <= 0.4
        assert instance["decisions"][-1]["action"] == "recover"
        assert instance["decisions"][-1]["verification"]["effect"] == "serving"


def test_a_pool_too_small_for_one_request_is_raised(tmp_path: Path) -> None:
    """A pool smaller than one request of the length is raised by what is missing."""
    argv = serve(free_port(), "--gpu-memory-utilization", "0.25", "--max-model-len", "32768")
    with running(tmp_path, argv, environ=host()) as daemon:
        instance = daemon.wait_serving(2, LIMIT_S)
        assert instance["generation"] == 2
        assert instance["last_failure"]["class"] == "max-model-len-too-long"
        assert "max-model-len" not in {c["flag"] for c in instance["decisions"][-1]["changes"]}


def test_a_length_that_does_not_fit_is_shortened_where_the_operator_allows(tmp_path: Path) -> None:
    """With a fixed pool no utilization helps; the longest length that vLLM printed serves."""
    argv = serve(free_port(), "--max-model-len", "32768", "--kv-cache-memory-bytes", "2G")
    settings = {"guard": {"max-model-len": {"min": 4096}}}
    with running(tmp_path, argv, settings, host()) as daemon:
        instance = daemon.wait_serving(2, LIMIT_S)
        changed = {c["flag"]: c["to"] for c in instance["decisions"][-1]["changes"]}
        assert set(changed) == {"max-model-len"}
        assert 4096 <= int(changed["max-model-len"]) < 32768


def test_a_length_that_does_not_fit_is_held_where_the_operator_does_not(tmp_path: Path) -> None:
    """The context promised to users is never shortened unasked."""
    argv = serve(free_port(), "--max-model-len", "32768", "--kv-cache-memory-bytes", "2G")
    with running(tmp_path, argv, environ=host()) as daemon:
        instance = daemon.wait(lambda i: i["state"] == "held", "held", LIMIT_S)
        assert instance["generation"] == 1
        assert "max-model-len" in instance["message"]


def test_too_much_utilization_is_lowered(tmp_path: Path) -> None:
    """A neighbour that holds 30 of 80 GiB leaves 0.62 at most."""
    argv = serve(free_port(), "--gpu-memory-utilization", "0.9")
    with running(tmp_path, argv, environ=host(other_used_gib=30)) as daemon:
        instance = daemon.wait_serving(2, LIMIT_S)
        (flag,) = [f for f in instance["flags"] if f["name"] == "gpu-memory-utilization"]
        assert 0.5 <= float(flag["value"]) <= 0.62


def test_an_oom_while_serving_lowers_the_utilization(tmp_path: Path) -> None:
    """The engine's OOM ends the server with code 0; the next launch leaves the memory that was missing."""
    port = free_port()
    with running(tmp_path, serve(port), environ=host(runtime_peak_gib=9)) as daemon:
        daemon.wait_serving(1, LIMIT_S)
        body = {"model": "simulated/llama-8b", "prompt": "x" * 400, "max_tokens": 8}
        assert httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=10).status_code >= 500
        instance = daemon.wait_serving(2, LIMIT_S)
        assert instance["last_failure"]["class"] == "runtime-oom"
        assert instance["last_failure"]["exit_code"] == 0
        assert httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=10).status_code == 200


def test_a_killed_engine_is_replaced(tmp_path: Path) -> None:
    """SIGKILL of the engine ends the server with code 0, which is a crash."""
    with running(tmp_path, serve(free_port()), environ=host()) as daemon:
        daemon.wait_serving(1, LIMIT_S)
        old = daemon.server_processes()
        engine_of(daemon).kill()
        instance = daemon.wait_serving(2, LIMIT_S)
        assert instance["last_failure"]["exit_code"] == 0
        assert not [p for p in old if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_a_killed_api_server_leaves_no_orphan(tmp_path: Path) -> None:
    """The engine that outlives its API server is ended before the next launch, so that its memory is free."""
    with running(tmp_path, serve(free_port()), environ=host(gpu_dir=str(tmp_path))) as daemon:
        instance = daemon.wait_serving(1, LIMIT_S)
        old = daemon.server_processes()
        os.kill(instance["pid"], signal.SIGKILL)
        instance = daemon.wait_serving(2, LIMIT_S)
        assert instance["generation"] == 2
        assert not [p for p in old if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_a_foreign_server_on_the_port_is_named_and_left_alone(tmp_path: Path) -> None:
    """A server that answers /health with 200 is not ours: held, named, alive, and nothing was launched."""

    class Healthy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

    foreign = http.server.HTTPServer(("127.0.0.1", 0), Healthy)
    threading.Thread(target=foreign.serve_forever, daemon=True).start()
    try:
        with running(tmp_path, serve(foreign.server_port), environ=host()) as daemon:
            instance = daemon.wait(lambda i: i["state"] == "held", "held", LIMIT_S)
            assert f"port {foreign.server_port} is taken by pid {os.getpid()}" in instance["message"]
            assert instance["pid"] is None
        assert httpx.get(f"http://127.0.0.1:{foreign.server_port}/health").status_code == 200
    finally:
        foreign.shutdown()


def test_an_unknown_option_is_told_before_any_launch(tmp_path: Path) -> None:
    """The start is not paid for: exit code 78, the option, and the nearest known one."""
    argv = serve(free_port(), "--gpu-memory-utilisation", "0.9")
    with running(tmp_path, argv, environ=host()) as daemon:
        assert daemon.wait_ended(LIMIT_S) == 78
        assert "--gpu-memory-utilisation" in daemon.log()
        assert "did you mean --gpu-memory-utilization?" in daemon.log()
        assert not (tmp_path / "state" / "default" / "logs").exists()


def test_a_missing_model_is_held_after_one_launch(tmp_path: Path) -> None:
    """No flag finds a model: one launch, then the operator's action in plain words."""
    with running(tmp_path, serve(free_port(), model="/srv/no-such-model"), environ=host()) as daemon:
        instance = daemon.wait(lambda i: i["state"] == "held", "held", LIMIT_S)
        assert instance["generation"] == 1
        assert instance["pid"] is None  # its process has ended
        assert instance["last_failure"]["class"] == "model-access"
        assert "/srv/no-such-model" in instance["message"]


def test_two_daemons_on_one_instance_are_refused(tmp_path: Path) -> None:
    """The second one says so and changes nothing."""
    with running(tmp_path, serve(free_port()), environ=host()) as daemon:
        pid = daemon.wait_serving(1, LIMIT_S)["pid"]
        config = str(tmp_path / "vllmd.toml")
        second = subprocess.run(
            [*VLLMD, "run", "--config", config], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert second.returncode == 1
        assert "another vllmd already runs" in second.stderr
        assert daemon.status()["pid"] == pid


def test_a_restart_that_is_asked_for_drains_and_serves_again(tmp_path: Path) -> None:
    """`vllmd restart` counts as the operator's."""
    with running(tmp_path, serve(free_port()), environ=host()) as daemon:
        daemon.wait_serving(1, LIMIT_S)
        config = str(tmp_path / "vllmd.toml")
        subprocess.run([*VLLMD, "restart", "--config", config], check=True, capture_output=True, timeout=LIMIT_S)
        instance = daemon.wait_serving(2, LIMIT_S)
        assert instance["launches"] == {"first": 1, "admin": 1}
