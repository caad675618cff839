"""The end of processes: waited for without a look at intervals, and brought about where a vllmd left some."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

from vllmd.act.session import Session
from vllmd.model.server import ProcessId
from vllmd.observe.processes import alive, exists, signal_process

_KILLED_WAIT_S = 5.0  # from SIGKILL to the end of the leader
# From SIGTERM to the end of an engine with nothing to do: long enough for vLLM to know that it is being stopped. vLLM
# 0.32 on CPU ended by itself in 4.8 s (Python's teardown in the worker, then in the engine), and in 0.9 s with this.
_EMPTY_S = 0.5


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


async def ended_by_leader(
    session: Session,
    ended: "asyncio.Future[None]",
    hurried: asyncio.Event,
    grace_s: float,
    *,
    asked: bool,
    empty: Callable[[], bool],
) -> None:
    """SIGTERM the leader only: engine and workers have handlers of their own that would break its drain.

    One that was `asked` to end already is only waited for. Where the server is `empty`, its engine is not given time to
    end by itself, as without --shutdown-timeout vLLM gives it none: all connections wait for that. Past the grace
    (seconds), or once somebody hurries, all of it is ended at once.
    """
    session.ending()
    if session.record is not None and not asked:
        signal_process(session.record.leader, signal.SIGTERM)
    hurry = asyncio.ensure_future(hurried.wait())
    either: set[asyncio.Future[Any]] = {ended, hurry}
    if empty():
        done, _ = await asyncio.wait(either, timeout=_EMPTY_S, return_when=asyncio.FIRST_COMPLETED)
        if not done and empty():  # a connection that was kept may have brought a request
            session.kill_engine()
    await asyncio.wait(either, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    if not ended.done():
        await ended_at_once(session, ended)


async def ended_at_once(session: Session, ended: "asyncio.Future[None]") -> None:
    """SIGKILL all of the session, and wait until the end of its leader is seen."""
    session.ending()
    await session.clear()
    await asyncio.wait({ended}, timeout=_KILLED_WAIT_S)


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
