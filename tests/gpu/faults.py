"""Faults of a real vLLM on a real GPU: `python -m gpu.faults OUT MODELS`; faults.json and the logs go to OUT.

Under a steady load vllmd is killed, then the engine is stopped, then the API server is killed; each row says what that
cost, by the clients and by NVML.
"""

import hashlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pynvml

from e2e.load import Clients, Observed, traffic
from e2e.vllmd_process import VllmdProcess, free_port, running
from gpu.__main__ import VLLMD, keep_logs
from gpu.scenarios import Scenario, serve

_START_LIMIT_S = 300.0
_LOAD_LIMIT_S = 60.0
_LOAD = (Clients(4, prompt_tokens=500, output_tokens=100),)
_SERVER = Scenario("faults, 8B", "8b", ("--max-model-len", "8192"))
_SETTINGS = {"engine": {"stall_timeout": "10s"}}
_POLL_S = 0.1
_GIB = 2**30


def main(out: str, models: str) -> int:
    """Inflict every fault; return 0 once each has ended in a serving server. AssertionError if one does not."""
    folder, place = Path(out), Path("/tmp/vllmd-gpu/faults")  # noqa: S108 - a fresh machine; short for the socket's path
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    inflict_all(list(serve(models, _SERVER, free_port())), "m", place, folder)
    return 0


def inflict_all(argv: Sequence[str], model: str, place: Path, out: Path, environ: dict[str, str] | None = None) -> None:
    """Run vllmd over a server's command, inflict the faults one after the other, and write what each cost."""
    with running(place, argv, _SETTINGS, environ, VLLMD) as first:
        url = first.wait_serving(1, _START_LIMIT_S)["url"]
        with traffic(url, model, _LOAD) as seen, gpu_memory() as used:
            trial = Trial(place, out, seen, used)
            trial.inflict("vllmd killed by SIGKILL", first, lambda: end(first), lambda: None)
            with running(place, argv, _SETTINGS, environ, VLLMD) as second:
                trial.recovered(second, 1)
                trial.inflict("engine stopped by SIGSTOP", second, lambda: stop_engine(second), lambda: lost(second))
                trial.recovered(second, 2)
                pid = second.status()["pid"]
                kill = partial(os.kill, pid, signal.SIGKILL)  # which leaves its engine
                trial.inflict("API server killed by SIGKILL", second, kill, lambda: lost(second))
                trial.recovered(second, 3)


class Trial:
    """One fault after the other, and what each cost."""

    def __init__(self, place: Path, out: Path, seen: Observed, used: list[int]) -> None:
        self._place = place
        self._out = out
        self._seen = seen
        self._used = used
        self._rows: list[dict[str, Any]] = []
        self._began_s = 0.0
        self._errors = 0
        self._samples = 0

    def inflict(
        self, name: str, daemon: VllmdProcess, fault: Callable[[], object], found: Callable[[], object]
    ) -> None:
        """Bring a fault about under load, and wait until it is found."""
        self._served()
        row = {"fault": name, "pid_before": daemon.status()["pid"], "used_before_gib": self._gib(self._used[-1:])}
        self._errors, self._samples, self._began_s = len(self._seen.errors), len(self._used), time.monotonic()
        fault()
        found()
        self._rows.append({**row, "found_s": self._since()})

    def recovered(self, daemon: VllmdProcess, generation: int) -> None:
        """Wait until the server serves, and its clients are served; write the row."""
        instance = daemon.wait_serving(generation, _START_LIMIT_S)
        row = self._rows[-1]
        row |= {"serving_s": self._since(), "generation": instance["generation"], "pid_after": instance["pid"]}
        row["failure"] = (instance["last_failure"] or {}).get("summary")
        row["evidence"] = [path.name for path in Path(instance["log"]).parent.glob("evidence-*")]
        self._served()
        row["errors"] = len(self._seen.errors) - self._errors
        row["used_least_gib"] = self._gib([min(self._used[self._samples :], default=0)])
        row["used_after_gib"] = self._gib(self._used[-1:])
        row["log_sha256"] = hashlib.sha256(Path(instance["log"]).read_bytes()).hexdigest()
        (self._out / "faults.json").write_text(json.dumps(self._rows, indent=1))
        keep_logs(daemon, self._place, self._out, "faults")
        print(json.dumps(row, indent=1), flush=True)  # noqa: T201 - the caller reads along

    def _since(self) -> float:
        return round(time.monotonic() - self._began_s, 1)

    def _served(self) -> None:
        """Wait until each client was answered once more."""
        wanted, deadline = self._seen.completed + 4, time.monotonic() + _LOAD_LIMIT_S
        while self._seen.completed < wanted:
            assert time.monotonic() < deadline, f"not served within {_LOAD_LIMIT_S:.0f} s: {self._seen.errors[-3:]}"
            time.sleep(_POLL_S)  # the load is what is waited for

    @staticmethod
    def _gib(samples: Sequence[int]) -> float | None:
        return round(samples[0] / _GIB, 1) if samples and samples[0] else None


def end(daemon: VllmdProcess) -> None:
    """Kill vllmd itself."""
    daemon.process.kill()
    daemon.process.wait()


def stop_engine(daemon: VllmdProcess) -> None:
    """Stop the engine's process, as a hang that nobody sees."""
    engines = [p for p in daemon.server_processes() if "EngineCore" in " ".join((p.name(), *p.cmdline()))]
    assert engines, "no engine"
    for engine in engines:
        engine.send_signal(signal.SIGSTOP)


def lost(daemon: VllmdProcess) -> None:
    """Wait until vllmd says that the server does not serve."""
    daemon.wait(lambda i: i["state"] != "serving" or "is being ended" in i["message"], "found", _START_LIMIT_S)


@contextmanager
def gpu_memory() -> Iterator[list[int]]:
    """Sample the memory in use on the first GPU, in bytes, in a thread; no samples where there is no NVML."""
    samples: list[int] = []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield samples
        return
    device, over = pynvml.nvmlDeviceGetHandleByIndex(0), threading.Event()

    def sample() -> None:
        while not over.wait(_POLL_S):
            samples.append(int(pynvml.nvmlDeviceGetMemoryInfo(device).used))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()
        pynvml.nvmlShutdown()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
