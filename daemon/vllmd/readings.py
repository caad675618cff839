"""The readings: what is looked at, when, and how it comes to the loop as one piece of work."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from vllmd.act.launch_logs import cap_size
from vllmd.act.server_process import ServerProcess
from vllmd.loop import Loop
from vllmd.model.flags import api_servers
from vllmd.model.life import ALIVE
from vllmd.model.live import Heartbeat
from vllmd.model.server import ServerState
from vllmd.model.snapshot import Snapshot
from vllmd.observe.process_states import activity_of, compiles
from vllmd.observe.processes import cpu_s
from vllmd.observe.scrape import HttpScraper
from vllmd.ports import Clock, GpuReader
from vllmd.report.notify import SdNotifier

_LOOK_S = 1.0  # between looks at a server that is not serving yet: its log, its backoff
_CLOCK_JUMP_S = 2.0  # less is slewing, which the scheduler follows
_LATE_S = 2.0  # vllmd's own lateness that is told: a command line waits that long for an answer (report/ask.py)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Sources:
    """What is read."""

    scraper: HttpScraper
    gpu: GpuReader
    server: ServerProcess
    clock: Clock


class Readings:
    """Reads at intervals and hands each reading to `work`, which does one thing after the other."""

    def __init__(
        self, loop: Loop, sources: Sources, notifier: SdNotifier, work: Callable[[Callable[[], Any]], None]
    ) -> None:
        self._loop = loop
        self._sources = sources
        self._notifier = notifier
        self._work = work
        # Late is better than not at all, which is what the scheduler does with a job that is a second late: where the
        # processors are busy, every one is.
        defaults = {"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        self._scheduler = AsyncIOScheduler(timezone="UTC", job_defaults=defaults)
        self._clock_watch: asyncio.Task[None] | None = None
        self._over = False
        self._refused = False  # whether the host refused the last reading

    def begin(self) -> None:
        """Begin to read, every `engine.scrape_interval`."""
        interval_s = self._loop.supervisor.instance.settings.engine.scrape_interval_s
        self._scheduler.add_job(self._read, "interval", seconds=interval_s)
        self._scheduler.add_job(self._look, "interval", seconds=min(_LOOK_S, interval_s))
        self._scheduler.add_job(self._feel, "interval", seconds=min(_LOOK_S, interval_s))
        if self._notifier.alive_every_s is not None:
            self._scheduler.add_job(self._show_life, "interval", seconds=self._notifier.alive_every_s)
        self._scheduler.start()
        self._clock_watch = asyncio.create_task(self._watch_clock())

    def end(self) -> None:
        """Read no more; a reading under way is cut off."""
        self._over = True
        self._scheduler.shutdown(wait=False)
        if self._clock_watch is not None:
            self._clock_watch.cancel()

    async def of_host(self) -> Snapshot:
        """Return a reading of the memory alone."""
        clock, memory = self._sources.clock, psutil.virtual_memory()
        launch = self._loop.supervisor.life.launch
        return Snapshot(
            at_s=clock.now_s(),
            generation=launch.generation if launch else 0,
            metrics=None,
            gpus=await self._sources.gpu.read(),
            host_free_bytes=memory.available,
            host_total_bytes=memory.total,
            monotonic_s=clock.monotonic_s(),
        )

    async def _read(self) -> None:
        """Take one reading; one that the end of vllmd cuts off is no error, as which the scheduler would log it.

        Where the host refuses (no file can be opened any more), this reading is missed, and that is told once.
        """
        if self._over:  # the scheduler's own end comes a turn of the event loop later
            return
        try:
            snapshot = await self._snapshot()
            self._keep_house()
        except asyncio.CancelledError:
            if not self._over:
                raise
            return
        except OSError as error:
            if not self._refused:
                log.warning("the host cannot be read", reason=str(error))
            self._refused = True
            return
        self._refused = False
        self._work(lambda: self._guarded(lambda: self._loop.tick(snapshot)))

    async def _snapshot(self) -> Snapshot:
        """Return a reading of everything."""
        life, scraper = self._loop.supervisor.life, self._sources.scraper
        if life.state is not ServerState.SERVING:
            return await self.of_host()
        asked_s = self._sources.clock.monotonic_s()
        metrics = await scraper.scrape()
        alone = life.launch is not None and api_servers(life.launch.flags) == 1  # else others answer, not the leader
        leader = life.launch.leader if life.launch and alone else None
        answers = metrics is not None or await scraper.answers()
        suspected = self._loop.stall.suspects
        paused = await scraper.paused() if answers and suspected else None
        of_host = await self.of_host()
        beat, traffic = self._beat(), self._sources.server.live.traffic()
        return replace(
            of_host,
            metrics=metrics,
            paused=paused,
            compiling=compiles(self._sources.server.session.living()) if suspected else None,
            answers=answers,
            asked_s=asked_s,
            leader_cpu_s=cpu_s(leader) if leader is not None else None,
            activity=activity_of(beat.pid) if suspected and beat is not None else None,
            beat=beat,
            in_flight=traffic.in_flight if traffic is not None else None,
        )

    def _beat(self) -> Heartbeat | None:
        """Return the heartbeat of an engine that is the server's own: another one's says nothing of it."""
        server = self._sources.server
        beat = server.live.read().heartbeat
        return beat if beat is not None and server.session.is_ours(beat.pid) else None

    def _keep_house(self) -> None:
        """Note which processes are the server's, and keep its log within its size."""
        life = self._loop.supervisor.life
        if life.state in ALIVE and life.launch is not None:
            self._sources.server.note_members()
            if cap_size(Path(life.launch.log_path), self._loop.supervisor.instance.settings.log.engine_max_bytes):
                log.info("log capped", path=life.launch.log_path)

    async def _watch_clock(self) -> None:
        """Plan the jobs anew when somebody sets the clock: the scheduler waits for times of day. Tell what is late."""
        clock = self._sources.clock
        offset_s, late = clock.now_s() - clock.monotonic_s(), False
        while True:
            due_s = clock.monotonic_s() + _LOOK_S
            await asyncio.sleep(_LOOK_S)
            late = self._tell_lateness(clock.monotonic_s() - due_s, told=late)
            before_s, offset_s = offset_s, clock.now_s() - clock.monotonic_s()
            if abs(offset_s - before_s) > _CLOCK_JUMP_S:
                log.warning("the clock was set", by_s=round(offset_s - before_s, 1))
                self._work(partial(self._loop.clock_was_set, offset_s - before_s))
                for job in self._scheduler.get_jobs():
                    job.reschedule("interval", seconds=job.trigger.interval.total_seconds())

    def _tell_lateness(self, late_s: float, *, told: bool) -> bool:
        """Tell, once for each time, that vllmd itself is kept waiting; return whether it is."""
        late = late_s > _LATE_S
        if late and not told:
            log.warning("vllmd is kept waiting, by the processors or a disk", late_s=round(late_s, 1))
        return late

    async def _look(self) -> None:
        """Let the loop look at a server that is not serving: at its start's progress, at a launch that is due.

        One that serves and may hang is read more often: it is found when its limit has passed, not readings later.
        """
        if self._loop.supervisor.life.state is not ServerState.SERVING:
            self._work(lambda: self._guarded(self._loop.look))
        elif self._loop.stall.suspects:
            await self._read()

    async def _feel(self) -> None:
        """Let the heartbeat of a serving engine be felt: it is memory, and nothing is waited for."""
        life = self._loop.supervisor.life
        if life.state is ServerState.SERVING and life.launch is not None:
            beat, generation = self._beat(), life.launch.generation
            self._guarded(lambda: self._loop.stall.feel(beat, generation))

    async def _show_life(self) -> None:
        """Let the service manager's watchdog be fed by the loop: where no work is done, nothing is said."""
        self._work(self._notifier.alive)

    def _guarded(self, look: Callable[[], None]) -> None:
        """Let a bug in a reading cost that reading, not the server. A bug in an event ends the daemon."""
        try:
            look()
        except Exception:
            self._loop.errors += 1
            log.exception("a reading failed", errors=self._loop.errors)
