"""Whether the end of a service is a stop for good, by systemd's job and result."""

from pathlib import Path

import pytest

from vllmd.cli.reaping import Stop, stop_of


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
