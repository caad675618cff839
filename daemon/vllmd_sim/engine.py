"""The engine process: holds the simulated GPU memory, steps through time, and dies where vLLM's engine would.

Started by the API server as `python -m vllmd_sim.engine FD`. FD is a socket that carries JSON lines both ways: the
configuration first, then {"serving": true}, {"add": …} and {"abort": …} in; {"ready": …}, one {"step": …} a step and
{"dead": true} out.
"""

import asyncio
import ctypes
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from vllmd_sim import breakdowns, failures
from vllmd_sim.config import EngineConfig
from vllmd_sim.engine_client import LINE_LIMIT
from vllmd_sim.gpu import Gpu
from vllmd_sim.host import GIB, Host
from vllmd_sim.lines import Console
from vllmd_sim.memory import Memory, Pool
from vllmd_sim.scheduler import Request, Scheduler, Step, StepClock, limits_of
from vllmd_sim.startup import start

TITLE = "VLLM::EngineCore"
_CATCH_UP_S = 0.01  # a step that began late by less than this does not delay the next ones


class Engine:
    """The serving engine: requests in, one message a step out."""

    def __init__(self, host: Host, memory: Memory, pool: Pool, console: Console) -> None:
        self._host = host
        self._memory = memory
        self._pool = pool
        self._console = console
        self._scheduler = Scheduler(limits_of(memory.config, pool.tokens))
        self._clock = StepClock(host)
        self._wake = asyncio.Event()
        self._sender: asyncio.StreamWriter | None = None
        self._seen = 0
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
        tasks = (stepping, receiving, told)
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if told in done:
            await self._drain(stepping)
        elif receiving in done:
            stepping.cancel()
            await asyncio.wait((told,), timeout=self._host.orphan_s)
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        match ends[0]:
            case failures.EngineError():
                self._lament(ends[0])
                return 1
            case failures.ProcessEndError():
                raise ends[0]
        return 0

    async def _drain(self, stepping: "asyncio.Task[None]") -> None:
        """Finish what is in flight within the time that the operator gave."""
        timeout_s = self._memory.config.shutdown_timeout_s
        mode = "drain" if timeout_s else "abort"
        self._console.info("core.py:1313", "[shutdown] EngineCore: trigger received signal=SIGTERM")
        self._console.info("core.py:1432", f"[shutdown] EngineCore: start mode={mode} timeout={timeout_s}s")
        flying = len(self._scheduler.running) + len(self._scheduler.waiting)
        if flying and timeout_s:
            self._console.info(
                "core.py:1450",
                f"[shutdown] EngineCore: draining in-flight requests count={flying} timeout={timeout_s}s",
            )
        self._draining = True
        self._wake.set()
        await asyncio.wait((stepping,), timeout=timeout_s)
        if stepping.done():
            self._console.info(
                "core.py:1463", "[shutdown] EngineCore: request processing complete; starting resource teardown"
            )
        self._console.info("core.py:1326", "[shutdown] EngineCore: exiting busy loop")

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
            step = self._scheduler.plan(now_s)
            if step is None:
                if self._draining:
                    return
                self._wake.clear()
                await self._wake.wait()
                ended_s = time.monotonic()
                continue
            self._check_memory(step)
            ended_s = max(ended_s, now_s - _CATCH_UP_S) + self._clock.seconds(step)
            await asyncio.sleep(ended_s - time.monotonic())
            self._send({"step": self._report(step, self._scheduler.finish(step))})

    async def _suffer(self) -> None:
        """Let the host's fault take its course; raises what ends the engine, or never returns."""
        ranks = self._memory.config.tensor_parallel
        for moment in breakdowns.course(self._host, ranks, serving=True):
            await asyncio.sleep(moment.pause_s)
            self._console.say(moment.place, moment.text)

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
            "preemptions": step.preemptions,
            "out": [[request.id, request.finished, request.scheduled_s] for request in emitted],
        }

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._sender is not None and not self._sender.is_closing():
            self._sender.write(json.dumps(message).encode() + b"\n")

    def _lament(self, failure: failures.EngineError) -> None:
        """Print what vLLM prints when a step fails, and tell the API server."""
        _say_notices(failure)
        inputs = f"model='{self._memory.config.model}', max_seq_len={self._pool.max_model_len}, kv_cache_dtype=auto"
        self._console.error(
            "dump_input.py:72",
            f"Dumping input data for V1 LLM engine (v{self._host.version}) with config: {inputs}",
        )
        flying = ", ".join(f"NewRequestData(req_id={r.id})" for r in self._scheduler.running)
        self._console.error(
            "dump_input.py:79",
            f"Dumping scheduler output for model execution: SchedulerOutput(scheduled_new_reqs=[{flying}])",
        )
        self._console.error(
            "core.py:1332", "EngineCore encountered a fatal error.\n" + failures.engine_traceback(failure)
        )
        self._send({"dead": True})


def _lament_start(failure: failures.EngineError, console: Console) -> None:
    """Print what vLLM prints when its engine does not start."""
    _say_notices(failure)
    trace = failures.engine_traceback(failure)
    console.error("core.py:1330", "EngineCore failed to start.\n" + trace)
    console.raw("Process EngineCore:\n" + trace)


def _say_notices(failure: failures.EngineError) -> None:
    """Print what is said before the traceback, by this process or one of its workers."""
    for notice in failure.notices:
        Console(notice.process).error(notice.place, notice.text)


def end_process(code: int) -> NoReturn:
    """End this process at once, by a signal if the code is negative; nothing is cleaned up, no core is written."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if code < 0:
        if -code not in {signal.SIGKILL, signal.SIGSTOP}:  # these have no handler to take away
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def set_title(title: str) -> None:
    """Name this process as vLLM names its engine, in /proc/PID/comm and, over its own arguments, in cmdline.

    Fields 48 and 49 of proc_pid_stat(5) say where in memory the arguments lie.
    """
    Path("/proc/self/comm").write_text(title, encoding="ascii")  # the kernel keeps 15 characters
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    start_address, end_address = int(fields[45]), int(fields[46])
    length = end_address - start_address
    if length > 0:
        ctypes.memmove(start_address, title.encode()[: length - 1].ljust(length, b"\0"), length)


def main() -> int:
    """Run the engine on the socket whose descriptor is the only argument; returns its exit code."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    set_title(TITLE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the API server's business
    given = json.loads(channel.makefile("rb").readline())  # nothing follows it before we are ready
    config, host = EngineConfig(**given["config"]), Host(**given["host"])
    gpu, console = Gpu(host), Console("EngineCore")
    try:
        memory, pool = start(config, host, gpu, console)
        return asyncio.run(Engine(host, memory, pool, console).run(channel))
    except failures.EngineError as failure:
        _lament_start(failure, console)
        return 1
    except failures.ProcessEndError as end:
        end_process(end.code)
    finally:
        gpu.release()


if __name__ == "__main__":
    sys.exit(main())
