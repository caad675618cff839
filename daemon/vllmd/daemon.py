"""The shell around the loop: builds the world, and feeds the loop one thing at a time."""

import asyncio
import ctypes
import fcntl
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from vllmd.act.launch_logs import last_generation, log_path
from vllmd.act.launcher import Launcher
from vllmd.act.server_process import ServerProcess
from vllmd.clock import SystemClock
from vllmd.config.fixed import fixed_changes
from vllmd.decide.propose import Policy
from vllmd.errors import ControlError, InstanceBusyError, VllmdError
from vllmd.loop import Loop
from vllmd.model.canary import CanaryReply
from vllmd.model.instance import Instance
from vllmd.model.server import Launch, ServerState
from vllmd.model.status import Status
from vllmd.observe.canary import CanarySender
from vllmd.observe.child_log import LogFollower, read_for_diagnosis
from vllmd.observe.gpu import GpuWatch, NvmlReader
from vllmd.observe.scrape import HttpScraper
from vllmd.operator import live_commands, operator_commands, reading_commands
from vllmd.readings import Readings, Sources
from vllmd.report.control import Command, ControlServer, Peer
from vllmd.report.exporter import Exporter
from vllmd.report.journal import Journal
from vllmd.report.ledger import open_ledger
from vllmd.report.loop_errors import LoopErrors
from vllmd.report.notify import SdNotifier
from vllmd.report.publication import Publication
from vllmd.report.status_file import write_status
from vllmd.report.status_json import status_document
from vllmd.report.steady_ledger import SteadyLedger
from vllmd.supervisor import Logs, Refresh, Supervisor

_PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Place:
    """Where the daemon keeps its files and answers."""

    state_dir: Path
    control: Path
    status_file: Path


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the configuration comes to. `refresh` returns an instance of it as the installation is at a launch."""

    instance: Instance
    launcher: Launcher
    policies: Sequence[Policy]
    refresh: Refresh


class Daemon:
    """Runs one instance until it is told to stop. `reconfigure` reads the configuration anew, or raises VllmdError."""

    def __init__(self, first: Configuration, place: Place, reconfigure: Callable[[], Configuration]) -> None:
        instance, launcher = first.instance, first.launcher
        self._instance = instance
        self._place = place
        self._launcher = launcher
        self._reconfigure = reconfigure
        self._clock = SystemClock()
        self._publication = Publication(since_s=self._clock.now_s())
        self._notifier = SdNotifier()
        self._scraper = HttpScraper(instance.url)
        self._gpu = GpuWatch(NvmlReader(self._is_ours))
        self._server = ServerProcess(launcher, self._clock, self._gpu, self._scraper.healthy, self._may_end)
        self._work: asyncio.Queue[Callable[[], Any]] = asyncio.Queue()
        self._ready = False  # whether the first launch has begun, or a server was taken over
        self._told_to_leave = False  # and the SIGTERM by which a service manager follows that up is still to come
        self._left = False  # whether the server was left to the next vllmd
        self._told = True  # whether the last status came to status.json
        self._armed_s: float | None = None  # the due launch that a timer waits for
        self._loop = self._build_loop(first)
        sources = Sources(self._scraper, self._gpu, self._server, self._clock)
        self._readings = Readings(self._loop, sources, self._notifier, self._work.put_nowait)
        self._canary = CanarySender(instance.url, self._scraper.paused, self._api_key, self._canary_ended)

    def _may_end(self) -> bool:
        return not self._loop.pauses.hands_off

    def _is_ours(self, pid: int) -> bool:
        return self._server.is_ours(pid)

    def _build_loop(self, first: Configuration) -> Loop:
        ledger = SteadyLedger(open_ledger(self._place.state_dir, self._instance.masker.mask))
        ledger.start_above(last_generation(self._launcher.log_dir))
        journal = Journal(ledger, self._instance.masker)
        logs = _logs(self._launcher.log_dir)
        supervisor = Supervisor(self._instance, self._server, self._clock, journal, logs, first.refresh)
        return Loop(supervisor, journal, self._clock, first.policies, self._publish)

    async def run(self) -> None:
        """Keep the instance serving until SIGTERM, SIGINT or SIGUSR1.

        VllmdError when an address is taken; OSError when the host refuses what must be done: the server lives on.
        """
        async with AsyncExitStack() as stack:
            asyncio.get_running_loop().set_exception_handler(LoopErrors())
            control = ControlServer(self._place.control, self._commands(), self._instance.settings.listen.group)
            await control.start()
            stack.push_async_callback(control.close)
            exporter = Exporter(self._instance.settings.listen.metrics, self._publication)
            exporter.start()
            stack.callback(exporter.close)
            stack.push_async_callback(self._scraper.close)
            stack.push_async_callback(self._canary.close)
            stack.push_async_callback(self._server.released)
            self._readings.begin()
            stack.callback(self._readings.end)
            events = asyncio.create_task(self._pump_events())
            stack.callback(events.cancel)
            self._listen_to_signals()
            self._loop.begin(await self._readings.of_host())
            self._notifier.ready()
            self._ready = True
            await self._until_stopped(events)

    async def _until_stopped(self, events: "asyncio.Task[None]") -> None:
        """Do one piece of work after the other.

        A bug in a launch's task, or in what an event leads to, ends the daemon: the server would be unwatched, and the
        service manager's next vllmd takes it over.
        """
        while self._loop.supervisor.life.state is not ServerState.STOPPED and not self._left:
            work = asyncio.ensure_future(self._work.get())
            await asyncio.wait({work, events}, return_when=asyncio.FIRST_COMPLETED)
            if events.done():
                work.cancel()
                events.result()
                return
            work.result()()
            self._wake_when_due()
            self._canary.follow(self._loop.stall.canary.order)

    def _wake_when_due(self) -> None:
        """Let a waiting launch begin on time, not at the next look."""
        due_s = self._loop.supervisor.due_s
        if due_s is not None and due_s != self._armed_s:
            self._armed_s = due_s
            delay_s = max(0.0, due_s - self._clock.monotonic_s())
            asyncio.get_running_loop().call_later(delay_s, self._work.put_nowait, self._loop.look)

    # What brings work

    def _canary_ended(self, reply: CanaryReply) -> None:
        self._work.put_nowait(lambda: self._loop.stall.canary.answered(reply))

    def _api_key(self) -> str | None:
        """Return a key that the server takes: vLLM hears its variable where no option is given."""
        option = self._loop.supervisor.flags.get("api-key") or self._launcher.environment.get("VLLM_API_KEY")
        return option[0] if isinstance(option, tuple) else option if isinstance(option, str) else None

    async def _pump_events(self) -> None:
        while True:
            event = await self._server.events()
            self._work.put_nowait(lambda event=event: self._loop.on_event(event))  # type: ignore[misc]

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._work.put_nowait, self._stop)
        loop.add_signal_handler(signal.SIGUSR1, self._hear_to_leave)
        loop.add_signal_handler(signal.SIGHUP, self._work.put_nowait, self._reload)

    def _hear_to_leave(self) -> None:
        self._told_to_leave = True
        self._work.put_nowait(self._leave)

    def _stop(self) -> None:
        """Stop the server and vllmd; but for the SIGTERM that goes with a SIGUSR1.

        Of two signals that wait for a process, the kernel has the later one handled first.
        """
        if self._told_to_leave:
            self._told_to_leave = False
            return
        self._end()

    def _end(self) -> None:
        if not self._ready and self._notifier.listens and self._server.leave():
            # The service manager calls a start off: it knows whether another one follows, and has what is left ended.
            self._left = True
            return
        self._notifier.stopping()
        self._loop.stop()

    def _reload(self) -> None:
        """Take the configuration as it is now; one that cannot be taken is told, and what was stays in force."""
        self._notifier.reloading(int(self._clock.monotonic_s() * 1_000_000))
        try:
            asked = self._reconfigure()
            self._instance.masker.learn(asked.instance.masker)
            if fixed := fixed_changes(self._instance, asked.instance):
                raise VllmdError(f"a running vllmd cannot change: {', '.join(fixed)}")
        except (VllmdError, OSError) as error:
            log.warning("the configuration was not taken; the one before stays in force", reason=str(error))
            self._loop.not_configured(f"the configuration was not taken: {error}")
        else:
            masker = self._instance.masker
            self._instance = replace(asked.instance, masker=masker)
            self._launcher = replace(asked.launcher, mask=masker.mask)
            self._server.configure(self._launcher)
            self._loop.configure(self._instance, asked.policies, asked.refresh)
            log.info("configuration taken", pending=", ".join(self._loop.supervisor.pending) or None)
        self._notifier.ready()

    def _leave(self) -> None:
        """End vllmd and leave its server to the next one; a server that lives no more, or is being ended, is not."""
        if not self._server.leave():
            self._end()
            return
        launch = self._loop.supervisor.life.launch
        self._server.release()
        log.info("leaving the server to the next vllmd", generation=launch.generation if launch else None)
        self._notifier.stopping()
        self._left = True

    def _commands(self) -> dict[str, Command]:
        told = self._publication.get
        return {
            "status": Command(self._status),
            **reading_commands(self._place.state_dir, self._instance.settings.name, told),
            **operator_commands(self._loop, self._clock, told),
            **live_commands(self._loop, self._clock, told),
        }

    def _status(self, _request: Mapping[str, Any], _peer: Peer) -> Mapping[str, Any]:
        status = self._publication.get()
        if status is None:
            raise ControlError("vllmd is starting and has no status yet")
        return status_document(status)

    def _publish(self, status: Status) -> None:
        self._publication.set(status)
        said = status.message.startswith(status.state)  # "starting (first): loading weights"
        self._notifier.status(status.message if said else f"{status.state}: {status.message}")
        try:
            write_status(self._place.status_file, status_document(status))
        except OSError as error:
            if self._told:  # once, not with every status
                log.warning("status.json cannot be written", reason=str(error))
            self._told = False
        else:
            self._told = True


def _logs(folder: Path) -> Logs:
    followers: dict[int, LogFollower] = {}

    def new_lines(launch: Launch) -> list[str]:
        if launch.generation not in followers:
            followers.clear()  # one launch is followed at a time
            followers[launch.generation] = LogFollower(Path(launch.log_path))
        return followers[launch.generation].new_lines()

    return Logs(
        path=lambda generation: log_path(folder, generation),
        whole=lambda launch: read_for_diagnosis(Path(launch.log_path)),
        new_lines=new_lines,
    )


def lock_instance(state_dir: Path) -> int:
    """Lock the instance for this process; return the descriptor that holds the lock. InstanceBusyError if taken."""
    try:
        state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        descriptor = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise VllmdError(f"the state folder {state_dir} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise InstanceBusyError(f"another vllmd already runs the instance in {state_dir}") from error
    return descriptor


def become_subreaper() -> None:
    """Let orphans of the server become our children, so that they can be collected. VllmdError if refused."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise VllmdError(f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(ctypes.get_errno())}")
