"""The end of processes: waited for without a look at intervals, and brought about where a vllmd left some."""

import asyncio
import os
import signal

from vllmd.act.session import Session
from vllmd.model.server import ProcessId
from vllmd.observe.processes import alive, exists, signal_process


async def ended_process(leader: ProcessId) -> None:
    """Wait for the end of a process; a child is left to be collected: its session stays ours until then."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    try:
        descriptor = os.pidfd_open(leader.pid)
    except ProcessLookupError:
        return
    loop.add_reader(descriptor, _resolve, future)
    try:
        if exists(leader):  # checked after the pidfd was opened: from here on the pid cannot be another's
            await future
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def reap(session: Session, grace_s: float) -> tuple[ProcessId, ...]:
    """End what lives of the last launch: SIGTERM its leader, wait, SIGKILL the rest; return what outlives that."""
    record = session.record
    if record is not None and alive(record.leader):
        session.note_members()
        session.ending()
        signal_process(record.leader, signal.SIGTERM)
        await asyncio.wait({asyncio.ensure_future(ended_process(record.leader))}, timeout=grace_s)
        session.note_orphans()
    return await session.clear()
