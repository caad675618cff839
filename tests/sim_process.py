"""Simulated servers as real processes, for the tests of the simulation itself."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

LIMIT_S = 15.0  # for anything that the simulation should do soon
READY = "Application startup complete."
LONG = {"prompt": "x", "max_tokens": 5000, "stream": True}  # half a minute


@dataclass
class Sim:
    """One simulated server, in a process group of its own, with its output in a file."""

    process: subprocess.Popen[bytes]
    log: Path

    def text(self) -> str:
        """Return what it printed so far."""
        return self.log.read_text(encoding="utf-8")

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, f"never: {what}\n{self.text()}"
            time.sleep(0.01)

    def serving(self) -> "Sim":
        """Wait until it serves."""
        self.until(lambda: READY in self.text() or self.process.poll() is not None, "ready")
        assert READY in self.text(), self.text()
        return self

    def ended(self) -> int:
        """Wait for its end; returns the exit code."""
        return self.process.wait(LIMIT_S)

    @property
    def url(self) -> str:
        """Where it listens."""
        found = re.search(r"Starting vLLM server on (\S+)", self.text())
        assert found is not None
        return found[1]

    def engine(self) -> psutil.Process:
        """Return its engine process."""
        (engine,) = psutil.Process(self.process.pid).children()
        return engine

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes of its engine, by rank; none with one GPU."""
        return sorted(self.engine().children(), key=lambda worker: worker.cmdline())

    def post(self, path: str, **body: Any) -> httpx.Response:
        """Send one JSON body."""
        return httpx.post(f"{self.url}{path}", json=body, timeout=LIMIT_S)

    def metrics(self) -> dict[str, float]:
        """Return the samples of /metrics, labels other than vLLM's own two in the name."""
        page = httpx.get(f"{self.url}/metrics", timeout=LIMIT_S).text
        samples = {}
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                extra = [v for k, v in sorted(sample.labels.items()) if k not in {"engine", "model_name"}]
                samples[":".join((sample.name.removeprefix("vllm:"), *extra))] = sample.value
        return samples


Launch = Callable[..., Sim]


@contextmanager
def launching(folder: Path) -> Iterator[Launch]:
    """Give a function that starts simulated servers, whose logs lie in a folder; nothing of their groups is left."""
    started: list[Sim] = []

    def start(*argv: str, model: str = "m", environ: Mapping[str, str] | None = None, **host: Any) -> Sim:
        log = folder / f"{len(started)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "vllmd_sim", "serve", model, "--port", "0", *argv],
                env={**os.environ, **(environ or {}), "VLLMD_SIM": json.dumps({"start_s": 0.05, **host})},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append(Sim(process, log))
        return started[-1]

    yield start
    for sim in started:
        with suppress(ProcessLookupError):
            os.killpg(sim.process.pid, signal.SIGKILL)
        sim.process.wait(LIMIT_S)
