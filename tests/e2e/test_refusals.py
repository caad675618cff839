"""What no flag can mend: said in the right words, after one launch at most, and nobody else is harmed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest

from e2e.cpu_vllm import FIXED_POOL, START_LIMIT_S, serve
from e2e.vllmd_process import free_port, running

pytestmark = pytest.mark.usefixtures("real_vllm")


class Healthy(BaseHTTPRequestHandler):
    """Answers every GET with 200, as a server of somebody else may."""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@contextmanager
def foreign_server() -> Iterator[int]:
    """Run a server that is not vllmd's for as long as the block runs; the value is its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Healthy)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_foreign_server_on_the_port_is_named_and_left_alone(tmp_path: Path) -> None:
    """Its healthy answer is not taken for ours; nothing is launched beside it, and it goes on."""
    with foreign_server() as port, running(tmp_path, serve("tiny", port), environ=FIXED_POOL) as daemon:
        held = daemon.wait(lambda i: i["state"] == "held", "held", 60)
        assert f"port {port} is taken by pid {os.getpid()}" in held["message"]
        assert held["last_failure"]["class"] == "port-in-use"
        assert held["pid"] is None
        assert not daemon.server_processes()
        assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).is_success


def test_an_unknown_option_is_reported_before_a_start_is_paid(tmp_path: Path) -> None:
    """The installed vLLM's own source says what it accepts."""
    argv = serve("tiny", free_port(), "--max-model-length-typo", "4096")
    with running(tmp_path, argv, environ=FIXED_POOL) as daemon:
        assert daemon.wait_ended(30) != 0
        assert "--max-model-length-typo" in daemon.log()
        assert not daemon.leftovers()
    assert not list(tmp_path.glob("state/default/logs/*"))


def test_a_missing_model_is_held_after_one_launch(tmp_path: Path) -> None:
    """A second launch would fail the same way."""
    folder = tmp_path / "no-such-model"
    with running(tmp_path, serve(str(folder), free_port()), environ=FIXED_POOL) as daemon:
        held = daemon.wait(lambda i: i["state"] == "held", "held", START_LIMIT_S)
        assert held["last_failure"]["class"] == "model-access"
        assert str(folder) in held["message"]
        assert held["launches"] == {"first": 1}
