"""The GPUs' memory through NVML. Without NVML, or while it fails, the reading is None and nothing stops."""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress

import psutil
import pynvml
import structlog

from vllmd.model.snapshot import Gpu, GpuProcess

log = structlog.get_logger()


class NvmlReader:
    """Reads every GPU's memory and who holds it.

    `is_ours` tells whether a pid belongs to the supervised server. NVML reports pids of the host: inside a container
    our own child may not be recognised, so nothing may depend on `ours` without a limit.
    """

    def __init__(self, is_ours: Callable[[int], bool]) -> None:
        self._is_ours = is_ours
        self._open = False
        self.problem: str | None = None  # why the last reading was None

    def read(self) -> tuple[Gpu, ...] | None:
        """Return every GPU, None where NVML is absent or fails; the next reading tries again."""
        try:
            if not self._open:
                pynvml.nvmlInit()
                self._open = True
            gpus = tuple(self._gpu(index) for index in range(pynvml.nvmlDeviceGetCount()))
        except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, ValueError, AttributeError) as error:
            # A driver older than pynvml is no NVMLError; the last two are an odd driver's answer.
            self.problem = str(error)
            self._open = False
            return None
        self.problem = None
        return gpus or None

    def _gpu(self, index: int) -> Gpu:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return Gpu(
            index=index,
            uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
            name=_text(pynvml.nvmlDeviceGetName(handle)),
            total_bytes=int(memory.total),
            used_bytes=int(memory.used),
            processes=tuple(self._process(p) for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
            driver=_text(pynvml.nvmlSystemGetDriverVersion()),
        )

    def _process(self, process: pynvml.c_nvmlProcessInfo_t) -> GpuProcess:
        used = process.usedGpuMemory
        return GpuProcess(
            pid=process.pid,
            used_bytes=None if used is None else int(used),
            name=process_name(process.pid),
            ours=self._is_ours(process.pid),
        )


class GpuWatch:
    """Reads the GPUs in a thread of its own: a driver in trouble answers late or never, and nothing may wait for it."""

    def __init__(self, reader: NvmlReader, limit_s: float = 5.0) -> None:
        self._reader = reader
        self._limit_s = limit_s
        self._asked: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Future[tuple[Gpu, ...] | None]]]
        self._asked = queue.SimpleQueue()
        self._pending: asyncio.Future[tuple[Gpu, ...] | None] | None = None
        self._late = False
        self._thread = self._started()

    async def read(self) -> tuple[Gpu, ...] | None:
        """Return every GPU; None without NVML, or when it does not answer within the limit."""
        loop = asyncio.get_running_loop()
        if not self._thread.is_alive():  # an answer that nobody foresaw ended it, with a traceback
            self._thread = self._started()
        if self._pending is None or self._pending.done():
            self._pending, self._late = loop.create_future(), False
            self._asked.put((loop, self._pending))
        if self._late:
            return None  # still the reading that was given up
        try:
            return await asyncio.wait_for(asyncio.shield(self._pending), self._limit_s)
        except TimeoutError:
            self._late = True
            log.warning("NVML does not answer", limit_s=self._limit_s)
            return None

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._serve, name="nvml", daemon=True)
        thread.start()
        return thread

    def _serve(self) -> None:
        while True:
            loop, future = self._asked.get()
            gpus: tuple[Gpu, ...] | None = None
            try:
                gpus = self._reader.read()
            finally:
                with suppress(RuntimeError):  # the loop is closed: the daemon ends
                    loop.call_soon_threadsafe(_answer, future, gpus)


def _answer(future: "asyncio.Future[tuple[Gpu, ...] | None]", gpus: tuple[Gpu, ...] | None) -> None:
    if not future.done():
        future.set_result(gpus)


def process_name(pid: int) -> str:
    """Return a process's name and user for the operator ("python3 (anna)"), "?" when it cannot be seen."""
    try:
        process = psutil.Process(pid)
        return f"{process.name()} ({process.username()})"
    except (psutil.Error, KeyError):
        return "?"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
