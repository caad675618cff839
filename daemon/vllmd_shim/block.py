"""The control block: one page of memory that a daemon, an API server and an engine share, each writing its own words.

Every number is one aligned word of 8 bytes in the host's byte order, written by one store and read by one load, so that
none is ever read half-written. The file is made at full size by the daemon, written in place, and never truncated: that
would end the engine with SIGBUS. README.md has the table of the words.
"""

import mmap
import os
import sys

BLOCK_BYTES = 4096  # one page on every machine that vLLM runs on; a larger page holds it too
LAYOUT = 1
MAGIC = int.from_bytes(b"vllmdblk", "little")
VARIABLE = "VLLMD_SHIM_BLOCK"  # names the block's file to the server; no VLLM_* name, which vLLM's cache would hash

REPORT_OFFSET = 512
_REPORT_BYTES = BLOCK_BYTES - REPORT_OFFSET
_REASON_BYTES = 300  # of a reason: an error's text has any length, and all three lines must fit
_READS = 100  # of the report while it is being written, which takes microseconds


class Word:
    """The words by their place: up to GATE the daemon writes, to OWN_NS the engine, to KEPT_NS the API server.

    From AT_GATE on each worker has a word, up to the report.

    Words are only ever added: one that an older side does not know stays 0.

    Plain numbers, no enum: an engine looks some twenty of them up in every step.
    """

    MAGIC = 0
    LAYOUT = 1
    ASK_BUDGET = 2  # tokens a step; 0: what was launched
    ASK_SEQS = 3  # active sequences; 0: what was launched
    DRAIN = 4  # 1: every connection is to end with its next answer
    GATE = 5  # seconds that a worker waits at the gate at most; 0: it is open
    ENGINE_PID = 8  # as the engine knows itself; 0: none has come
    REPORT = 9  # odd while the report is being written; it grows with each writing
    LAUNCHED_BUDGET = 10  # 0: not live
    LAUNCHED_SEQS = 11
    STEPS = 12
    STEP_NS = 13  # CLOCK_MONOTONIC at the beginning of the last step
    LONGEST_NS = 14  # the longest time from one step to the next with requests running throughout
    RUNNING = 15
    WAITING = 16
    TOKENS = 17  # scheduled in the last step
    TOKENS_TOTAL = 18
    BUDGET = 19  # in force in the last step
    SEQS = 20
    SEEN_BUDGET = 21  # what the last step found asked for
    SEEN_SEQS = 22
    OWN_NS = 23  # spent in the shim, in all
    API_PID = 24  # of the API server, once its requests are counted
    SHARED = 25  # 1: its port is bound with SO_REUSEPORT
    IN_FLIGHT = 26  # requests
    REQUESTS = 27  # that have come, in all
    KEPT_NS = 28  # CLOCK_MONOTONIC at the end of the last answer whose connection was kept
    AT_GATE = 48  # of local rank 0, and so on for each: 1 it waits at the gate, 2 it has passed it


class BlockError(Exception):
    """A file is no control block, or one of another layout."""


class Block:
    """One mapped block: its `words` are read and written by index, each whole. Open it with `opened`."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped = mapped
        self.words = memoryview(mapped).cast("Q")

    def write_report(self, lines: "dict[str, str]") -> None:
        """Write what is off and why, name by name; an empty reason means that it works. Other names stay."""
        known = {**(self.read_report() or {}), **lines}
        text = b"".join(f"{name}=".encode() + _line_of(reason) + b"\n" for name, reason in known.items())
        data = text[:_REPORT_BYTES].ljust(_REPORT_BYTES, b"\0")
        writing = self.words[Word.REPORT] | 1
        self.words[Word.REPORT] = writing
        self._mapped[REPORT_OFFSET:BLOCK_BYTES] = data
        self.words[Word.REPORT] = writing + 1

    def read_report(self) -> "dict[str, str] | None":
        """Return what is off and why; None before there is a report, or while it is being written."""
        for _ in range(_READS):
            before = self.words[Word.REPORT]
            data = self._mapped[REPORT_OFFSET:BLOCK_BYTES]
            if before == self.words[Word.REPORT] and before % 2 == 0:
                lines = data.rstrip(b"\0").decode(errors="replace").splitlines()
                return dict(line.partition("=")[::2] for line in lines) if before else None
        return None

    def close(self) -> None:
        """Unmap it."""
        self.words.release()
        self._mapped.close()


def _line_of(reason: str) -> bytes:
    """Return a reason as one line, cut between two characters so that every name's line fits."""
    cut = " ".join(reason.split()).encode(errors="replace")[:_REASON_BYTES]
    return cut.decode(errors="ignore").encode()


def fresh_bytes() -> bytes:
    """Return what a new block's file holds."""
    head = MAGIC.to_bytes(8, sys.byteorder) + LAYOUT.to_bytes(8, sys.byteorder)
    return head.ljust(BLOCK_BYTES, b"\0")


def opened(path: str) -> Block:
    """Map a block. BlockError for what is none; OSError where it cannot be opened."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        found = os.fstat(descriptor)
        if found.st_size != BLOCK_BYTES:
            raise BlockError(f"{path} has {found.st_size} bytes, a control block has {BLOCK_BYTES}")
        if found.st_uid != os.geteuid():
            raise BlockError(f"{path} belongs to uid {found.st_uid}")
        block = Block(mmap.mmap(descriptor, BLOCK_BYTES))
    finally:
        os.close(descriptor)
    magic, layout = block.words[Word.MAGIC], block.words[Word.LAYOUT]
    if (magic, layout) != (MAGIC, LAYOUT):
        block.close()
        raise BlockError(f"{path} is no control block of layout {LAYOUT}")
    return block
