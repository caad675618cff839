"""The server's processes: launched in a session of their own, proved to be ours, stopped, and never left over.

One launch is one task (`_live`): clear the way → spawn → prove ready → wait for the end → clear the session. What
happens comes back as events; whoever decides reads them and nothing else.
"""

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from vllmd.act.adoption import ForeignError, what_was_left
from vllmd.act.beside import beside_refused, room_on_host
from vllmd.act.candidate import Candidate
from vllmd.act.ending import ended_at_once, ended_by_leader, ended_process
from vllmd.act.environment import launch_environment
from vllmd.act.evidence import keep_evidence
from vllmd.act.launch_logs import log_path, open_log
from vllmd.act.launcher import Launcher
from vllmd.act.live_block import LiveBlock
from vllmd.act.planned_restart import PlannedRestart
from vllmd.act.progress import StartProgress
from vllmd.act.server_file import left_records
from vllmd.act.session import Session, named
from vllmd.act.spawn import spawn
from vllmd.act.way import Way
from vllmd.model.flags import Flags, api_servers
from vllmd.model.handover import Handover
from vllmd.model.server import (
    Exited,
    Hung,
    Launch,
    LaunchRefused,
    Left,
    ProcessId,
    Ready,
    ServerEvent,
    Spawned,
    StartStalled,
)
from vllmd.observe.cgroup import oom_kills
from vllmd.observe.process_states import read_states
from vllmd.observe.processes import alive
from vllmd.ports import Clock, GpuReader

log = structlog.get_logger()

_POLL_S = 0.2  # between looks at a start
_STOP_GRACE_S = 20.0  # beyond the drain: vLLM's worker grace 5 s + 4 s + 5 s, and its teardown (4.4 s on an H200)
_START_STOP_GRACE_S = 10.0  # SIGTERM late in a start is ignored
_BUSY_FACTOR = 6  # a start whose only sign is CPU (a long compilation) is given this many start timeouts


class ServerProcess:
    """Implements `ports.Server` with real processes. `may_end`: whether a server that stands still may be ended now."""

    def __init__(
        self,
        launcher: Launcher,
        clock: Clock,
        gpu: GpuReader,
        healthy: Callable[[], Awaitable[bool]],
        may_end: Callable[[], bool] = lambda: True,
    ) -> None:
        self._launcher = launcher
        self._clock = clock
        self._gpu = gpu
        self._healthy, self._may_end = healthy, may_end
        self._events: asyncio.Queue[ServerEvent | BaseException] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping, self._hurried, self._hanging = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._generation: int | None = None
        self._served = self._following = False  # under an earlier vllmd; whether another launch is to follow the stop
        self._hung: Hung | None = None  # told when the launch has been ended for it
        server, beside = left_records(launcher.record_path, launcher.candidate_path, launcher.log_dir)
        self.session = Session(launcher.record_path, server, clock)
        self._candidate = Candidate(Session(launcher.candidate_path, beside, clock), clock, self._events.put_nowait)
        self.live = LiveBlock()
        self._planned = PlannedRestart(self.live, clock, self._followed)

    async def events(self) -> ServerEvent:
        """Wait for the next event; a bug in a launch's task is raised here."""
        event = await self._events.get()
        if isinstance(event, BaseException):
            raise event
        return event

    def launch(self, launch: Launch) -> None:
        """Begin a launch. RuntimeError while another one lives: never two servers."""
        self._begin(launch, self._live(launch))

    def configure(self, launcher: Launcher) -> None:
        """Let the next launch be made by another launcher, and this server's drain and start be timed by it."""
        self._launcher = launcher

    def left(self) -> Left:
        """Return what an earlier vllmd left; another's process that is on record is named, and taken off it."""
        try:
            return what_was_left(self.session.record)
        except ForeignError as error:
            log.warning("a process on record is not ours and is left alone", reason=str(error))
            self.session.disown()
            return Left()

    def adopt(self, launch: Launch) -> None:
        """Take over the server that was left; no signal is sent. RuntimeError while another launch lives."""
        self._begin(launch, self._taken_over(launch))

    def leave(self) -> bool:
        """Let the server outlive this vllmd; return whether there is one that can. What is beside it goes."""
        left = not self._stopping.is_set() and self.session.leave()
        if left:
            self._candidate.end_now()
        return left

    def is_ours(self, pid: int) -> bool:
        """Return whether a pid is one of the server's, or of the launch that is prepared beside it."""
        return self.session.is_ours(pid) or self._candidate.session.is_ours(pid)

    def no_gate(self, flags: Flags) -> str | None:
        """Return why a launch with these flags cannot be prepared beside the server; None where it can."""
        if not self._launcher.gate:
            return "engine.gate is off"
        return beside_refused(flags, self.plain_restart(flags), self.live.gate(), room_on_host(self.session.living()))

    def prepare(self, launch: Launch) -> None:
        """Begin a launch beside the server, up to its gate: AtGate follows, or GateMissed, Exited or LaunchRefused.

        From AtGate on it is launched by `launch`, when the server has ended.
        """
        self._candidate.prepare(launch, self._launcher, self._generation)

    def give_up(self) -> None:
        """End the launch that is prepared beside the server; nothing follows."""
        self._candidate.give_up()

    def _begin(self, launch: Launch, task: Coroutine[Any, Any, None]) -> None:
        if self._task is not None and not self._task.done():
            task.close()
            raise RuntimeError("a launch is under way")
        self._stopping, self._hurried, self._hanging = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._generation, self._hung, self._child = launch.generation, None, None
        self._served = self._following = False
        self._task = asyncio.create_task(task)
        self._task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.put_nowait(error)

    def stop(self) -> None:
        """Drain and stop the current launch; Exited(asked=True) follows."""
        self._following = False
        self._planned.release(served=False)
        self.give_up()
        self._stopping.set()

    def restart(self) -> None:
        """Drain and stop the current launch for another one to follow; Exited(asked=True) follows.

        Where it can be, the port is parked until the next one serves, or `release`.
        """
        self._following = True
        self._stopping.set()

    def _followed(self) -> bool:
        """Whether the next server shares the port: by the shim, which one that waits at its gate has."""
        return self._launcher.shim or self._candidate.at_gate

    def plain_restart(self, flags: Flags) -> str | None:
        """Return why connections cannot wait through a restart of the server with these flags; None where they can."""
        return self._planned.plain(flags)

    @property
    def parked(self) -> bool:
        """Whether connections wait for the next launch."""
        return self._planned.parked

    def release(self) -> Handover | None:
        """Let no connection wait any longer for a next launch; return how the restart went, None without one."""
        return self._planned.release()

    async def released(self) -> None:
        """Wait, within limits, for the answers to connections whose launch does not come, and for one given up."""
        await self._planned.released()
        await self._candidate.settled()

    def end(self, silent_s: float, reason: str) -> None:
        """End a serving launch that stands still, at once and without a drain; Hung follows, or Exited if it ended."""
        if self._generation is not None:
            self._hung = Hung(self._generation, silent_s, reason)
            self._hanging.set()

    def kill(self) -> None:
        """End a launch that is being stopped without waiting for its drain."""
        self._hurried.set()

    def note_members(self) -> None:
        """Record who is in the session now, and collect dead orphans."""
        self.session.note_members()
        self._collect()

    def _collect(self) -> None:
        """Collect dead orphans, but none of our children, whose exit code is still to be asked for."""
        self.session.collect(*(child.pid for child in (self._child, self._candidate.child) if child is not None))

    async def _live(self, launch: Launch) -> None:
        waits = self._candidate.waits(launch)
        if not waits:
            self._candidate.give_up()
            await self._candidate.settled()
        refused = await self._clear_the_way(launch, bound=waits)
        if refused is not None or self._stopping.is_set():
            self._candidate.give_up()
            await self._candidate.settled()
            await self._events.put(refused or Exited(launch.generation, None, asked=True))
            return
        before = oom_kills()
        try:
            leader = await self._spawned(launch, waits=waits)
        except OSError as error:
            reason = f"{launch.argv[0]} cannot be started: {error.strerror}"
            await self._events.put(LaunchRefused(launch.generation, "spawn-failed", reason))
            return
        await self._watch(launch, leader, before)

    async def _taken_over(self, launch: Launch) -> None:
        """Go on with a launch of an earlier vllmd. Its exit code will not be known: it is no child of ours."""
        record, before = self.session.record, oom_kills()
        assert record is not None  # noqa: S101 - it was left
        self._served = record.ready
        self._candidate.give_up()
        self.live.take_over(record.block)
        self.session.taken_over()
        await self._watch(launch, record.leader, before)

    async def _watch(self, launch: Launch, leader: ProcessId, oom_kills_before: int | None) -> None:
        """Tell that it has a process, see it to its end, end what it leaves, and tell how it ended."""
        await self._events.put(Spawned(launch.generation, leader))
        stalled = await self._until_end(launch, leader)
        self.session.note_orphans()
        await self.session.clear()
        code = self._child.poll() if self._child is not None else None
        self._collect()
        self._planned.server_ended()
        self.live.remove(self.live.path)
        if self._stopping.is_set():
            await self._candidate.settled()  # one that was given up has ended, then
        killed = None if oom_kills_before is None else max(0, (oom_kills() or 0) - oom_kills_before)
        await self._events.put(stalled or Exited(launch.generation, code, self._stopping.is_set(), killed))

    # Before the spawn

    async def _clear_the_way(self, launch: Launch, *, bound: bool) -> LaunchRefused | None:
        """End what our own former launch left, then wait (each within a limit) for its port and its GPU memory."""
        if before := self.session.living():
            log.warning("ending what an earlier launch left", processes=named(before))
            await self._drain_what_was_left()
        if left := await self.session.clear():
            reason = f"processes of our former launch do not end, even by SIGKILL: {named(left)}"
            return LaunchRefused(launch.generation, "stop-failed", reason, named(left))
        way = Way(self._launcher, self.session, self._planned, self._gpu, self._clock, self._stopping, bound)
        return await way.refused(launch.generation)

    async def _drain_what_was_left(self) -> None:
        """Let a server finish its requests, also one that an earlier vllmd had begun to drain."""
        record = self.session.record
        if record is None or not alive(record.leader):
            return
        self.session.note_members()
        ended = asyncio.ensure_future(ended_process(record.leader))
        try:
            await self._terminate(ended, serving=True, asked=record.ending)
        finally:
            ended.cancel()
        self.session.note_orphans()

    # From the spawn to the end

    async def _spawned(self, launch: Launch, *, waits: bool) -> ProcessId:
        """Return the leader of a launch, spawned now, or let on from the gate at which it `waits`."""
        launcher, former = self._launcher, self.session.record
        if waits:
            self._child = self._candidate.hand_over(self.session, self.live)
            assert self.session.record is not None  # noqa: S101 - it was spawned
            return self.session.record.leader
        output = open_log(launcher.log_dir, launch.generation, launcher.keep_logs)
        try:
            folder, block = launcher.shim_folder, former.block if former else ""
            planned = launch_environment(launcher.environment, launch.flags, launch.baseline)
            environment = self.live.prepare(
                planned, launch.flags, folder, block, address=launcher.address, wanted=launcher.shim
            )
            record = partial(self.session.begin, launch.generation, launch.argv, self.live.path)
            self._child, leader = await spawn(launch.argv, environment, output, record)
        finally:
            os.close(output)
        return leader

    async def _until_end(self, launch: Launch, leader: ProcessId) -> StartStalled | Hung | None:
        """Watch a server until it has ended; return a stall or a hang if that is why we ended it."""
        ended = asyncio.ensure_future(ended_process(leader))
        stopping = asyncio.ensure_future(self._stopping.wait())
        hanging = asyncio.ensure_future(self._hanging.wait())
        start = asyncio.ensure_future(self._start(launch))
        stalled: StartStalled | Hung | None = None
        try:
            await asyncio.wait({ended, stopping, start}, return_when=asyncio.FIRST_COMPLETED)
            serving = self._served
            if start.done():
                stalled = start.result()
                serving = serving or stalled is None
                if stalled is None:
                    self.session.note_members()
                    self.session.ready()
                    await self._events.put(Ready(launch.generation, self.release()))
                    await asyncio.wait({ended, stopping, hanging}, return_when=asyncio.FIRST_COMPLETED)
            hung = stalled or self._hung
            if isinstance(hung, Hung) and not ended.done():
                stalled = hung
                self.session.note_members()
                processes, gpus = read_states(self.session.living()), await self._gpu.read()
                launcher, now_s = self._launcher, self._clock.now_s()
                keep_evidence(hung, now_s, processes, gpus, launcher.log_dir, launcher.mask)
                await ended_at_once(self.session, ended)
            elif not ended.done():
                if serving and self._following:
                    await self._park_and_drain(launch, ended)
                await self._terminate(ended, serving=serving)
        finally:
            for task in (ended, stopping, hanging, start):
                task.cancel()
        return stalled

    async def _start(self, launch: Launch) -> StartStalled | Hung | None:
        """Wait until the server is proved ready (None), or until its start shows no progress for too long.

        One that has served before, or listens, answers soon, or its main process stands still: that is a hang.
        """
        progress = StartProgress(log_path(self._launcher.log_dir, launch.generation), self._clock.monotonic_s())
        up = self._served  # vLLM listens when all else of its start is done
        while not ((listens := self.session.listens(self._launcher.port)) and await self._healthy()):
            await asyncio.sleep(_POLL_S)
            self.note_members()
            up = up or listens
            timeout_s = self._launcher.stall_timeout_s if up else self._launcher.start_timeout_s
            record = self.session.record
            alone = up and record is not None and api_servers(launch.flags) == 1
            looked_at = (record.leader,) if alone and record is not None else self.session.members
            silence = progress.look(looked_at, self._clock.monotonic_s())
            if up and not self._may_end():
                continue  # until the operator's pause ends: the one wait whose limit is his
            if up and silence.of_all_s > timeout_s:
                which = "taken over" if self._served else "it listens"
                text = f"{which}, no answer for {silence.of_all_s:.0f} s, and its main process stood still"
                return Hung(launch.generation, silence.of_all_s, text)
            if silence.of_all_s > timeout_s or silence.but_for_cpu_s > _BUSY_FACTOR * timeout_s:
                return StartStalled(launch.generation, silence.but_for_cpu_s)
        return None

    async def _park_and_drain(self, launch: Launch, ended: "asyncio.Future[None]") -> None:
        """Let new connections wait for the next launch, and this one finish what it has."""
        launcher, limits = self._launcher, self._launcher.restart_limits
        hurried = asyncio.ensure_future(self._hurried.wait())
        await self._planned.announce(launch.flags, limits, {ended, hurried})
        gated = self._candidate.at_gate
        if self._following and self._planned.park(launcher.host, launcher.port, launch.flags, limits, gated=gated):
            await self._planned.drain(limits, {ended, hurried})
        hurried.cancel()

    async def _terminate(self, ended: "asyncio.Future[None]", *, serving: bool, asked: bool = False) -> None:
        """End what runs by its leader; one that was `asked` to end already is only waited for."""
        drained = self._planned.parked and not self._planned.turns_away
        drain_s = 0.0 if drained else self._launcher.drain_timeout_s  # a parked one is drained already
        grace_s = drain_s + _STOP_GRACE_S if serving else _START_STOP_GRACE_S

        def empty() -> bool:
            return serving and self._planned.has_nothing_left

        await ended_by_leader(self.session, ended, self._hurried, grace_s, asked=asked, empty=empty)
