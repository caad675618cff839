"""How long the commands take that people type and scripts repeat."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.measurement import Measurement
from e2e.vllmd_process import VLLMD, free_port, running
from simulated import host, serve

_RUNS = 9
_START_LIMIT_S = 60.0


def command_times() -> Iterator[Measurement]:
    """Wall times of `vllmd --help` and `vllmd status`, the median of nine."""
    help_s = median_s(lambda: subprocess.run([*VLLMD, "--help"], check=True, capture_output=True))
    yield Measurement("vllmd --help", help_s, 0.3, "s")
    with TemporaryDirectory() as folder, running(Path(folder), serve(free_port()), environ=host()) as daemon:
        daemon.wait_serving(1, _START_LIMIT_S)
        yield Measurement("vllmd status", median_s(lambda: daemon.ask("status")), 0.2, "s")


def median_s(action: Callable[[], object]) -> float:
    """Return how long an action takes, in seconds; the first time does not count."""
    action()
    times: list[float] = []
    for _ in range(_RUNS):
        started_s = time.perf_counter()
        action()
        times.append(time.perf_counter() - started_s)
    return median(times)
