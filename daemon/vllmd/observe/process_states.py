"""What the processes of a server are doing, by /proc: for the evidence of a hang.

Read is what the kernel answers without the process's help: its title by `comm`, never its command line, whose reader
waits for a process that holds its own memory map.
"""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import psutil

from vllmd.model.server import ProcessId
from vllmd.model.snapshot import Activity

_PROC = Path("/proc")
_THREADS = 1024  # of one process; vLLM's have some hundred
# What PyTorch's inductor, Triton and FlashInfer start to build a kernel: GCC, Clang, NVIDIA's nvcc with its parts.
_COMPILERS = frozenset(
    {"cc1", "cc1plus", "as", "ld", "clang", "clang++", "nvcc", "cicc", "ptxas", "cudafe++", "fatbinary"}
)
_WAITS_FOR_DISK, _STOPPED = "D", "T"  # proc(5)
_COMPUTES = frozenset({"R", _WAITS_FOR_DISK})


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One process: title (15 characters at most), state (a letter of proc(5)), and where in the kernel it waits.

    `wchan` is None where the kernel does not say, or the process waits for nothing. `busy_ticks` is the CPU time so
    far; `threads` counts its threads by state and wchan.
    """

    pid: int
    title: str
    state: str
    wchan: str | None
    busy_ticks: int
    threads: Counter[tuple[str, str | None]]


def read_states(processes: Iterable[ProcessId]) -> tuple[ProcessReading, ...]:
    """Return what each of these processes does; one that has ended is left out."""
    found = (_read(process.pid) for process in processes)
    return tuple(reading for reading in found if reading is not None)


def compiles(processes: Iterable[ProcessId]) -> bool:
    """Whether one of these processes is a compiler at work: a server's first request of a kind may wait for one."""
    found = (_fields(_PROC / str(process.pid)) for process in processes)
    return any(fields is not None and fields[0] in _COMPILERS and fields[1] in _COMPUTES for fields in found)


def activity_of(pid: int) -> Activity | None:
    """Return what a process and all that descend from it do, taken together; None if it has ended."""
    try:
        pids = (pid, *(child.pid for child in psutil.Process(pid).children(recursive=True)))
    except psutil.NoSuchProcess:
        return None
    found = [fields for each in pids if (fields := _fields(_PROC / str(each))) is not None]
    ticks, states = sum(busy for *_, busy in found), {state for _, state, _ in found}
    return Activity(ticks / os.sysconf("SC_CLK_TCK"), stopped=_STOPPED in states, disk=_WAITS_FOR_DISK in states)


def _read(pid: int) -> ProcessReading | None:
    folder = _PROC / str(pid)
    fields = _fields(folder)
    if fields is None:
        return None
    title, state, busy_ticks = fields
    return ProcessReading(pid, title, state, _wchan(folder), busy_ticks, _threads(folder))


def _threads(folder: Path) -> Counter[tuple[str, str | None]]:
    counted: Counter[tuple[str, str | None]] = Counter()
    try:
        for thread in islice((folder / "task").iterdir(), _THREADS):
            if (fields := _fields(thread)) is not None:
                counted[fields[1], _wchan(thread)] += 1
    except OSError:
        return counted  # the process has ended meanwhile
    return counted


def _fields(folder: Path) -> tuple[str, str, int] | None:
    """Return title, state and CPU ticks (fields 2, 3, 14 and 15 of stat); None if it has ended."""
    try:
        text = (folder / "stat").read_text(errors="replace")
    except OSError:
        return None
    before, _, after = text.rpartition(")")
    fields = after.split()
    return before.partition("(")[2], fields[0], int(fields[11]) + int(fields[12])


def _wchan(folder: Path) -> str | None:
    try:
        name = (folder / "wchan").read_text(errors="replace")
    except OSError:
        return None
    return None if name in {"", "0"} else name
