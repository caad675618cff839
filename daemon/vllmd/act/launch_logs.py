"""One log file a launch. The server writes it directly: a pipe whose reader stalls would freeze vLLM."""

import ctypes
import os
import re
from pathlib import Path

_NAME = re.compile(r"engine-(\d+)\.log")
# include/uapi/linux/falloc.h
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02
_HEAD_BYTES = 2**20  # the start lines stay: they hold every number of the memory profile


def log_path(folder: Path, generation: int) -> Path:
    """Return the log file of a launch."""
    return folder / f"engine-{generation:04d}.log"


def evidence_path(folder: Path, generation: int) -> Path:
    """Return the file for the evidence of a launch that hung; it is dropped with the launch's log."""
    return folder / f"evidence-{generation:04d}.txt"


def open_log(folder: Path, generation: int, keep: int, spared: int | None = None) -> int:
    """Create a launch's log, readable by its owner only, drop all but the last `keep` logs, return a descriptor.

    That of the generation that serves is `spared`, which is known by it where its record is lost.
    """
    folder.mkdir(mode=0o750, parents=True, exist_ok=True)
    descriptor = os.open(
        log_path(folder, generation), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, mode=0o600
    )
    for number, old in _numbered(folder)[:-keep]:
        if number != spared:
            old.unlink(missing_ok=True)
            evidence_path(folder, number).unlink(missing_ok=True)
    return descriptor


def launch_logs(folder: Path) -> list[Path]:
    """Return the logs of all launches, oldest first."""
    return [path for _, path in _numbered(folder)]


def generation_of(path: Path | None, folder: Path) -> int | None:
    """Return the generation whose log a path in a folder is, None if it is none."""
    match = _NAME.fullmatch(path.name) if path is not None and path.parent == folder.resolve() else None
    return int(match.group(1)) if match else None


def last_generation(folder: Path) -> int:
    """Return the highest generation that has a log, 0 if none has: no launch may append to an earlier one's."""
    numbered = _numbered(folder) if folder.is_dir() else []
    return numbered[-1][0] if numbered else 0


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    return sorted((int(m.group(1)), path) for path in folder.iterdir() if (m := _NAME.fullmatch(path.name)))


def cap_size(path: Path, limit_bytes: int) -> bool:
    """Free the middle of a log whose blocks take more than the limit; return whether it was done.

    The file keeps its length, and the server goes on appending: the freed part reads as zero bytes.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    if status.st_blocks * 512 <= limit_bytes:
        return False
    head = min(_HEAD_BYTES, limit_bytes // 4)
    length = status.st_size - head - limit_bytes // 2
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb+") as log:
        punched = libc.fallocate(
            log.fileno(),
            _KEEP_SIZE | _PUNCH_HOLE,
            ctypes.c_long(head),
            ctypes.c_long(max(0, length)),
        )
    return length > 0 and punched == 0
