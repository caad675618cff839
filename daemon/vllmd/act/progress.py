"""Signs of life of a start. A first start that downloads weights for an hour is progress, not a hang."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllmd.model.server import ProcessId
from vllmd.observe.processes import busy_ticks_and_bytes

_PROGRESS_BYTES = 2**20  # read or written since the last sign: a download or a load goes on; polling stays below it
_LOOKED_AT_BYTES = 2**16  # of what is new in the log: more than that is no row of complaints
_COMPLAINT = b"shared memory broadcast block"  # vLLM repeats it while a worker does not answer (shm_broadcast.py)
_BUSY_CORES = 0.5  # CPU burnt since the last sign: compiling; an idle event loop burns far less


@dataclass(frozen=True, slots=True)
class Silence:
    """How long a start has shown no sign at all, and none but CPU that it burns: a compilation, or a busy hang."""

    of_all_s: float
    but_for_cpu_s: float


class StartProgress:
    """Watches the log's growth, the bytes read and written, and the CPU of a start. Times are monotonic seconds."""

    def __init__(self, log: Path, now_s: float) -> None:
        self._log = log
        self._sign_s = self._work_s = now_s
        self._log_bytes = self._ticks = self._bytes = 0

    def look(self, members: Sequence[ProcessId], now_s: float) -> Silence:
        """Look at the processes of the start."""
        ticks, size = busy_ticks_and_bytes(members)
        if self._log_says_more() or size - self._bytes > _PROGRESS_BYTES:
            self._bytes, self._work_s = size, now_s
        waited_s = max(1.0, now_s - self._sign_s)
        busy = ticks - self._ticks > _BUSY_CORES * os.sysconf("SC_CLK_TCK") * waited_s
        if busy or self._work_s == now_s:
            self._ticks, self._sign_s = ticks, now_s
        return Silence(now_s - self._sign_s, now_s - self._work_s)

    def _log_says_more(self) -> bool:
        """Whether the log has grown by more than complaints that nothing gets on."""
        size = self._log.stat().st_size if self._log.exists() else 0
        if size <= self._log_bytes:
            return False
        with self._log.open("rb") as file:
            file.seek(self._log_bytes)
            added = file.read(min(size - self._log_bytes, _LOOKED_AT_BYTES))
        self._log_bytes = size
        return any(line.strip() and _COMPLAINT not in line for line in added.splitlines())
