"""The end of a service: whether it is a stop for good, and that no control block outlives its server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes import FakeClock
from vllmd.act.launcher import RECORD_NAME
from vllmd.act.live_block import LiveBlock
from vllmd.act.server_file import ServerRecord, read_record, write_record
from vllmd.act.session import Session
from vllmd.cli.reaping import Stop, reap_instance, stop_of
from vllmd.model.flags import Flags
from vllmd.model.server import ProcessId
from vllmd.observe.processes import boot_id

NOBODY = ProcessId(2**22 + 1, 1)  # above every pid that Linux gives (proc(5), pid_max)


@pytest.mark.parametrize(
    ("result", "job", "stop"),
    [
        ("success", " 12 vllmd@a.service stop running", Stop.REAL),
        ("timeout", "12 vllmd@a.service stop running\n", Stop.REAL),
        ("signal", "12 vllmd@a.service stop waiting\n", Stop.REAL),
        ("success", "12 vllmd@a.service restart running\n", Stop.NONE),
        ("timeout", "12 vllmd@a.service start running\n", Stop.NONE),
        ("timeout", "", Stop.NONE),
        ("watchdog", "", Stop.NONE),
        ("exit-code", "", Stop.NONE),
        ("success", "", Stop.PERHAPS),
        ("success", "garbage", Stop.PERHAPS),
        ("success", None, Stop.PERHAPS),
    ],
)
def test_the_job_says_whether_another_vllmd_comes(tmp_path: Path, result: str, job: str | None, stop: Stop) -> None:
    """A start that took too long ends by a time-out, too, and is no stop."""
    file = tmp_path / "job"
    if job is not None:
        file.write_text(job)
    assert stop_of(result, file) is stop


@pytest.fixture
def block(tmp_path: Path) -> Iterator[Path]:
    """Leave the record of a server that has ended, with its control block."""
    made = LiveBlock()
    made.prepare({}, Flags(), tmp_path / "plugin", "", address="", wanted=True)
    write_record(tmp_path / RECORD_NAME, ServerRecord(boot_id(), 1, NOBODY, block=made.path))
    yield Path(made.path)
    made.remove(made.path)


def test_a_reap_of_nothing_takes_the_block_away(block: Path, tmp_path: Path) -> None:
    """Its server ended while no vllmd ran, and no launch comes that would remove it."""
    assert block.exists()
    assert reap_instance(tmp_path, 1.0, keep_left=False) == ("nothing is left", False)
    assert not block.exists()


def test_a_record_that_is_given_up_takes_its_block_along(block: Path, tmp_path: Path) -> None:
    """Nobody would know of it any more."""
    session = Session(tmp_path / RECORD_NAME, read_record(tmp_path / RECORD_NAME), FakeClock())
    assert block.exists()
    session.disown()
    assert not block.exists()
    assert session.record is None
