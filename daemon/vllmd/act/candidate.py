"""The candidate: the next server, prepared beside the serving one up to the gate before its device.

    begun ─on record─▶ spawned ─all its workers are there─▶ at the gate ─▶ handed over to be the server
                          ├─ it ends ─▶ Exited: whoever decides reads its log
                          └─ park_timeout, or it does not stop at its gate ─▶ ended, GateMissed
    given up at any moment, or left by an earlier vllmd ─▶ ended, and nothing is told

It holds no memory of the device until its gate opens, and its port is bound, but does not listen.
"""

import asyncio
import os
import subprocess
from collections.abc import Callable, Coroutine
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

import structlog

from vllmd.act.beside import local_ranks
from vllmd.act.ending import ended_process
from vllmd.act.environment import launch_environment
from vllmd.act.launch_logs import open_log
from vllmd.act.launcher import Launcher
from vllmd.act.live_block import LiveBlock, remove_block
from vllmd.act.session import Session, named
from vllmd.act.spawn import spawn
from vllmd.model.server import AtGate, Exited, GateMissed, Launch, LaunchRefused, ProcessId, ServerEvent, Spawned
from vllmd.observe.cgroup import oom_kills
from vllmd.ports import Clock

log = structlog.get_logger()

_POLL_S = 0.2  # between looks at words in memory, which send no event


class Candidate:
    """At most one launch beside the server. `tell` is told what becomes of it."""

    def __init__(self, session: Session, clock: Clock, tell: Callable[[ServerEvent | BaseException], None]) -> None:
        self._clock = clock
        self._tell = tell
        self._task: asyncio.Task[None] | None = None  # the last one
        self._under_way: set[asyncio.Task[None]] = set()
        self._ends: asyncio.Task[None] | None = None  # of what was given up
        self._at_gate: int | None = None  # the generation that waits there
        self.session = session
        self.live = LiveBlock()
        self.child: subprocess.Popen[bytes] | None = None

    def prepare(self, launch: Launch, launcher: Launcher, serving: int | None) -> None:
        """Begin beside the generation that is `serving`: AtGate follows, or GateMissed, Exited or LaunchRefused."""
        self._task = self._following(self._prepare(launch, launcher, serving, frozenset(self._under_way)))

    def give_up(self) -> None:
        """End it, also one that an earlier vllmd left. Nothing is told."""
        former, self._at_gate = frozenset(self._under_way), None
        if self._task is not None and self._task is not self._ends:
            self._task.cancel()
        self._task = self._ends = self._following(self._end(former))

    def end_now(self) -> None:
        """Send its processes to their end, without a wait: vllmd ends, and the next one looks after what is left."""
        self.session.kill()

    async def settled(self) -> None:
        """Wait until what was given up has ended."""
        if self._ends is not None:
            await asyncio.wait({self._ends})

    @property
    def at_gate(self) -> bool:
        """Whether one waits at its gate."""
        return self._at_gate is not None

    def waits(self, launch: Launch) -> bool:
        """Return whether this launch waits at the gate, still: a worker goes on when it has waited for too long."""
        return self._at_gate == launch.generation and not self.live.gate().passed and self.session.living() != ()

    def hand_over(self, session: Session, live: LiveBlock) -> "subprocess.Popen[bytes] | None":
        """Let the launch that waits be the server's: on record first, then its gate opens. Return its process."""
        session.succeed(self.session)
        live.succeed(self.live)
        live.open_gate()
        child, self.child, self._at_gate = self.child, None, None
        return child

    # Its life until it is handed over

    async def _prepare(
        self, launch: Launch, launcher: Launcher, serving: int | None, former: AbstractSet["asyncio.Task[None]"]
    ) -> None:
        if former:
            await asyncio.wait(former)
        before = oom_kills()
        try:
            self.child, leader = await self._spawn(launch, launcher, serving)
        except OSError as error:
            await self._clear()
            reason = f"{launch.argv[0]} cannot be started: {error.strerror}"
            self._tell(LaunchRefused(launch.generation, "spawn-failed", reason))
            return
        self._tell(Spawned(launch.generation, leader))
        missed = await self._until_at_gate(launch, leader, launcher.park_timeout_s)
        if missed is None:
            self._at_gate = launch.generation
            self._tell(AtGate(launch.generation))
            return
        code = await self._clear()
        killed = None if before is None else max(0, (oom_kills() or 0) - before)
        ended = Exited(launch.generation, code, asked=False, oom_kills=killed)
        self._tell(GateMissed(launch.generation, missed) if missed else ended)

    async def _spawn(
        self, launch: Launch, launcher: Launcher, serving: int | None
    ) -> tuple["subprocess.Popen[bytes]", ProcessId]:
        output = open_log(launcher.log_dir, launch.generation, launcher.keep_logs, serving)
        try:
            environment = self.live.prepare(
                launch_environment(launcher.environment, launch.flags, launch.baseline),
                launch.flags,
                launcher.shim_folder,
                "",
                address=launcher.address,
                wanted=True,
            )
            self.live.close_gate(launcher.gate_s)
            record = partial(self.session.begin, launch.generation, launch.argv, self.live.path)
            return await spawn(launch.argv, environment, output, record)
        finally:
            os.close(output)

    async def _until_at_gate(self, launch: Launch, leader: ProcessId, limit_s: float) -> str | None:
        """Wait until all its workers wait at the gate (None); return why they will not, empty if it has ended."""
        ended = asyncio.ensure_future(ended_process(leader))
        began_s, ranks = self._clock.monotonic_s(), local_ranks(launch.flags)
        try:
            while not ended.done():
                self.session.note_members()
                gate, waited_s = self.live.gate(), self._clock.monotonic_s() - began_s
                if gate.off or gate.passed:
                    return gate.off or "it did not stop at its gate"
                if gate.waiting >= ranks:
                    log.info(
                        "the next server waits at its gate", generation=launch.generation, took_s=round(waited_s, 1)
                    )
                    return None
                if waited_s > limit_s:
                    return f"it was not at its gate within engine.park_timeout ({limit_s:.0f} s)"
                await asyncio.wait({ended}, timeout=_POLL_S)
            return ""
        finally:
            ended.cancel()

    async def _end(self, former: AbstractSet["asyncio.Task[None]"]) -> None:
        if former:  # one may be about to spawn
            await asyncio.wait(former)
        if living := self.session.living():
            log.info("ending what was prepared beside the server", processes=named(living))
        await self._clear()

    async def _clear(self) -> int | None:
        """End all of it, and forget it; return its exit code, None where it cannot be known."""
        self.session.note_orphans()
        left, record = await self.session.clear(), self.session.record
        child, self.child = self.child, None
        code = child.poll() if child is not None else None
        self.live.remove(self.live.path)
        if left:
            log.warning("what was prepared beside the server does not end, even by SIGKILL", processes=named(left))
            return code
        if record is not None:
            remove_block(record.block)
        self.session.forget()
        return code

    def _following(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._tell(error)
