"""What the processes of a server do, by /proc, of real processes."""

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from vllmd.observe.process_states import activity_of, compiles
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


def test_the_activity_of_a_process_is_that_of_all_that_descend_from_it() -> None:
    """A child that computes counts; one that is stopped is told; what has ended has none."""
    with subprocess.Popen(["sh", "-c", "yes > /dev/null & wait"], start_new_session=True) as process:
        try:
            until(lambda: cpu_of(process.pid) > 0.05)
            assert not stopped(process.pid)
            child = psutil.Process(process.pid).children()[0]
            child.send_signal(signal.SIGSTOP)
            until(lambda: stopped(process.pid))
            before_s = cpu_of(process.pid)
            assert cpu_of(process.pid) == before_s
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert activity_of(process.pid) is None


def cpu_of(pid: int) -> float:
    """Return the CPU time of a process and its children; 0 if it has ended."""
    activity = activity_of(pid)
    return activity.cpu_s if activity is not None else 0.0


def stopped(pid: int) -> bool:
    """Whether a process or a child of it is stopped."""
    activity = activity_of(pid)
    return activity is not None and activity.stopped


def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds; /proc sends no event."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "it does not come to that"
        time.sleep(0.01)


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
