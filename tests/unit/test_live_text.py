"""What is said of live values, on the status page and by `vllmd set`."""

from typing import Any

import click
import pytest

from vllmd.cli.set import read_assignment
from vllmd.model.flags import BATCHED_TOKENS, MAX_NUM_SEQS
from vllmd.model.live import Heartbeat, Knob, Live
from vllmd.model.orders import SetLive
from vllmd.model.status import LiveStatus
from vllmd.report.live_json import live_document
from vllmd.report.live_text import live_rows, set_line

UNTIL_S = 1_000_000.0


def document(knob: Knob, order: SetLive | None = None, other: Knob | None = None) -> dict[str, Any]:
    """Return the `live` of a status in which the budget and the cap are these."""
    knobs = {BATCHED_TOKENS: knob, MAX_NUM_SEQS: other or Knob("", 64, None, None, 64)}
    return live_document(LiveStatus(Live(knobs), (order,) if order else ()))


def shown(live: dict[str, Any]) -> str:
    """Return the rows as text."""
    return "\n".join("".join(word for word, _ in row) for row in live_rows({"live": live}))


ORDER = SetLive(0.0, "anna", BATCHED_TOKENS, 256, UNTIL_S, 1)


@pytest.mark.parametrize(
    ("knob", "order", "said"),
    [
        (Knob("", 2048, 256, 256, 256), ORDER, "max-num-batched-tokens 256 of 2048, set by anna until 1970-01-12"),
        (Knob("", 2048, 256, None, 2048), ORDER, "in force from the engine's next step on"),
        (Knob("", 2048, 256, 256, 300), ORDER, "in force 300, which the running requests need"),
        (Knob("", 2048, None, None, 2048), None, "max-num-batched-tokens 2048, as launched"),
        (Knob("its block is lost"), None, "max-num-batched-tokens not live: its block is lost"),
    ],
)
def test_a_value_is_told_with_its_end_and_what_is_in_force(knob: Knob, order: SetLive | None, said: str) -> None:
    """One line says what was asked for, by whom, until when, and where the engine does otherwise."""
    line = set_line(document(knob, order)["flags"][0])
    assert said in line
    assert ("in force" in line) == ("in force" in said)


def test_the_page_shows_what_is_set_and_what_is_off() -> None:
    """Nothing where all is as launched; a reason once, with every flag that it holds for."""
    launched = Knob("", 2048, None, None, 2048)
    assert shown(document(launched)) == ""
    assert "set by anna" in shown(document(Knob("", 2048, 256, 256, 256), ORDER))
    both = shown(document(Knob("not loaded"), None, Knob("not loaded")))
    assert "max-num-batched-tokens, max-num-seqs not live: not loaded" in both
    assert shown({}) == ""


def test_the_page_shows_why_a_restart_would_be_a_plain_one() -> None:
    """Nothing where connections would wait."""
    assert "Restart" not in shown(live_document(LiveStatus(Live({}))))
    assert "would refuse connections: no sysctl" in shown(
        live_document(LiveStatus(Live({}), plain_restart="no sysctl"))
    )


def test_a_heartbeat_is_told() -> None:
    """How long ago the last step began, and what the shim costs a step."""
    beat = Heartbeat(steps=4, step_s=1.0, longest_s=0.25, running=2, waiting=1, tokens=256, own_s=0.0001)
    told = live_document(LiveStatus(Live({}, beat), (), 1.5))["heartbeat"]
    assert told["silent_seconds"] == 1.5
    assert told["overhead_seconds_per_step"] == 0.000025


@pytest.mark.parametrize("written", ["--max-num-seqs=8", "max-num-seqs=8", "max_num_seqs=8"])
def test_a_flag_may_be_written_in_every_way(written: str) -> None:
    """With dashes in front or without, with underscores or dashes within."""
    assert read_assignment(written) == (MAX_NUM_SEQS, 8)
    assert read_assignment("max-num-seqs=launched") == (MAX_NUM_SEQS, None)


@pytest.mark.parametrize("written", [None, "", "max-num-seqs", "=8", "max-num-seqs=", "max-num-seqs=-1", "a=1.5"])
def test_what_is_no_assignment_is_a_usage_error(written: str | None) -> None:
    """It says what was wanted."""
    with pytest.raises(click.UsageError, match="wanted"):
        read_assignment(written)
