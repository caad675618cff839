"""The processes of the last launch: one session, recorded on disk, ended as a whole. No other is ever touched."""

import asyncio
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import structlog

from vllmd.act.server_file import ServerRecord, leftovers, read_record, write_record
from vllmd.model.server import ProcessId
from vllmd.observe.gpu import process_name
from vllmd.observe.processes import boot_id, exists, identity, own_zombies, session_members, signal_process
from vllmd.ports import Clock

_KILL_WAIT_S = 30.0  # a process in the driver may take seconds to die

log = structlog.get_logger()


class Session:
    """The session of the last launch. What cannot be written to disk is still known in memory, and tried again."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._saved = True
        self.record: ServerRecord | None = read_record(path)

    @property
    def members(self) -> tuple[ProcessId, ...]:
        """The processes that were seen in the session."""
        return self.record.members if self.record else ()

    def begin(self, generation: int, pid: int) -> ProcessId:
        """Record the leader of a new launch; return its identity."""
        leader = identity(pid) or ProcessId(pid, 0)
        self._remember(ServerRecord(boot_id(), generation, leader, (leader,)))
        return leader

    def note_members(self) -> None:
        """Record who is in the session now: they prove it to be ours once the leader is gone."""
        record = self.record
        if record is None:
            return
        members = session_members(record.leader.pid) if exists(record.leader) else record.members
        if set(members) != set(record.members) or not self._saved:
            self._remember(ServerRecord(record.boot_id, record.generation, record.leader, members))

    def is_ours(self, pid: int) -> bool:
        """Return whether a pid was seen in the session."""
        return self.record is not None and pid in {p.pid for p in (self.record.leader, *self.record.members)}

    def living(self) -> tuple[ProcessId, ...]:
        """Return the processes of the session that live."""
        return leftovers(self.record)

    async def clear(self) -> tuple[ProcessId, ...]:
        """SIGKILL whatever lives, leader or orphans; return what outlives that.

        Called before a dead leader is collected: until then the kernel gives its number to no other session.
        """
        deadline = self._clock.monotonic_s() + _KILL_WAIT_S
        while left := self.living():
            for process in left:
                signal_process(process, signal.SIGKILL)
            if self._clock.monotonic_s() > deadline:
                return left
            await asyncio.sleep(0.02)
        return ()

    def reap(self, child: int | None) -> None:
        """Collect dead orphans that became our children (we are their subreaper), but not the child itself."""
        for pid in own_zombies():
            if pid != child:
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
