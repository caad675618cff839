"""The GPUs' memory through NVML. Without NVML, or while it fails, the reading is None and nothing stops."""

from collections.abc import Callable

import psutil
import pynvml

from vllmd.model.snapshot import Gpu, GpuProcess


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
        except pynvml.NVMLError as error:
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
        )

    def _process(self, process: pynvml.c_nvmlProcessInfo_t) -> GpuProcess:
        used = process.usedGpuMemory
        return GpuProcess(
            pid=process.pid,
            used_bytes=None if used is None else int(used),
            name=process_name(process.pid),
            ours=self._is_ours(process.pid),
        )


def process_name(pid: int) -> str:
    """Return a process's name and user for the operator ("python3 (anna)"), "?" when it cannot be seen."""
    try:
        process = psutil.Process(pid)
        return f"{process.name()} ({process.username()})"
    except (psutil.Error, KeyError):
        return "?"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
