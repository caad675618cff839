"""A program is spawned at a gate: it runs as it would without one, after it was recorded, or never."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from vllmd.act.spawn import spawn

LIMIT_S = 20.0
T = TypeVar("T")


def spawned(folder: Path, *argv: str, record: Callable[[int], T]) -> tuple[int | None, T]:
    """Run a program to its end, its output in the file `output`; return its exit code and what was recorded."""
    descriptor = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        child, recorded = asyncio.run(spawn(argv, os.environ, descriptor, record))
    finally:
        os.close(descriptor)
    return child.wait(LIMIT_S), recorded


def test_it_runs_as_the_recorded_process_with_no_input_and_default_signals(tmp_path: Path) -> None:
    """The gate leaves no trace: pid, session, environment, signals and open files are those of a plain start."""
    look = "echo $$; ls /proc/self/fd; readlink /proc/self/fd/0; grep Sig[BI] /proc/self/status; env | sort; exit 7"
    code, pid = spawned(tmp_path, "sh", "-c", look, record=lambda pid: pid)
    plain = subprocess.Popen(
        ("sh", "-c", look), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    told, *rest = (tmp_path / "output").read_text().splitlines()
    added = {"LC_CTYPE=C.UTF-8"}  # by Python, in the C locale
    assert (code, told) == (7, str(pid))
    expected = plain.communicate(timeout=LIMIT_S)[0].splitlines()[1:]
    assert set(rest) - added == set(expected) - added


def test_where_it_is_not_recorded_it_never_runs(tmp_path: Path) -> None:
    """The daemon dies between the spawn and the record: the process ends at the gate."""
    pids = []

    def die(pid: int) -> None:
        pids.append(pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spawned(tmp_path, "touch", str(tmp_path / "ran"), record=die)
    assert os.waitpid(pids[0], 0) == (pids[0], 0)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("mode", "error"), [(0o600, PermissionError), (0o700, FileNotFoundError)])
def test_what_cannot_be_started_is_an_error(tmp_path: Path, mode: int, error: type[OSError]) -> None:
    """A file that is no program, and a script whose interpreter has gone, are told as a plain start tells them."""
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(mode)
    with pytest.raises(error, match=r".+"):
        spawned(tmp_path, str(script), record=lambda pid: pid)
    with pytest.raises(error):
        subprocess.run([sys.executable, "-c", ""], executable=str(script), check=False, timeout=LIMIT_S)
