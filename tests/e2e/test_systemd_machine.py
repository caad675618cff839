"""The machine of the tests under systemd: it ends with the tests, also with ones that fail, hang or are killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from e2e.systemd_machine import Machine, booted

pytestmark = pytest.mark.usefixtures("real_systemd")

TESTS = Path(__file__).parents[1]
END_LIMIT_S = 30.0


def test_a_machine_ends_with_a_block_that_fails(tmp_path: Path) -> None:
    """No process, no mount and no control group is left, and a command inside has its limit."""
    seen: list[psutil.Process] = []

    def use(machine: Machine) -> None:
        seen.extend(machine.processes())
        started_s = time.monotonic()
        with pytest.raises(AssertionError, match="not within 1 s"):
            machine.run("sleep", "60", within_s=1)
        assert time.monotonic() - started_s < 10
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), booted(tmp_path) as machine:
        use(machine)
    assert seen
    assert not any(process.is_running() for process in seen)
    assert leftovers(tmp_path) == []


def test_a_machine_ends_with_tests_that_are_killed(tmp_path: Path) -> None:
    """Nobody is left to tell it to: the kernel does."""
    command = [sys.executable, "-m", "e2e.systemd_machine", str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True) as killed:
        assert killed.stdout is not None
        root = killed.stdout.readline().strip()  # "/proc/PID/root"; pytest's own limit bounds the wait
        of_the_machine = psutil.Process(killed.pid).children(recursive=True)
        killed.kill()
    assert root.endswith("/root")
    assert of_the_machine
    _, left = psutil.wait_procs(of_the_machine, END_LIMIT_S)
    assert left == []
    assert leftovers(tmp_path) == []


def leftovers(folder: Path) -> list[str]:
    """Return the mounts below a folder and the control groups of machines."""
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(folder) in line]
    return mounts + [str(group) for group in Path("/sys/fs/cgroup").rglob("vllmd-machine-*")]
