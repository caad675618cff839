"""A wall clock that is set, for vllmd and its server alone: the kernel has one for all.

What the kernel stamps itself, the times of files, goes on as it was.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

from chaos.compiler import compiled

_AHEAD_S = struct.Struct("=q")


class WallClock:
    """The library that answers for the clock, and the file that tells it by how many seconds it is ahead."""

    def __init__(self, folder: Path) -> None:
        self._library = folder / "clock.so"
        self._file = folder / "ahead"
        self._file.write_bytes(_AHEAD_S.pack(0))
        self.compiled = compiled("clock.c", self._library)

    def set(self, ahead_s: int) -> None:
        """Let the clock be so many seconds ahead of the host's; it is read at every call, so it is written in place."""
        with self._file.open("r+b", buffering=0) as file:
            file.write(_AHEAD_S.pack(ahead_s))

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables with which a process and its children see this clock; none where it could not be made."""
        if not self.compiled:
            return {}
        return {"LD_PRELOAD": str(self._library), "VLLMD_TEST_CLOCK": str(self._file)}
