"""A log file as lines: any size, any bytes."""

import time
import tracemalloc
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vllmd.decide.diagnose import diagnose
from vllmd.model.launch_end import LaunchEnd
from vllmd.model.masking import Masker
from vllmd.observe.child_log import LINE_LIMIT
from vllmd.observe.log_file import LogFile


@given(st.lists(st.binary(max_size=30).filter(lambda b: b"\n" not in b)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lines_come_back_as_they_stand(tmp_path: Path, lines: list[bytes]) -> None:
    """Each line once, in order; what is no UTF-8 is replaced."""
    path = tmp_path / "log"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    assert list(LogFile(path)) == [line.decode("utf-8", "replace").strip("\0\r") for line in lines]


def test_a_line_without_an_end_is_a_line(tmp_path: Path) -> None:
    """A server that was killed may have stopped within a word."""
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo")
    assert list(LogFile(path)) == ["one", "two"]
    assert list(LogFile(path)) == ["one", "two"]


def test_ten_megabytes_in_one_line_are_cut(tmp_path: Path) -> None:
    """A dumped input costs neither time nor memory, and what follows is read."""
    path = tmp_path / "log"
    path.write_bytes(b"CUDA out of memory. " * 500_000 + b"\nlast")
    tracemalloc.start()
    lines = list(LogFile(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [len(line) for line in lines] == [LINE_LIMIT, 4]
    assert peak < 5 * 2**20


def test_a_hundred_thousand_lines_are_not_held(tmp_path: Path) -> None:
    """A log of 15 MB is diagnosed in a small part of its size."""
    path = tmp_path / "log"
    path.write_text(
        "(EngineCore pid=2) INFO 11-29 16:49:53 [loggers.py:271] Engine 000: some statistics, and more\n" * 100_000
    )
    tracemalloc.start()
    started = time.process_time()
    diagnose(LogFile(path), LaunchEnd(), Masker())
    spent_s = time.process_time() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * 2**20
    assert spent_s < 10  # counted allocations make it slow
