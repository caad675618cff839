"""What the control socket's commands may be asked with, and how operators write times."""

import time
from typing import Any

import click
import pytest

from house import ARGV, house, settings
from vllmd.cli.explain import explain
from vllmd.cli.history import moment
from vllmd.cli.pause import pause
from vllmd.errors import ControlError
from vllmd.model.orders import PAUSE_LIMIT_S, Pause
from vllmd.model.settings import Slo
from vllmd.operator import operator_commands, read_asked, read_pause
from vllmd.report.control import Peer
from vllmd.report.ledger_history import Asked


def test_a_pause_is_read_whole() -> None:
    """Length, reason and what it keeps come from the request; the reason is one harmless line."""
    request = {"for_s": 60, "reason": "CHG-1\n\x1b", "keep_recovery": True}
    assert read_pause(request, 1000.0, "anna", str) == Pause(
        1000.0, 1060.0, "anna", "CHG-1\\n\\x1b", keeps_recovery=True
    )
    assert read_pause({"for_s": None}, 1000.0, "anna", str) == Pause(1000.0, None, "anna")


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"for_s": 0},
        {"for_s": -1},
        {"for_s": "8h"},
        {"for_s": True},
        {"for_s": PAUSE_LIMIT_S + 1},
        {"for_s": 1, "reason": 1},
    ],
)
def test_a_wrong_pause_is_refused(request_: dict[str, Any]) -> None:
    """What is no length of time, or too long, is refused with what was found."""
    with pytest.raises(ControlError, match="found"):
        read_pause(request_, 0.0, "anna", str)


def test_a_secret_in_the_reason_goes_nowhere() -> None:
    """A key of the server's that stands in the reason of a pause is masked before anything hears of it."""
    built = house(settings(Slo()), (*ARGV, "--api-key", "planted-api-key-1"))
    built.loop.begin()
    commands = operator_commands(built.loop, built.clock, lambda: built.told[-1])
    answer = commands["pause"].answer({"for_s": 60, "reason": "key planted-api-key-1"}, Peer(1, 0, 0))
    assert answer["paused"]["reason"] == "key ***"
    assert built.told[-1].pause is not None
    assert built.told[-1].pause.reason == "key ***"
    long = "x" * 190 + " planted-api-key-1"  # what is cut off must not leave the beginning of the key
    answer = commands["pause"].answer({"for_s": 60, "reason": long}, Peer(1, 0, 0))
    assert answer["paused"]["reason"] == "x" * 190 + " ***"


def test_resume_tells_how_long_it_was_paused() -> None:
    """The end of a pause says how long it lasted; a second end is refused."""
    built = house(settings(Slo()))
    built.loop.begin()
    commands = operator_commands(built.loop, built.clock, lambda: built.told[-1])
    commands["pause"].answer({"for_s": 60}, Peer(1, 0, 0))
    built.clock.at_s += 34
    assert commands["resume"].answer({}, Peer(1, 0, 0))["paused_seconds"] == 34
    with pytest.raises(ControlError, match="not paused"):
        commands["resume"].answer({}, Peer(1, 0, 0))


@pytest.mark.parametrize("command", ["pause", "resume", "forget"])
def test_an_order_that_is_not_stored_is_said_to_be_none(command: str) -> None:
    """On a full disk an order holds for this daemon; whoever gave it learns that the next one will not know."""
    built = house(settings(Slo()))
    built.loop.begin()
    commands = operator_commands(built.loop, built.clock, lambda: built.told[-1])
    assert "not_stored" not in commands["pause"].answer({"for_s": 60}, Peer(1, 0, 0))
    built.ledger.problem = "the disk is full"
    assert commands[command].answer({"for_s": 60}, Peer(1, 0, 0))["not_stored"] == "the disk is full"


def test_a_question_about_the_past_is_read_whole() -> None:
    """Every field may be left out; the command's own name is none of them."""
    assert read_asked({"command": "history"}) == Asked()
    asked = {"since_s": 5, "holds": True, "limit": 3, "before": "D2"}
    assert read_asked(asked) == Asked(since_s=5.0, before="D2", holds=True, limit=3)


@pytest.mark.parametrize("request_", [{"limit": 0}, {"limit": 201}, {"limit": "x"}, {"since_s": "7d"}, {"before": 3}])
def test_a_wrong_question_is_refused(request_: dict[str, Any]) -> None:
    """A field of the wrong type, and more than a page holds, are refused."""
    with pytest.raises(ControlError):
        read_asked(request_)


def read_moment(text: str | None) -> float | None:
    """Return a time as --since reads it."""
    return moment(click.Context(explain), click.Option(["--since"]), text)


def test_times_are_dates_or_ages() -> None:
    """A day, a time with or without a zone, and how long ago."""
    assert read_moment("2026-09-24T17:16:48Z") == 1_790_270_208.0
    assert read_moment("2026-09-24T19:16:48+02:00") == 1_790_270_208.0
    assert read_moment("2026-09-24 17:16:48") == 1_790_270_208.0
    assert read_moment("2026-09-24") == 1_790_208_000.0
    assert read_moment("7d") == pytest.approx(time.time() - 7 * 86400, abs=60)
    assert read_moment(None) is None


@pytest.mark.parametrize("text", ["", "7", "yesterday", "2026-13-01", "-1d"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """A time that cannot be read is a usage error that shows how one is written."""
    with pytest.raises(click.BadParameter, match="is no time"):
        read_moment(text)


@pytest.mark.parametrize("args", [["--for", "3q"], ["--for", "0s"], ["--for", "31d"], ["--for", "1h", "--forever"]])
def test_a_wrong_length_is_refused_before_the_daemon_is_asked(args: list[str]) -> None:
    """What is no length of a pause is a usage error."""
    with pytest.raises(click.UsageError):
        pause.main(args, standalone_mode=False)


@pytest.mark.parametrize("args", [["a", "b"], ["D1", "a", "b"], ["qwen", "D1"]])
def test_words_that_are_no_question_are_refused(args: list[str]) -> None:
    """An explanation is asked for by an id, then a name."""
    with pytest.raises(click.UsageError):
        explain.main(args, standalone_mode=False)
