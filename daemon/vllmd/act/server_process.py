"""The server's processes: launched in a session of their own, proved to be ours, stopped, and never left over.

One launch is one task (`_live`): clear the way → spawn → prove ready → wait for the end → clear the session. What
happens comes back as events; whoever decides reads them and nothing else.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from vllmd.act.launch_logs import log_path, open_log
from vllmd.act.port import holders, is_free
from vllmd.act.progress import StartProgress
from vllmd.act.server_file import ServerRecord, leftovers, read_record, write_record
from vllmd.model.server import Exited, Launch, LaunchRefused, ProcessId, Ready, ServerEvent, Spawned, StartStalled
from vllmd.observe.gpu import process_name
from vllmd.observe.processes import (
    alive,
    boot_id,
    identify,
    listeners,
    session_members,
    signal_process,
    socket_owners,
)
from vllmd.ports import Clock, GpuReader

log = structlog.get_logger()

_POLL_S = 0.2  # between looks at a start
_KILL_WAIT_S = 30.0  # a process in the driver may take seconds to die
_PORT_WAIT_S = 10.0  # for our own former listener to close
_GPU_WAIT_S = 60.0  # for the driver to give the memory of dead processes back
_STOP_GRACE_S = 20.0  # beyond the drain: vLLM's worker grace 5 s + 4 s + 5 s, and its teardown (4.4 s on an H200)
_START_STOP_GRACE_S = 10.0  # SIGTERM late in a start is ignored
_HARD_LIMIT_FACTOR = 6  # a start that only burns CPU is ended after this many start timeouts


@dataclass(frozen=True, slots=True)
class Launcher:
    """What every launch of an instance has in common. Times in seconds."""

    state_dir: Path
    environment: Mapping[str, str]
    host: str  # the address that the server binds; empty for all
    port: int
    start_timeout_s: float
    drain_timeout_s: float
    keep_logs: int

    @property
    def record_path(self) -> Path:
        """Where the identities of the server's processes are kept."""
        return self.state_dir / "server.json"

    @property
    def log_dir(self) -> Path:
        """Where the logs of the launches are."""
        return self.state_dir / "logs"


class ServerProcess:
    """Implements `ports.Server` with real processes."""

    def __init__(
        self, launcher: Launcher, clock: Clock, gpu: GpuReader, healthy: Callable[[], Awaitable[bool]]
    ) -> None:
        self._launcher = launcher
        self._clock = clock
        self._gpu = gpu
        self._healthy = healthy
        self._events: asyncio.Queue[ServerEvent | BaseException] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()
        self.record = read_record(launcher.record_path)

    async def events(self) -> ServerEvent:
        """Wait for the next event; a bug in a launch's task is raised here."""
        event = await self._events.get()
        if isinstance(event, BaseException):
            raise event
        return event

    def launch(self, launch: Launch) -> None:
        """Begin a launch. RuntimeError while another one lives: never two servers."""
        if self._task is not None and not self._task.done():
            raise RuntimeError("a launch is under way")
        self._stopping, self._hurried = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._live(launch))
        self._task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.put_nowait(error)

    def stop(self) -> None:
        """Drain and stop the current launch; Exited(asked=True) follows."""
        self._stopping.set()

    def kill(self) -> None:
        """End a launch that is being stopped without waiting for its drain."""
        self._hurried.set()

    def is_ours(self, pid: int) -> bool:
        """Return whether a pid is a process of the current or last launch."""
        return self.record is not None and pid in {p.pid for p in (self.record.leader, *self.record.members)}

    async def _live(self, launch: Launch) -> None:
        refused = await self._clear_the_way(launch)
        if refused is not None:
            await self._events.put(refused)
            return
        if self._stopping.is_set():
            await self._events.put(Exited(launch.generation, None, asked=True))
            return
        try:
            child = self._spawn(launch)
        except OSError as error:
            reason = f"{launch.argv[0]} cannot be started: {error.strerror}"
            await self._events.put(LaunchRefused(launch.generation, "spawn-failed", reason))
            return
        if self.record is not None:
            await self._events.put(Spawned(launch.generation, self.record.leader))
        stalled = await self._until_end(launch, child)
        code = child.poll()
        await self._clear_session()
        await self._events.put(stalled or Exited(launch.generation, code, asked=self._stopping.is_set()))

    # Before the spawn

    async def _clear_the_way(self, launch: Launch) -> LaunchRefused | None:
        """End what our own former launch left, then wait (each within a limit) for its port and its GPU memory."""
        before = leftovers(self.record)
        if before:
            log.warning("ending what an earlier launch left", processes=_named(before))
        left = await self._clear_session()
        if left:
            names = _named(left)
            reason = f"processes of our former launch do not end, even by SIGKILL: {names}"
            return LaunchRefused(launch.generation, "stop-failed", reason, names)
        if not await self._until(self._port_is_decided, _PORT_WAIT_S) or not self._port_is_free():
            found = holders(self._launcher.port)
            who = ", ".join(f"pid {pid} {name}" for pid, name in found.items()) or "a process of another user"
            reason = f"port {self._launcher.port} is taken by {who}, which is not ours"
            return LaunchRefused(launch.generation, "port-taken", reason, who)
        # A driver that still shows memory of dead processes after the limit is left to vLLM's own check.
        await self._until(lambda: not self._holds_gpu(), _GPU_WAIT_S)
        return None

    def _port_is_free(self) -> bool:
        return is_free(self._launcher.host, self._launcher.port)

    def _port_is_decided(self) -> bool:
        """Whether the port is free, or a process has it that is seen and is not ours: no use in waiting for that."""
        return self._port_is_free() or any(not self.is_ours(pid) for pid in holders(self._launcher.port))

    async def _until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Look until a condition of the outside holds, which sends no event, or the limit passes."""
        deadline = self._clock.monotonic_s() + limit_s
        while not condition():
            if self._clock.monotonic_s() > deadline or self._stopping.is_set():
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def _holds_gpu(self) -> bool:
        """Whether NVML still shows memory of our former processes, dead as they are."""
        return self.record is not None and any(p.ours for gpu in self._gpu.read() or () for p in gpu.processes)

    # The spawn

    def _spawn(self, launch: Launch) -> "subprocess.Popen[bytes]":
        log = open_log(self._launcher.log_dir, launch.generation, self._launcher.keep_logs)
        try:
            child = subprocess.Popen(
                launch.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._launcher.environment,
                start_new_session=True,
            )
        finally:
            os.close(log)
        leader = identify(child.pid) or ProcessId(child.pid, 0)
        self._remember(ServerRecord(boot_id(), launch.generation, leader, (leader,)))
        return child

    def _remember(self, record: ServerRecord) -> None:
        self.record = record
        write_record(self._launcher.record_path, record)

    def note_members(self) -> None:
        """Record the processes that the session holds now: they prove it to be ours once the leader is dead."""
        if self.record is None:
            return
        members = session_members(self.record.leader.pid) if alive(self.record.leader) else self.record.members
        if set(members) != set(self.record.members):
            self._remember(ServerRecord(self.record.boot_id, self.record.generation, self.record.leader, members))

    # From the spawn to the end

    async def _until_end(self, launch: Launch, child: "subprocess.Popen[bytes]") -> StartStalled | None:
        """Watch a child until it has ended; return a stall if that is why we ended it."""
        ended = asyncio.ensure_future(_ended(child))
        stopping = asyncio.ensure_future(self._stopping.wait())
        start = asyncio.ensure_future(self._start(launch))
        stalled: StartStalled | None = None
        try:
            await asyncio.wait({ended, stopping, start}, return_when=asyncio.FIRST_COMPLETED)
            serving = False
            if start.done():
                stalled = start.result()
                serving = stalled is None
                if serving:
                    await self._events.put(Ready(launch.generation))
                    await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await self._terminate(ended, serving=serving)
        finally:
            for task in (ended, stopping, start):
                task.cancel()
        return stalled

    async def _start(self, launch: Launch) -> StartStalled | None:
        """Wait until the server is proved ready (None), or until its start shows no progress for too long."""
        timeout_s = self._launcher.start_timeout_s
        progress = StartProgress(log_path(self._launcher.log_dir, launch.generation), self._clock.monotonic_s())
        while not await self._ready():
            await asyncio.sleep(_POLL_S)
            self.note_members()
            silent_s = progress.silent_s(self.record.members if self.record else (), self._clock.monotonic_s())
            if silent_s > timeout_s or progress.age_s(self._clock.monotonic_s()) > _HARD_LIMIT_FACTOR * timeout_s:
                return StartStalled(launch.generation, silent_s)
        return None

    async def _ready(self) -> bool:
        """Whether a process of our own session listens on the port and /health answers 200."""
        if self.record is None:
            return False
        inodes = listeners(self._launcher.port)
        if not inodes or not socket_owners(inodes, [p.pid for p in session_members(self.record.leader.pid)]):
            return False
        return await self._healthy()

    # The end

    async def _terminate(self, ended: "asyncio.Future[None]", *, serving: bool) -> None:
        """SIGTERM the leader only: engine and workers have handlers of their own that would break its drain."""
        if self.record is None:
            return
        signal_process(self.record.leader, signal.SIGTERM)
        grace_s = self._launcher.drain_timeout_s + _STOP_GRACE_S if serving else _START_STOP_GRACE_S
        hurried = asyncio.ensure_future(self._hurried.wait())
        either: set[asyncio.Future[Any]] = {ended, hurried}
        await asyncio.wait(either, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if ended.done():
            return
        await self._clear_session()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(ended), _KILL_WAIT_S)

    async def _clear_session(self) -> tuple[ProcessId, ...]:
        """SIGKILL what is left of our last launch, leader or orphans; return what outlives that."""
        deadline = self._clock.monotonic_s() + _KILL_WAIT_S
        while left := leftovers(self.record):
            for process in left:
                signal_process(process, signal.SIGKILL)
            self._reap(left)
            if self._clock.monotonic_s() > deadline:
                return left
            await asyncio.sleep(0.02)
        if self.record is not None:
            self._reap(self.record.members)
        return ()

    def _reap(self, processes: tuple[ProcessId, ...]) -> None:
        """Collect orphans of the server that became our children (we are their subreaper); not the leader's code."""
        for process in processes:
            if self.record is not None and process != self.record.leader:
                with suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)


def _named(processes: Iterable[ProcessId]) -> str:
    return ", ".join(f"pid {p.pid} {process_name(p.pid)}" for p in processes)


async def _ended(child: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of a child; its code is then in `child.returncode`."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    descriptor = os.pidfd_open(child.pid)
    loop.add_reader(descriptor, _resolve, future)
    try:
        await future
        child.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
