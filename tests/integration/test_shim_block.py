"""Two processes and one control block: nothing that one writes is read half-written by the other."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllmd_shim.block import Block, Word, fresh_bytes, opened

DAEMON = Path(__file__).parents[2] / "daemon"
LOOK_S = 2.0  # a store of eight single bytes shows within milliseconds
LIMIT_S = 30.0

WRITER = """
import sys
from vllmd_shim.block import Word, opened
block = opened(sys.argv[1])
words = block.words
while words[Word.ASK_SEQS] == 0:
    words[Word.STEP_NS] = 0
    words[Word.STEP_NS] = 2**64 - 1
    for letter in "ab":
        block.write_report({"budget": letter * 3000})
"""


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Block]:
    """Map a block into which another process writes without a pause."""
    path = tmp_path / "block"
    path.write_bytes(fresh_bytes())
    block = opened(str(path))
    environment = {"PYTHONPATH": str(DAEMON)}
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], env=environment) as writer:
        try:
            deadline = time.monotonic() + LIMIT_S
            while not block.words[Word.REPORT]:
                assert writer.poll() is None
                assert time.monotonic() < deadline
            yield block
            assert writer.poll() is None
        finally:
            block.words[Word.ASK_SEQS] = 1
            writer.wait(LIMIT_S)


def test_no_word_is_read_half_written(written: Block) -> None:
    """All ones and all zeros in turn, and nothing between."""
    seen = set()
    end = time.monotonic() + LOOK_S
    while time.monotonic() < end:
        seen.add(written.words[Word.STEP_NS])
    assert seen == {0, 2**64 - 1}


def test_no_report_is_read_half_written(written: Block) -> None:
    """One letter in it, never two; while it is being written, none."""
    seen = set()
    end = time.monotonic() + LOOK_S
    while time.monotonic() < end:
        if (report := written.read_report()) is not None:
            seen.add(frozenset(report["budget"]))
    assert seen == {frozenset("a"), frozenset("b")}
