"""The workers of tensor parallelism: one process a rank, children of the engine, which waits for all of them.

With one GPU there are none: the engine does a worker's work itself (vLLM's UniProcExecutor). V0 has one less, its
engine being the first rank. They hold no memory of the simulated GPU and compute nothing: they answer.
"""

import asyncio
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from vllmd_sim.config import EngineConfig
from vllmd_sim.lines import Console
from vllmd_sim.own_process import end_process, set_title
from vllmd_sim.versions import TITLES_SINCE, at_least

_CALL = b"."  # any other message is the code with which the worker is to end
_MESSAGE = 16  # bytes, the longest message
_GRACE_S = 4.0  # then what does not end is killed (_ensure_worker_termination in multiproc_executor.py)


class WorkerLostError(Exception):
    """A worker ended though nobody told it to: by a signal if the code is negative."""

    def __init__(self, rank: int, pid: int, code: int) -> None:
        super().__init__(f"worker {rank}, pid {pid}, ended with {code}")
        self.rank = rank
        self.pid = pid
        self.code = code


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker, as its engine sees it."""

    rank: int
    pid: int
    pidfd: int
    channel: socket.socket
    console: Console


class Workers:
    """All workers of one engine. Made by `hire`; false where there are none.

    `ready`: they have loaded their weights, and are watched from then on.
    """

    def __init__(self, members: Sequence[Worker]) -> None:
        self.ready = False
        self._members = tuple(members)

    @classmethod
    def hire(cls, config: EngineConfig, version: str) -> "Workers":
        """Start the workers. Only before the engine has threads or an event loop: they are forks of it."""
        if config.tensor_parallel == 1:
            return cls(())
        return cls([_fork(rank, config, version) for rank in range(int(config.v0), config.tensor_parallel)])

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._members)

    def console(self, rank: int, engine: Console) -> Console:
        """Return where the work of a rank is told of: by its worker or, where it has none, by the engine."""
        return next((member.console for member in self._members if member.rank == rank), engine)

    def rest(self, seconds: float) -> None:
        """Let the time of a start's phase pass, then wait until every worker answers; raises WorkerLostError."""
        ends_s = time.monotonic() + seconds
        self._watch([], seconds)
        time.sleep(max(0.0, ends_s - time.monotonic()))  # the simulated time of the phase itself
        self._call()
        waited_for = {member.channel.fileno() for member in self._members}
        while waited_for:  # no limit but the API server's: vLLM's calls of a start have none
            for ready in self._watch(list(waited_for), None):
                with suppress(ConnectionError):
                    os.read(ready, _MESSAGE)
                waited_for.remove(ready)

    async def answered(self) -> None:
        """Wait until every worker has answered; for ever where one has ended, which `lost` tells."""
        self._call()
        loop = asyncio.get_running_loop()
        for member in self._members:
            answer = b""
            with suppress(ConnectionError):
                answer = await loop.sock_recv(member.channel, _MESSAGE)
            if not answer:
                await loop.create_future()

    async def lost(self) -> NoReturn:
        """Wait until a worker ends; raises WorkerLostError."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        for member in self._members:
            loop.add_reader(member.pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            for member in self._members:
                loop.remove_reader(member.pidfd)
        raise _loss(next(member for member in self._members if _ended(member, 0)))

    def strike(self, code: int) -> None:
        """Have the last worker end with a code, by a signal if it is negative."""
        self._members[-1].channel.send(str(code).encode())

    def lose_one(self) -> None:
        """Wait, in a start, until a worker ends; raises WorkerLostError."""
        self._watch([], None)

    def dismiss(self) -> None:
        """End them all: they see that their engine goes; what does not end in time is killed."""
        deadline_s = time.monotonic() + _GRACE_S
        for member in self._members:
            member.channel.close()
        for member in self._members:
            if not _ended(member, max(0.0, deadline_s - time.monotonic())):
                os.kill(member.pid, signal.SIGKILL)
            with suppress(ChildProcessError):  # one that was lost is reaped
                os.waitpid(member.pid, 0)

    def _call(self) -> None:
        for member in self._members:
            with suppress(ConnectionError):
                member.channel.send(_CALL)

    def _watch(self, readable: list[int], seconds: float | None) -> list[int]:
        """Return which descriptors can be read within the time, None for no limit; raises WorkerLostError."""
        if not self._members:
            return []
        by_end = {member.pidfd: member for member in self._members}
        ready, _, _ = select.select([*by_end, *readable], [], [], seconds)
        for descriptor in ready:
            if descriptor in by_end:
                raise _loss(by_end[descriptor])
        return ready


def _ended(worker: Worker, within_s: float) -> bool:
    return bool(select.select([worker.pidfd], [], [], within_s)[0])


def _loss(worker: Worker) -> WorkerLostError:
    _, status = os.waitpid(worker.pid, 0)
    return WorkerLostError(worker.rank, worker.pid, os.waitstatus_to_exitcode(status))


def _fork(rank: int, config: EngineConfig, version: str) -> Worker:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    named = at_least(version, TITLES_SINCE) and not config.v0
    name = "VllmWorkerProcess" if config.v0 else f"Worker_TP{rank}" if named else f"VllmWorker rank={rank}"
    pid = os.fork()
    if pid == 0:
        try:
            _work(theirs.fileno(), Console(name, version), f"VLLM::{name}" if named else None)
        finally:
            os._exit(1)
    theirs.close()
    ours.settimeout(0)
    return Worker(rank, pid, os.pidfd_open(pid), ours, Console(name, version, pid))


def _work(channel: int, console: Console, title: str | None) -> NoReturn:
    """Answer the engine's calls until it is gone or a message says how to end."""
    os.closerange(3, channel)  # the engine's own, which nobody else may hold open
    os.closerange(channel + 1, os.sysconf("SC_OPEN_MAX"))
    if title is not None:
        set_title(title)
        signal.signal(signal.SIGTERM, lambda *_: _terminated(console))
    while message := os.read(channel, _MESSAGE):
        if message != _CALL:
            end_process(int(message))
        os.write(channel, _CALL)
    os._exit(0)


def _terminated(console: Console) -> NoReturn:
    console.warning("multiproc_executor.py:884", "WorkerProc was terminated")
    os._exit(0)
