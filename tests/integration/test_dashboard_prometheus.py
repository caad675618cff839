"""Every query of the dashboard answers on a real Prometheus that scraped an exporter and a page of vLLM's."""

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from dashboard_queries import Query, queries
from examples import example_status
from vllmd.report.exporter import Exporter
from vllmd.report.publication import Publication

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is missing (apt install it)")

CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - {{job_name: vllmd, static_configs: [{{targets: ["{vllmd}"]}}]}}
  - {{job_name: vllm, static_configs: [{{targets: ["{vllm}"]}}]}}
"""

# Names and labels as vLLM 0.26.0 prints them.
VLLM_PAGE = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 26240.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 6400.0
"""


class VllmPage(BaseHTTPRequestHandler):
    """Answers every request with a metrics page of vLLM's."""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(VLLM_PAGE)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Log nothing."""


@pytest.fixture(scope="module")
def vllm() -> Iterator[str]:
    """Give the address of something that answers like vLLM's /metrics."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), VllmPage)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def vllmd() -> Iterator[str]:
    """Give the address of the exporter of an instance whose decisions are an hour old by this machine's clock."""
    publication = Publication()
    published = example_status()
    shift_s = time.time() - published.at_s
    records = tuple(replace(r, change=replace(r.change, at_s=r.change.at_s + shift_s)) for r in published.decisions)
    publication.set(replace(published, at_s=time.time(), since_s=published.since_s + shift_s, decisions=records))
    exporter = Exporter("127.0.0.1:0", publication)
    exporter.start()
    yield exporter.url.removeprefix("http://")
    exporter.close()


def free_port() -> int:
    """Return a port that nothing listens on."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def prometheus(vllmd: str, vllm: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the address of a Prometheus that scrapes both every second."""
    folder: Path = tmp_path_factory.mktemp("prometheus")
    (folder / "prometheus.yml").write_text(CONFIG.format(vllmd=vllmd, vllm=vllm))
    address = f"127.0.0.1:{free_port()}"
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        yield f"http://{address}"
        process.terminate()
        process.wait(20)


def answers(prometheus: str, query: Query) -> bool:
    """Whether a query has a non-empty answer; an error of PromQL fails the test at once."""
    try:
        reply = httpx.get(f"{prometheus}/api/v1/query", params={"query": query.expr}, timeout=5)
    except httpx.TransportError:
        return False  # not up yet
    assert reply.status_code in (200, 503), f"{query.title}: {reply.text}"
    return reply.status_code == 200 and bool(reply.json()["data"]["result"])


def test_every_query_answers(prometheus: str) -> None:
    """Within a minute every panel and annotation has data: none names what nobody exports, none is malformed."""
    silent = list(queries(name="qwen", job="vllm"))
    deadline_s = time.monotonic() + 60
    while silent and time.monotonic() < deadline_s:
        silent = [query for query in silent if not answers(prometheus, query)]
        time.sleep(0.5)
    assert [(query.title, query.expr) for query in silent] == []


def test_decisions_table_has_one_row_a_decision(prometheus: str) -> None:
    """The table joins each decision with its effect, and keeps those that were not verified."""
    (table,) = (query for query in queries() if query.title.startswith("Decisions of"))
    deadline_s = time.monotonic() + 60
    while not answers(prometheus, table) and time.monotonic() < deadline_s:
        time.sleep(0.5)
    reply = httpx.get(f"{prometheus}/api/v1/query", params={"query": table.expr}, timeout=5)
    effects = {row["metric"]["id"]: row["metric"].get("effect") for row in reply.json()["data"]["result"]}
    assert effects == {"D19": "better", "D20": None, "D21": None}
