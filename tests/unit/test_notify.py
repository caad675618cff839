"""How often the service manager wants a sign of life."""

from collections.abc import Mapping

import pytest

from vllmd.report.notify import alive_every_s

PID = 4711


@pytest.mark.parametrize(
    ("env", "every_s"),
    [
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "4711"}, 7.5),
        ({"WATCHDOG_USEC": "30000000"}, 7.5),
        ({"WATCHDOG_USEC": "1000000"}, 0.25),
    ],
)
def test_a_quarter_of_the_limit(env: Mapping[str, str], every_s: float) -> None:
    """A sign of life comes four times in the time that the manager waits for one."""
    assert alive_every_s(env, PID) == every_s


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"WATCHDOG_PID": "4711"},
        {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "4712"},
        {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": ""},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "-30000000"},
        {"WATCHDOG_USEC": "30s"},
        {"WATCHDOG_USEC": "٣٠"},
        {"WATCHDOG_USEC": ""},
    ],
)
def test_no_watchdog(env: Mapping[str, str]) -> None:
    """Without a limit, with one that is none, or with one for another process, nothing is wanted."""
    assert alive_every_s(env, PID) is None
