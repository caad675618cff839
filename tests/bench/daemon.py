"""How fast the daemon launches again, and what it costs while nothing happens."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Thread

import psutil

from bench.measurement import Measurement
from e2e.vllmd_process import VllmdProcess, free_port, running
from simulated import host, serve

_START_LIMIT_S = 60.0
_GAPS = 3
_SETTLE_S = 15.0  # the start's own work is over, and three readings were made
_SPAN_S = 60.0
_MIB = 2**20
_PAGE = (Path(__file__).parents[1] / "data" / "metrics" / "cpu-vllm-0.32.0.txt").read_bytes()


def restart_gap() -> Iterator[Measurement]:
    """From the server's death by SIGKILL to the next spawn, with a simulated server, the median of three."""
    yield Measurement("death of the server to the next launch", median(_gap_s() for _ in range(_GAPS)), 1.0, "s")


def _gap_s() -> float:
    """Return one gap. Every time a new daemon: the second failure in a row would wait for its backoff."""
    with TemporaryDirectory() as folder, running(Path(folder), serve(free_port()), environ=host()) as daemon:
        leader = daemon.wait_serving(1, _START_LIMIT_S)["pid"]
        vllmd = psutil.Process(daemon.process.pid)
        before = set(vllmd.children())
        psutil.Process(leader).kill()
        died_s = time.perf_counter()
        while not [child for child in set(vllmd.children()) - before if _leads_a_session(child)]:
            if time.perf_counter() - died_s > _START_LIMIT_S:
                raise TimeoutError(daemon.story("no launch after the server's death", daemon.status()))
            time.sleep(0.002)  # /proc sends no event; the resolution of this measurement
        gap_s = time.perf_counter() - died_s
        daemon.wait_serving(2, _START_LIMIT_S)
        return gap_s


def _leads_a_session(process: psutil.Process) -> bool:
    """Whether this is a server's leader: not an orphan of the dead one, which vllmd inherits."""
    try:
        return bool(process.cmdline()[1:]) and "vllmd_sim" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def daemon_costs() -> Iterator[Measurement]:
    """CPU and memory of vllmd over a minute, with a reading every 5 s of a page that a real vLLM answered."""
    with TemporaryDirectory() as folder, canned_server() as url:
        settings = {
            "engine": {"scrape_interval": "5s", "url": url},
            "slo": {"itl_p99": "50ms", "ttft_p95": "1s", "judge_window": "10s"},
        }
        with running(Path(folder), serve(free_port()), settings, host()) as daemon:
            daemon.wait_serving(1, _START_LIMIT_S)
            time.sleep(_SETTLE_S)  # so that the start's own work is not counted
            yield from _costs(daemon)


def _costs(daemon: VllmdProcess) -> Iterator[Measurement]:
    vllmd = psutil.Process(daemon.process.pid)
    before = vllmd.cpu_times()
    time.sleep(_SPAN_S)  # the span that is measured
    after = vllmd.cpu_times()
    age_s = daemon.status()["data"]["age_seconds"]
    assert age_s is not None, "the page was not read"
    assert age_s < _SPAN_S, f"the page was read {age_s} s ago"
    busy_s = after.user + after.system - before.user - before.system
    page = f"{len(_PAGE) / 1000:.0f} KB page every 5 s"
    yield Measurement(f"CPU of vllmd, {page}", 100 * busy_s / _SPAN_S, 1.0, "% of a core")
    yield Measurement("resident memory of vllmd", vllmd.memory_info().rss / _MIB, 80, "MiB")


class CannedPage(BaseHTTPRequestHandler):
    """Answers every GET with the page: /metrics for vllmd to read, and /health, where only the 200 counts."""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(_PAGE)))
        self.end_headers()
        self.wfile.write(_PAGE)

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@contextmanager
def canned_server() -> Iterator[str]:
    """Serve the page on a loopback port for as long as the block runs; the value is the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), CannedPage)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
