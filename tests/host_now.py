"""What a host does at a moment, in a few lines: for a test that failed where nobody can look."""

import os
from collections.abc import Iterable
from pathlib import Path

import psutil

_PRESSURE = Path("/proc/pressure")


def host_now(pids: Iterable[int]) -> str:
    """Return the load, the pressure on processors, memory and disks, and what these processes used and waited for."""
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    count = len(psutil.pids())
    pressure = [f"{path.name} {_read(path).partition(chr(10))[0]}" for path in sorted(_PRESSURE.glob("*"))]
    return "\n".join((f"load {load}, {count} processes", *pressure, *(_process(pid) for pid in pids)))


def _process(pid: int) -> str:
    """Return one process's name and state, and how long its first thread ran and waited for a processor."""
    if not psutil.pid_exists(pid):
        return f"pid {pid}: ended"
    name, state = _read(Path(f"/proc/{pid}/comm")), _read(Path(f"/proc/{pid}/stat")).rpartition(") ")[2][:1]
    ran, waited = [*filter(str.isdecimal, _read(Path(f"/proc/{pid}/schedstat")).split()), "0", "0"][:2]
    where = _read(Path(f"/proc/{pid}/wchan"))
    return f"pid {pid} {name}: {state} in {where}, ran {int(ran) / 1e9:.1f} s, waited {int(waited) / 1e9:.1f} s"


def _read(path: Path) -> str:
    """Return a file's text, or the error that its reading ended with."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        return str(error.strerror)
