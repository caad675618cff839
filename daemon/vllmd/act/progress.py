"""Signs of life of a start. A first start that downloads weights for an hour is progress, not a hang."""

import os
from collections.abc import Sequence
from pathlib import Path

from vllmd.model.server import ProcessId
from vllmd.observe.processes import busy_ticks_and_bytes

_PROGRESS_BYTES = 2**20  # read or written since the last sign: a download or a load goes on; polling stays below it
_BUSY_CORES = 0.5  # CPU burnt since the last sign: compiling; an idle event loop burns far less


class StartProgress:
    """Watches the log's growth, the bytes read and written, and the CPU of a start. Times are monotonic seconds."""

    def __init__(self, log: Path, now_s: float) -> None:
        self._log = log
        self._began_s = self._last_s = now_s
        self._seen = (0, 0, 0)

    def age_s(self, now_s: float) -> float:
        """Return the seconds since the start began."""
        return now_s - self._began_s

    def silent_s(self, members: Sequence[ProcessId], now_s: float) -> float:
        """Look at the processes of the start; return the seconds since the last sign of progress."""
        ticks, size = busy_ticks_and_bytes(members)
        log_bytes = self._log.stat().st_size if self._log.exists() else 0
        before_log, before_ticks, before_size = self._seen
        waited_s = max(1.0, now_s - self._last_s)
        busy = ticks - before_ticks > _BUSY_CORES * os.sysconf("SC_CLK_TCK") * waited_s
        if log_bytes > before_log or size - before_size > _PROGRESS_BYTES or busy:
            self._seen = (log_bytes, ticks, size)
            self._last_s = now_s
        return now_s - self._last_s
