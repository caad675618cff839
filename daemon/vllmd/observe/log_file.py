"""A log file of any size and any bytes as lines of text, without holding it in memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vllmd.observe.child_log import LINE_LIMIT

_CHUNK_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class LogFile:
    """The lines of a file, each cut at LINE_LIMIT bytes; may be read more than once. OSError where it cannot be."""

    path: Path

    def __iter__(self) -> Iterator[str]:
        """Iterate over the lines, the last one too if nothing ends it."""
        rest = b""
        with self.path.open("rb") as log:
            while chunk := log.read(_CHUNK_BYTES):
                *lines, last = chunk.split(b"\n")
                if lines:
                    lines[0] = rest + lines[0]
                    rest = b""
                    for line in lines:
                        yield _text(line)
                rest = (rest + last)[:LINE_LIMIT]
        if rest:
            yield _text(rest)


def _text(line: bytes) -> str:
    """Return a line as text; what is no UTF-8 is replaced, and of what overwrote itself the last state stays."""
    return line[:LINE_LIMIT].decode("utf-8", errors="replace").strip("\0\r")
