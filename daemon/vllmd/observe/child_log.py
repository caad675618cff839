"""The server's log: new lines while it runs, and head and tail of it for a diagnosis. Its text is data."""

import re
from collections.abc import Iterable
from pathlib import Path

LINE_LIMIT = 8192  # characters; vLLM dumps whole inputs into one line
_HEAD_BYTES = 2**20  # a start prints some 20 KB: its root cause is in the head
_TAIL_BYTES = 3 * 2**20  # a runtime failure's is in the tail
# `(Worker_TP1 pid=12) ` at a line's start, `(VllmWorker rank=1 pid=12) ` in older versions, coloured on a terminal.
_SPEAKER = re.compile(r"(?:\x1b\[[\d;]*m)?\(([A-Za-z][^()]{0,60}) pid=(\d{1,10})\)")


class LogFollower:
    """Reads what was appended to a log since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def new_lines(self) -> list[str]:
        """Return the complete lines appended since the last call, at most 1 MiB of them."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._offset)
                data = log.read(_HEAD_BYTES)
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-LINE_LIMIT:]
        return [_text(line) for line in lines]


def read_for_diagnosis(path: Path) -> list[str]:
    """Return the log's lines: all of them, or head and tail of a long one with a line that says what is left out."""
    try:
        with path.open("rb") as log:
            size = path.stat().st_size
            if size <= _HEAD_BYTES + _TAIL_BYTES:
                return [_text(line) for line in log.read().split(b"\n")]
            head = log.read(_HEAD_BYTES)
            log.seek(size - _TAIL_BYTES)
            tail = log.read()
    except OSError:
        return []
    left_out = f"[{size - _HEAD_BYTES - _TAIL_BYTES} bytes left out]".encode()
    return [_text(line) for line in (*head.split(b"\n"), left_out, *tail.split(b"\n"))]


def names_in(lines: Iterable[str]) -> dict[int, str]:
    """Return what the server's processes call themselves in the log's lines, by pid. The last name counts.

    A worker is `VllmWorker-1` until it knows its ranks, and `Worker_TP1` from then on (vLLM 0.32).
    """
    return {int(found[2]): found[1] for line in lines if (found := _SPEAKER.match(line))}


def _text(line: bytes) -> str:
    return line[:LINE_LIMIT].decode("utf-8", errors="replace").strip("\0\r")
