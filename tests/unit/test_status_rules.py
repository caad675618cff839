"""`vllmd status` without its terminal: exit codes, JSON of several, bare --watch, colour and characters."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from examples import example_status, held_status
from vllmd.cli.exits import Exit
from vllmd.cli.status import as_document, exit_code, with_interval
from vllmd.cli.terminal import is_utf8, wants_colour
from vllmd.model.status import Status
from vllmd.report.status_json import status_document
from vllmd.report.status_text import Seen


def seen(status: Status, problem: str = "") -> Seen:
    """Return what the daemon told, or told last when there is a problem."""
    return Seen(status.name, status_document(status), problem)


SERVING = seen(example_status())
DEGRADED = seen(example_status(budget=replace(example_status().budget, breaker_open=True)))
HELD = seen(held_status())
DEAD = seen(example_status(), "no daemon answers")
DENIED = Seen("qwen", None, "no permission", denied=True)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([SERVING], Exit.OK),
        ([DEGRADED], Exit.DEGRADED),
        ([HELD], Exit.NOT_SERVING),
        ([DEAD], Exit.UNREACHABLE),
        ([Seen("qwen", None, "nothing")], Exit.UNREACHABLE),
        ([DENIED], Exit.NO_PERMISSION),
        ([SERVING, HELD], Exit.NOT_SERVING),
        ([HELD, DEAD, SERVING], Exit.UNREACHABLE),
    ],
)
def test_exit_code(found: list[Seen], code: Exit) -> None:
    """The exit code tells the worst of what was seen."""
    assert exit_code(found, counts_degraded=True) is code


def test_degraded_counts_only_when_asked() -> None:
    """Without --exit-code a server that serves is 0, however it does."""
    assert exit_code([DEGRADED], counts_degraded=False) is Exit.OK


def test_json_of_several_is_one_object() -> None:
    """The instances of several daemons stand in one document."""
    document = as_document([SERVING, seen(held_status(name="embed"))])
    assert document["schema"] == "vllmd.status/v1"
    assert [(i["name"], i["state"]) for i in document["instances"]] == [("qwen", "serving"), ("embed", "held")]


def test_json_of_a_dead_daemon_does_not_claim_a_state() -> None:
    """A script that reads `state` never takes a stale one for the present one."""
    (instance,) = as_document([DEAD])["instances"]
    assert (instance["state"], instance["last_state"]) == ("unknown", "serving")
    assert instance["last_seen"] == "2026-09-24T17:16:48Z"
    assert instance["problem"] == "no daemon answers"


def test_json_of_what_left_no_trace() -> None:
    """An instance of which nothing is known is still one object with its name."""
    (instance,) = as_document([Seen("qwen", None, "nothing")])["instances"]
    assert (instance["name"], instance["state"]) == ("qwen", "unknown")


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (["-w"], ["-w", "2.0"]),
        (["-w", "5"], ["-w", "5"]),
        (["-w", "0.5", "qwen"], ["-w", "0.5", "qwen"]),
        (["-w", "qwen"], ["-w", "2.0", "qwen"]),
        (["qwen", "--watch", "--json"], ["qwen", "--watch", "2.0", "--json"]),
        (["--watch=3"], ["--watch=3"]),
        (["qwen"], ["qwen"]),
        ([], []),
    ],
)
def test_bare_watch_gets_its_interval(args: list[str], wanted: list[str]) -> None:
    """--watch takes a number where one follows; anything else is the instance's name."""
    assert with_interval(args) == wanted


@pytest.mark.parametrize(
    ("choice", "environ", "is_terminal", "wanted"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_colour(choice: str, environ: Mapping[str, str], *, is_terminal: bool, wanted: bool) -> None:
    """The option wins, then NO_COLOR, then FORCE_COLOR, then what the terminal is."""
    assert wants_colour(choice, environ, is_terminal=is_terminal) is wanted


@pytest.mark.parametrize(
    ("environ", "encoding", "wanted"),
    [
        ({"LANG": "en_GB.UTF-8"}, "utf-8", True),
        ({"LC_ALL": "C", "LANG": "en_GB.UTF-8"}, "utf-8", False),
        ({"LC_CTYPE": "C.utf8"}, "utf-8", True),
        ({"LANG": "en_GB.UTF-8"}, "ascii", False),
        ({}, "utf-8", False),
        ({"LANG": "C.UTF-8"}, None, False),
    ],
)
def test_characters(environ: Mapping[str, str], encoding: str | None, *, wanted: bool) -> None:
    """UTF-8 is drawn only where both locale and stream are."""
    assert is_utf8(environ, encoding) is wanted
