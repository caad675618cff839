"""The processes of one run, read from /proc: known by a word in their environment, which every child inherits."""

import os
import signal
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

_PROC = Path("/proc")
_DEAD = "ZX"


class Role(StrEnum):
    """What a process of a launch is."""

    GATE = "gate"  # not the server yet: vllmd is noting down who it is
    LEADER = "leader"  # the API server
    ENGINE = "engine"
    WORKER = "worker"  # of tensor parallelism
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Process:
    """A process that ran when it was read: its number, its start in clock ticks since boot, its session."""

    pid: int
    ticks: int
    session: int
    state: str = "R"

    @property
    def identity(self) -> tuple[int, int]:
        """What no other process of this boot has."""
        return self.pid, self.ticks

    @property
    def lives(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        now = read(self.pid)
        return now is not None and now.ticks == self.ticks

    @property
    def words(self) -> str:
        """Its command line."""
        try:
            return (_PROC / str(self.pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""

    @property
    def role(self) -> Role:
        """What it is in its launch."""
        words = self.words
        if " -I -S -c " in words:
            return Role.GATE
        if "Worker" in words:
            return Role.WORKER
        if "EngineCore" in words or "vllmd_sim.engine" in words:
            return Role.ENGINE
        return Role.LEADER if "vllmd_sim" in words and self.pid == self.session else Role.OTHER

    def send(self, number: signal.Signals) -> None:
        """Send it a signal; nothing happens where it has ended."""
        if self.lives:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def __str__(self) -> str:
        """Return it as a report shows it."""
        return f"pid {self.pid} session {self.session} state {self.state} {self.role}: {self.words[:100]}"


def read(pid: int) -> Process | None:
    """Return a process that runs; None for one that has ended, collected or not (proc_pid_stat(5))."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in _DEAD else Process(pid, int(fields[19]), int(fields[3]), fields[0])


def in_sessions(sessions: Collection[int]) -> dict[int, list[Process]]:
    """Return the live processes of each of these sessions."""
    found: defaultdict[int, list[Process]] = defaultdict(list)
    for pid in _pids():
        try:
            session = os.getsid(pid)
        except OSError:
            continue
        if session in sessions and (process := read(pid)) is not None:
            found[session].append(process)
    return dict(found)


def family(word: str, but_for: Collection[int]) -> list[Process]:
    """Return the live processes with a word in their environment, but for these pids."""
    wanted = word.encode()
    return [
        process
        for pid in _pids()
        if pid not in but_for and wanted in _environ(pid) and (process := read(pid)) is not None
    ]


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir(_PROC) if entry.isdecimal()]  # noqa: PTH208 - twenty times a second


def _environ(pid: int) -> bytes:
    try:
        return (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return b""
