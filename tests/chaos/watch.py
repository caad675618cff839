"""The watch: twenty times a second, whether two servers live at once.

A launch counts as a server from the moment at which one of its processes holds memory of the simulated GPU, which it
does before it listens, until the last process of its session is dead. A process at the spawn gate holds none, nor does
a server that still reads its arguments. /proc cannot be read in one moment, so that a launch which ended while it was
read would look like a second one: two launches count as two when a process of the earlier one is found alive after one
of the later one was.
"""

import json
import threading
from contextlib import suppress
from pathlib import Path

from chaos.processes import Process, in_sessions, read

_EVERY_S = 0.05
_END_LIMIT_S = 10.0


class Watch:
    """Looks at the device's folder and at the sessions that were seen there, in a thread of its own."""

    def __init__(self, gpu: Path) -> None:
        self._gpu = gpu
        self._servers: dict[int, Process] = {}  # by session: whoever was seen first to hold memory
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self.looks = 0
        self.found: str | None = None  # the first violation, in words

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ending.set()
        self._thread.join(_END_LIMIT_S)

    def _watch(self) -> None:
        while not self._ending.wait(_EVERY_S):
            self.look()

    def look(self) -> None:
        """Look once."""
        self.looks += 1
        earlier = in_sessions(self._servers) if self._servers else {}
        self._servers = {session: first for session, first in self._servers.items() if earlier.get(session)}
        for holder in self._holders():
            if holder.session in self._servers:
                continue
            still = [p for members in earlier.values() for p in members if p.lives]
            if still and self.found is None:
                others = "; ".join(map(str, still))
                self.found = f"two servers at once: {holder} holds GPU memory while there live {others}"
            self._servers[holder.session] = holder

    def _holders(self) -> list[Process]:
        """Return the live processes that hold memory of the device."""
        found = []
        for entry in self._gpu.iterdir():
            if not entry.name.isdecimal():
                continue
            with suppress(OSError, ValueError, KeyError):
                process, ticks = read(int(entry.name)), json.loads(entry.read_text())["start_ticks"]
                if process is not None and process.ticks == ticks:
                    found.append(process)
        return found
