"""The engine process: holds the simulated GPU memory, steps through time, and dies where vLLM's engine would.

Started by the API server as `python -m vllmd_sim.engine FD`. FD is a socket that carries JSON lines both ways: the
configuration first, then {"serving": true}, {"add": …} and {"abort": …} in; {"ready": …}, one {"step": …} a step and
{"dead": true} out.
"""

import asyncio
import json
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from vllmd_sim import breakdowns, failures, startup, v0, v0_startup
from vllmd_sim.config import EngineConfig
from vllmd_sim.engine_client import LINE_LIMIT
from vllmd_sim.failures import CACHES, STEPPING
from vllmd_sim.governed import scheduler_of_launch
from vllmd_sim.gpu import Gpu
from vllmd_sim.host import GIB, Host
from vllmd_sim.last_words import LastWords
from vllmd_sim.lines import ENGINE, Console
from vllmd_sim.memory import Memory, Pool
from vllmd_sim.own_process import end_process, set_title
from vllmd_sim.scheduler import Request, Scheduler, Step, StepClock, limits_of
from vllmd_sim.startup import Stage
from vllmd_sim.versions import SCHEDULER_HOOK_SINCE, SHUTDOWN_LINES_SINCE, TITLES_SINCE, at_least
from vllmd_sim.workers import WorkerLostError, Workers

TITLE = "VLLM::EngineCore"
_CATCH_UP_S = 0.01  # a step that began late by less than this does not delay the next ones


class Engine:
    """The serving engine: requests in, one message a step out."""

    def __init__(self, stage: Stage, memory: Memory, pool: Pool, last_words: LastWords) -> None:
        self._host = stage.host
        self._memory = memory
        self._pool = pool
        self._console = stage.engine
        self._workers = stage.workers
        self._last_words = last_words
        self._scheduler = Scheduler(limits_of(memory.config, pool.tokens))
        plugins = at_least(stage.host.version, SCHEDULER_HOOK_SINCE) and not memory.config.v0
        self._planner = scheduler_of_launch(self._scheduler, plugins=plugins)
        self._clock = StepClock(stage.host)
        self._wake = asyncio.Event()
        self._sender: asyncio.StreamWriter | None = None
        self._seen = 0
        self._preemptions = 0
        self._calling = False  # a step is under way
        self._announced = False  # the API server serves
        self._draining = False

    async def run(self, channel: socket.socket) -> int:
        """Serve until told to stop or until it breaks; returns the exit code. Raises failures.ProcessEndError.

        The death of the API server is not noticed, as vLLM's engine does not: it stays, holding its memory. The
        simulation alone ends such an orphan, after host.orphan_s.
        """
        reader, self._sender = await asyncio.open_connection(sock=channel, limit=LINE_LIMIT)
        stopping = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
        self._send({"ready": asdict(self._pool)})
        stepping = asyncio.create_task(self._step_forever())
        receiving = asyncio.create_task(self._receive(reader))
        told = asyncio.create_task(stopping.wait())
        losing = asyncio.create_task(self._workers.lost())
        tasks: tuple[asyncio.Task[Any], ...] = (stepping, losing, receiving, told)
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if told in done:
            await self._drain(stepping)
            if self._memory.config.shutdown_timeout_s:  # else the API server kills it, before it comes to that
                await asyncio.sleep(self._host.teardown_s)
        elif receiving in done:
            stepping.cancel()
            await asyncio.wait((told, losing), timeout=self._host.orphan_s, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        return self._end_of(ends[0]) or self._end_of(ends[1])

    def _end_of(self, end: object) -> int:
        """Return the exit code that the end of a task means, its last words said; raises failures.ProcessEndError."""
        match end:
            case failures.EngineError():
                failure = end
            case WorkerLostError():
                failure = self._last_words.of_a_loss(end, STEPPING[:1] if self._calling else ())
            case failures.ProcessEndError():
                raise end
            case _:
                return 0
        self._last_words.of_a_step(failure, self._pool, self._scheduler.running)
        self._send({"dead": True})
        return 1

    async def _drain(self, stepping: "asyncio.Task[None]") -> None:
        """Finish what is in flight within the time that the operator gave."""
        timeout_s = self._memory.config.shutdown_timeout_s
        mode = "drain" if timeout_s else "abort"
        self._say_shutdown("core.py:1313", "trigger received signal=SIGTERM")
        self._say_shutdown("core.py:1432", f"start mode={mode} timeout={timeout_s}s")
        flying = len(self._scheduler.running) + len(self._scheduler.waiting)
        if flying and timeout_s:
            self._say_shutdown("core.py:1450", f"draining in-flight requests count={flying} timeout={timeout_s}s")
        self._draining = True
        self._wake.set()
        await asyncio.wait((stepping,), timeout=timeout_s)
        if stepping.done():
            self._say_shutdown("core.py:1463", "request processing complete; starting resource teardown")
        self._say_shutdown("core.py:1326", "exiting busy loop")

    def _say_shutdown(self, place: str, text: str) -> None:
        if at_least(self._host.version, SHUTDOWN_LINES_SINCE):
            self._console.info(place, f"[shutdown] EngineCore: {text}")

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        """Take requests until the API server is gone."""
        while line := await reader.readline():
            match json.loads(line):
                case {"add": {"id": str(name), "prompt": int(prompt), "max": int(most)}}:
                    self._seen += 1
                    self._scheduler.add(Request(name, prompt, most))
                case {"abort": str(name)}:
                    self._scheduler.abort(name)
                case {"serving": True}:
                    self._announced = True
            self._wake.set()

    async def _step_forever(self) -> None:
        """Plan a step, let its time pass, say what came out; ends when draining and nothing is left."""
        ended_s = time.monotonic()
        while True:
            if self._announced and self._host.strikes_while_serving and self._seen >= self._host.fault_after_requests:
                await self._suffer()
            now_s = time.monotonic()
            step = self._planner.schedule(now_s).step
            if step is None:
                if self._draining:
                    return
                self._wake.clear()
                await self._wake.wait()
                ended_s = time.monotonic()
                continue
            self._warn_of(step.preempted)
            self._calling = True
            self._check_memory(step)
            ended_s = max(ended_s, now_s - _CATCH_UP_S) + self._clock.seconds(step)
            await asyncio.sleep(ended_s - time.monotonic())
            if self._workers:
                await self._hear_workers()
            self._calling = False
            self._send({"step": self._report(step, self._scheduler.finish(step))})

    async def _suffer(self) -> None:
        """Let the host's fault take its course; raises what ends the engine, or never returns."""
        self._calling = True
        try:
            for moment in breakdowns.course(self._host, serving=True):
                await asyncio.sleep(moment.pause_s)
                self._console.say(moment.place, moment.text)
        except failures.ProcessEndError as end:
            if not self._workers:
                raise
            self._workers.strike(end.code)
            await asyncio.get_running_loop().create_future()  # whoever watches the workers ends it

    async def _hear_workers(self) -> None:
        """Wait for the workers' part of a step; raises failures.EngineError when vLLM's patience ends."""
        answering = asyncio.create_task(self._workers.answered())
        try:
            for moment in breakdowns.unanswered(self._host, "execute_model", STEPPING[:1]):
                await asyncio.wait((answering,), timeout=moment.pause_s)
                if answering.done():
                    return
                self._console.say(moment.place, moment.text)
        finally:
            answering.cancel()

    def _warn_of(self, preempted: Sequence[str]) -> None:
        """Say, as V0 does, who lost his place; V1 counts in silence."""
        if self._memory.config.v0:
            for text in v0.preemption_warnings(preempted, self._preemptions):
                self._console.warning("scheduler.py:1754", text)
        self._preemptions += len(preempted)

    def _check_memory(self, step: Step) -> None:
        """Run out of memory where a step needs more than pool and other processes leave."""
        peak = self._host.runtime_bytes_per_token * step.tokens
        if self._seen >= self._host.runtime_oom_after_requests:
            peak += int(self._host.runtime_peak_gib * GIB)
        if peak:
            self._memory.check_step(self._pool, peak, Gpu(self._host).others_bytes())

    def _report(self, step: Step, emitted: list[Request]) -> dict[str, Any]:
        """Return what the API server learns of a step; times are of the machine's monotonic clock."""
        return {
            "t": time.monotonic(),
            "running": len(self._scheduler.running),
            "waiting": len(self._scheduler.waiting),
            "used": self._scheduler.used,
            "preemptions": len(step.preempted),
            "out": [[request.id, request.finished, request.scheduled_s] for request in emitted],
        }

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._sender is not None and not self._sender.is_closing():
            self._sender.write(json.dumps(message).encode() + b"\n")


def main() -> int:
    """Run the engine on the socket whose descriptor is the only argument; returns its exit code."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the API server's business
    given = json.loads(channel.makefile("rb").readline())  # nothing follows it before we are ready
    config, host = EngineConfig(**given["config"]), Host(**given["host"])
    if at_least(host.version, TITLES_SINCE) and not config.v0:
        set_title(TITLE)
    gpu, console = Gpu(host), Console(ENGINE, host.version)
    workers = Workers.hire(config, host.version)
    last_words = LastWords(config, host.version, console, workers)
    stage = Stage(config, host, gpu, workers, console, workers.console(0, console))
    try:
        memory, pool = v0_startup.start(stage) if config.v0 else startup.start(stage)
        return asyncio.run(Engine(stage, memory, pool, last_words).run(channel))
    except WorkerLostError as loss:
        last_words.of_a_start(last_words.of_a_loss(loss, CACHES))
        return 1
    except failures.EngineError as failure:
        last_words.of_a_start(failure)
        return 1
    except failures.ProcessEndError as end:
        end_process(end.code)
    finally:
        gpu.release()
        workers.dismiss()


if __name__ == "__main__":
    sys.exit(main())
