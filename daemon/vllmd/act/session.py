"""The processes of a launch: one session, recorded on disk, ended as a whole. No other is ever touched."""

import asyncio
import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import structlog

from vllmd.act.live_block import remove_block
from vllmd.act.server_file import ServerRecord, leftovers, options_mark, write_record
from vllmd.model.server import ProcessId
from vllmd.observe.gpu import process_name
from vllmd.observe.process_states import read_states
from vllmd.observe.processes import (
    boot_id,
    cgroup_of,
    exists,
    identity,
    listeners,
    own_zombies,
    session_members,
    signal_process,
    socket_owners,
)
from vllmd.ports import Clock

TITLE = "VLLM::"  # how vLLM's processes name themselves (utils/system_utils.py), over their command line
_KILL_WAIT_S = 30.0  # a process in the driver may take seconds to die

log = structlog.get_logger()


class Session:
    """The session of a launch: of the last one, or of one beside it (`record` is what an earlier vllmd left of it).

    What cannot be written to disk is still known in memory, and tried again.
    """

    def __init__(self, path: Path, record: ServerRecord | None, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._saved = True
        self.record = record

    @property
    def members(self) -> tuple[ProcessId, ...]:
        """The processes that were seen in the session."""
        return self.record.members if self.record else ()

    def begin(self, generation: int, argv: Sequence[str], block: str, pid: int) -> ProcessId:
        """Record the leader of a new launch and its control block; return its identity."""
        leader = identity(pid) or ProcessId(pid, 0)
        cgroup, mark = cgroup_of(pid) or "", options_mark(argv[1:])
        self._remember(ServerRecord(boot_id(), generation, leader, (leader,), cgroup, mark, block=block))
        return leader

    def ending(self) -> None:
        """Record that the end of the server is asked for: a vllmd that comes after shall not take it over."""
        if self.record is not None and not self.record.ending:
            self._remember(replace(self.record, ending=True))

    def ready(self) -> None:
        """Record that the server has served."""
        if self.record is not None and not self.record.ready:
            self._remember(replace(self.record, ready=True))

    def leave(self) -> bool:
        """Record that the server is to outlive this vllmd; return whether one lives that can."""
        if self.record is None or self.record.ending or not self.living():
            return False
        self._remember(replace(self.record, left=True))
        return True

    def taken_over(self) -> None:
        """Record that a server that was left is cared for again."""
        if self.record is not None and self.record.left:
            self._remember(replace(self.record, left=False))

    def disown(self) -> None:
        """Take what is on record for another's: it is not touched. The control block was ours, and goes."""
        if self.record is not None:
            remove_block(self.record.block)
        self.record = None

    def succeed(self, other: "Session") -> None:
        """Be the session that was another one until now, which is none then; both on disk, this one first."""
        if other.record is not None:
            self._remember(other.record)
        other.forget()

    def forget(self) -> None:
        """Take a session of which nothing lives, or that another record holds, off this one."""
        self.record = None
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def note_members(self) -> None:
        """Record who is in the session now: they prove it to be ours once the leader is gone."""
        record = self.record
        if record is None:
            return
        members = session_members(record.leader.pid) if exists(record.leader) else record.members
        if set(members) != set(record.members) or not self._saved:
            self._remember(replace(record, members=members))

    def note_orphans(self) -> None:
        """Record who is left in the session of a leader whose end was just seen, also if it was collected at once.

        The kernel gives the number of a session to no other while a process is in it.
        """
        record = self.record
        if record is not None and identity(record.leader.pid) is None:
            self._remember(replace(record, members=(*record.members, *session_members(record.leader.pid))))

    def listens(self, port: int) -> bool:
        """Whether a process of the session listens on the port: its /health is the server's own, then."""
        inodes = listeners(port)
        if self.record is None or not inodes:
            return False
        return bool(socket_owners(inodes, [p.pid for p in session_members(self.record.leader.pid)]))

    def is_ours(self, pid: int) -> bool:
        """Return whether a pid was seen in the session."""
        return self.record is not None and pid in {p.pid for p in (self.record.leader, *self.record.members)}

    def living(self) -> tuple[ProcessId, ...]:
        """Return the processes of the session that live."""
        return leftovers(self.record)

    async def clear(self) -> tuple[ProcessId, ...]:
        """SIGKILL whatever lives, leader or orphans; return what outlives that.

        Called before a dead leader of our own is collected: until then the kernel gives its number to no other session.
        """
        self.note_members()
        deadline = self._clock.monotonic_s() + _KILL_WAIT_S
        while left := self.living():
            for process in left:
                signal_process(process, signal.SIGKILL)
            if self._clock.monotonic_s() > deadline:
                return left
            await asyncio.sleep(0.02)
        return ()

    def kill_engine(self) -> None:
        """SIGKILL the engine and its workers, by the titles that they give themselves, and nothing else of it."""
        living = {process.pid: process for process in self.living() if self.record and process != self.record.leader}
        for reading in read_states(living.values()):
            if reading.title.startswith(TITLE):
                signal_process(living[reading.pid], signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL whatever lives, without waiting for its end."""
        for process in self.living():
            signal_process(process, signal.SIGKILL)

    def collect(self, *children: int | None) -> None:
        """Collect dead orphans that became our children (we are their subreaper), but not the children themselves."""
        for pid in own_zombies():
            if pid not in children:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _remember(self, record: ServerRecord) -> None:
        self.record = record
        try:
            write_record(self._path, record)
        except OSError as error:
            if self._saved:
                log.warning("the server's processes cannot be recorded", path=str(self._path), reason=str(error))
            self._saved = False
            return
        self._saved = True


def named(processes: Iterable[ProcessId]) -> str:
    """Return processes as an operator knows them."""
    return ", ".join(f"pid {p.pid} {process_name(p.pid)}" for p in processes)
