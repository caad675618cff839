"""A real kill by the kernel, in a cgroup of the test's own, is counted where vllmd looks for it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllmd.observe.cgroup import oom_kills

ROOT = Path("/sys/fs/cgroup")
LIMIT_BYTES = 64 * 2**20
GREEDY = "held = bytearray(256 * 2**20)"


def own_path() -> str | None:
    """Return our path below the memory controller of version 1; None where there is none."""
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    return next((line.split(":", 2)[2] for line in lines if "memory" in line.split(":", 2)[1].split(",")), None)


@pytest.fixture
def cgroup() -> Iterator[str]:
    """Give the path of a new cgroup with little memory."""
    own = own_path()
    if own is None or os.geteuid() != 0:
        pytest.skip("needs root, and the memory controller of cgroups version 1")
    path = f"{own.rstrip('/')}/vllmd-test-{os.getpid()}"
    folder = ROOT / "memory" / path.lstrip("/")
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield path
    folder.rmdir()


def test_a_process_that_the_kernel_kills_is_counted(cgroup: str, tmp_path: Path) -> None:
    """Once for each process, and not before."""
    membership = tmp_path / "cgroup"
    membership.write_text(f"4:memory:{cgroup}\n0::/\n")
    assert oom_kills(membership) == 0
    procs = ROOT / "memory" / cgroup.lstrip("/") / "cgroup.procs"
    join = f'echo $$ > {procs} && exec "$0" -c "{GREEDY}"'
    done = subprocess.run(["sh", "-c", join, sys.executable], check=False, timeout=60)
    assert done.returncode == -9
    assert oom_kills(membership) == 1
