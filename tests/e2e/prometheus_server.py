"""A real Prometheus of Debian's package on a loopback port, scraping what a test names every second."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from e2e.vllmd_process import free_port

_READY_LIMIT_S = 30.0
_ANSWER_LIMIT_S = 10.0
_STEP_S = 1.0  # of range queries: the scrape interval


def missing() -> str | None:
    """Return why these tests cannot run here; None if they can."""
    lacking = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
    return f"{' and '.join(lacking)} not installed (Debian's package prometheus)" if lacking else None


class PrometheusServer:
    """One server, reached over its HTTP API."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.started_s = time.time()

    def range(self, query: str) -> list[dict[str, Any]]:
        """Return every series of a query with its samples since this server was started."""
        answer = httpx.get(
            f"{self._url}/api/v1/query_range",
            params={"query": query, "start": self.started_s, "end": time.time(), "step": _STEP_S},
            timeout=_ANSWER_LIMIT_S,
        )
        found = answer.json()
        assert found["status"] == "success", f"{query}: {found}"
        series = found["data"]["result"]
        assert isinstance(series, list)
        return series

    def wait_for(self, query: str, within_s: float) -> list[dict[str, Any]]:
        """Return the series of a query as soon as there is one; AssertionError past the limit."""
        deadline = time.monotonic() + within_s
        while not (series := self.range(query)):
            assert time.monotonic() < deadline, f"no sample within {within_s:.0f} s: {query}"
            time.sleep(_STEP_S / 2)  # Prometheus scrapes at its interval and sends no event
        return series


@contextmanager
def prometheus(folder: Path, pages: Mapping[str, str]) -> Iterator[PrometheusServer]:
    """Scrape the /metrics page of each job for as long as the block runs; the data lies in the folder."""
    port = free_port()
    config = folder / "prometheus.yml"
    config.write_text(_configuration(pages), encoding="utf-8")
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_ready(process, f"http://127.0.0.1:{port}", folder / "prometheus.log")
        yield PrometheusServer(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        try:
            process.wait(_READY_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def lint(page: str) -> str:
    """Return what `promtool check metrics` finds wrong with a metrics page; empty if nothing."""
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=page,
        capture_output=True,
        text=True,
        timeout=_ANSWER_LIMIT_S,
        check=False,
    )
    return checked.stdout + checked.stderr


def _configuration(pages: Mapping[str, str]) -> str:
    """Return the configuration; JSON is YAML."""
    jobs = [{"job_name": job, "static_configs": [{"targets": [urlsplit(url).netloc]}]} for job, url in pages.items()]
    return json.dumps({"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs})


def _wait_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + _READY_LIMIT_S
    while not _ready(url):
        assert process.poll() is None, log.read_text(encoding="utf-8")
        assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
        time.sleep(0.05)  # another program's readiness can only be asked for


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=_ANSWER_LIMIT_S).is_success
    except httpx.TransportError:
        return False
