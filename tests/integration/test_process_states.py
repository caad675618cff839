"""What the processes of a server do, by /proc, of real processes."""

import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vllmd.observe.process_states import compiles
from vllmd.observe.processes import identity, own_zombies

LIMIT_S = 10.0


@contextmanager
def running(program: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program that computes for ever, for as long as the block runs."""
    with subprocess.Popen([str(program)], stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["cc1plus", "ptxas", "python3"])
def test_a_compiler_that_computes_is_seen_and_one_that_is_stopped_is_not(tmp_path: Path, name: str) -> None:
    """By its name: `yes` under a compiler's computes as well as one."""
    yes = shutil.which("yes")
    assert yes is not None
    shutil.copy(yes, tmp_path / name)
    with running(tmp_path / name) as process:
        found = identity(process.pid)
        assert found is not None
        assert compiles([found]) is (name != "python3")
        process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + LIMIT_S
        while compiles([found]) and time.monotonic() < deadline:
            time.sleep(0.01)  # a stop sends no event to who is not its parent
        assert not compiles([found])


def test_children_are_looked_for_while_threads_end() -> None:
    """A thread may end between its name and its children; no child is missed for that in the end."""
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            threading.Thread(target=time.monotonic).start()

    busy = threading.Thread(target=come_and_go)
    busy.start()
    try:
        with subprocess.Popen(["true"]) as child:
            deadline = time.monotonic() + LIMIT_S
            looks = 0
            while looks < 2000 or child.pid not in own_zombies():
                assert time.monotonic() < deadline or looks < 2000, "the child is not found"
                own_zombies()
                looks += 1
    finally:
        over.set()
        busy.join()
