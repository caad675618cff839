"""Fifty random faults, as `make chaos` draws a thousand; and whether what looks for violations sees one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from chaos.processes import read
from chaos.told import Told
from chaos.violation import Violation
from chaos.watch import Watch
from vllmd.report.ledger import open_ledger

TESTS = Path(__file__).parents[1]
LIMIT_S = 500.0  # 110 s on two busy cores without faults in planned restarts, of which one may take 30 s
END_LIMIT_S = 30.0


@pytest.mark.timeout(550)
def test_fifty_random_faults_break_no_promise() -> None:
    """Another seed each time; it stands in what a failure prints, with the command that draws the same faults again."""
    environ = {"FAULTS": "50", "BURST": "8", **os.environ, "PYTHONPATH": str(TESTS)}
    output, code = "", None
    with subprocess.Popen(
        [sys.executable, "-m", "chaos"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        try:
            output, _ = run.communicate(timeout=LIMIT_S)
            code = run.returncode
        except subprocess.TimeoutExpired:
            run.terminate()  # it ends what it started, and says how far it came
            output, _ = run.communicate(timeout=END_LIMIT_S)
    assert code == 0, output[-20_000:]
    print(output)  # noqa: T201 - shown with `-s`: the seed, and the times


@contextmanager
def server(gpu: Path) -> Iterator[None]:
    """Run something in a session of its own that holds memory of the device, for as long as the block runs."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        try:
            found = read(process.pid)
            assert found is not None
            (gpu / str(process.pid)).write_text(json.dumps({"bytes": 1, "start_ticks": found.ticks}))
            yield
        finally:
            process.kill()


def test_the_watch_sees_two_servers_at_once(tmp_path: Path) -> None:
    """A launch after the end of another is right, one beside another is not."""
    watch = Watch(tmp_path)
    for _ in range(2):
        with server(tmp_path):
            watch.look()
    assert watch.found is None
    with server(tmp_path):
        watch.look()
        with server(tmp_path):
            watch.look()
    assert watch.found is not None
    assert "two servers at once" in watch.found


def test_a_decision_that_the_ledger_lacks_is_a_violation(tmp_path: Path) -> None:
    """What was told has to be stored, what was excused has not; and no number comes twice."""
    log = tmp_path / "vllmd.log"
    told = Told(log, tmp_path)
    with closing(open_ledger(tmp_path, str)):
        log.write_text('{"event": "decision", "id": "D1"}\n')
        told.read(excused=True)
        told.compare({"decisions": [{"id": "D1"}]})
        log.write_text(log.read_text() + '{"event": "decision", "id": "D2"}\n')
        told.read()
        with pytest.raises(Violation, match="not in the ledger: D2"):
            told.compare({"decisions": []})
    log.write_text(log.read_text() + '{"event": "decision", "id": "D2"}\n')
    with pytest.raises(Violation, match="decision 2 was told after decision 2"):
        told.read()
