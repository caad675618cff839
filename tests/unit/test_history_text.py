"""The table of the history: what each decision reads as, and what stands under it."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import NOW_S, example_change
from past_ledger import write_past
from vllmd.model.decision import Action, Domain, Effect, Hold, HoldReason, Outcome, Verification
from vllmd.model.flags import Flags
from vllmd.model.status import DecisionRecord
from vllmd.report.drawing import Look
from vllmd.report.history_json import history, history_document
from vllmd.report.history_text import history_page
from vllmd.report.ledger_history import Asked, Page, Told

SGR = re.compile(r"\x1b\[\d*m")


def drawn(*records: DecisionRecord | Hold, look: Look | None = None, more: bool = False) -> str:
    """Return the table of these decisions."""
    told = [
        Told("H7", NOW_S, record) if isinstance(record, Hold) else Told(record.change.id, NOW_S, record)
        for record in records
    ]
    return history_page(history_document("qwen", Page(tuple(told), more, 0)), look or Look())


def line(*records: DecisionRecord | Hold, look: Look | None = None) -> str:
    """Return the line of the first decision."""
    return drawn(*records, look=look).splitlines()[1]


def test_an_hour_reads_well(tmp_path: Path) -> None:
    """A page of a real ledger: newest first, each with when, why, what, how long and how it ended."""
    write_past(tmp_path)
    assert history_page(history(tmp_path, "qwen", Asked()), Look()).splitlines() == [
        "ID    WHEN (UTC)     TRIGGER                CHANGE                               DOWN   RESULT",
        "D3    09-24 17:06:48 rollback itl_p99       max-num-batched-tokens 2048 -> 8192  -      ? open",
        "D2    09-24 16:46:48 itl_p99                max-num-batched-tokens 8192 -> 2048  85 s   ✖ worse",
        "D1    09-24 16:17:19 utilization-too-high   gpu-memory-utilization 0.92 -> 0.88  -      ● serves",
        "",
        "3 changes made, 85 s without service for it.",
        "2 holds not shown (--all).",
        "`vllmd explain D3 qwen` for the reasoning",
    ]


def test_holds_stand_with_their_reason(tmp_path: Path) -> None:
    """With --all a hold says why nothing was done."""
    write_past(tmp_path)
    text = history_page(history(tmp_path, "qwen", Asked(holds=True)), Look())
    assert "H4    09-24 16:48:28 verifying              none: D2 is being verified           -      ○ held" in text
    assert "holds not shown" not in text


def test_the_next_page_is_named(tmp_path: Path) -> None:
    """Where older decisions follow, the option that shows them is named."""
    write_past(tmp_path)
    assert "Next page: --before D2" in history_page(history(tmp_path, "qwen", Asked(limit=2)), Look())


def test_nothing_decided_says_so() -> None:
    """An empty page is a sentence, and a command."""
    text = drawn()
    assert text.startswith("No decision is recorded")
    assert "`vllmd status qwen`" in text


@pytest.mark.parametrize(
    ("action", "trigger", "words"),
    [
        (Action.RESTART, "admin", "asked for"),
        (Action.REMEMBER, "first", "first launch"),
        (Action.RESTART, "quiet", "quiet time"),
        (Action.ROLLBACK, "itl_p99", "rollback itl_p99"),
        (Action.RECOVER, "max-model-len-too-long", "max-model-len-too-long"),
    ],
)
def test_triggers_read_well(action: Action, trigger: str, words: str) -> None:
    """What set a decision off is told in an operator's words, and not cut."""
    row = line(DecisionRecord(example_change(action=action, trigger=trigger)))
    assert row[21:44].rstrip() == words


@pytest.mark.parametrize(
    ("action", "words"), [(Action.RETRY, "same flags again"), (Action.RESTART, "same flags")], ids=["retry", "admin"]
)
def test_a_launch_with_the_same_flags_says_so(action: Action, words: str) -> None:
    """A decision that moves no flag is no empty cell."""
    change = example_change(action=action, changes={})
    assert line(DecisionRecord(change))[44:81].rstrip() == words


def test_a_live_value_that_was_lost_is_no_change() -> None:
    """What could not be brought back is told with its reason, and does not read as done."""
    change = example_change(action=Action.LIVE, changes={}, reason="cannot be reached any more: its block is lost")
    assert line(DecisionRecord(change))[44:81].startswith("none: cannot be reached any more")
    assert line(DecisionRecord(change))[81:] == "-      ▲ lost"
    asked_for = replace(CHANGE, action=Action.LIVE, proposal=replace(CHANGE.proposal, domain=Domain.ADMIN))
    assert line(DecisionRecord(asked_for))[81:] == "-      ● set"


def test_a_live_change_that_was_decided_is_told_with_what_it_brought() -> None:
    """As one that took a restart is; one that takes it back says so."""
    live = replace(CHANGE, action=Action.LIVE)
    outcome = Outcome(live, 3, served=True, outage_s=0.0)
    assert line(DecisionRecord(live, outcome))[81:] == "0.0 s  ▲ serves"
    verified = Verification(live.id, NOW_S, Effect.BETTER, "")
    assert line(DecisionRecord(live, outcome, verified))[81:] == "0.0 s  ● better"
    back = replace(live, proposal=replace(live.proposal, policy="rollback"))
    assert line(DecisionRecord(back))[21:44].rstrip() == "rollback itl_p99"


def test_each_flag_has_its_line() -> None:
    """A change of several flags is told whole."""
    flags = {"max-num-seqs": "128", "gpu-memory-utilization": "0.9"}
    lines = drawn(DecisionRecord(example_change(changes=flags))).splitlines()
    assert [row[44:81].strip() for row in lines[1:3]] == [
        "gpu-memory-utilization 0.92 -> 0.9",
        "max-num-seqs 256 -> 128",
    ]


CHANGE = example_change()
SERVED = Outcome(CHANGE, 5, served=True, outage_s=8.24)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (DecisionRecord(CHANGE), "-      ? open"),
        (DecisionRecord(CHANGE, SERVED), "8.2 s  ▲ serves"),
        (DecisionRecord(CHANGE, replace(SERVED, outage_s=3600.0)), "60 min ▲ serves"),
        (DecisionRecord(CHANGE, replace(SERVED, served=False, outage_s=None)), "-      ✖ failed"),
        (DecisionRecord(replace(CHANGE, action=Action.ADVISE)), "-      ○ advised"),
        *(
            (DecisionRecord(CHANGE, SERVED, Verification("D19", NOW_S, effect, "x")), f"8.2 s  {words}")
            for effect, words in (
                (Effect.BETTER, "● better"),
                (Effect.SERVING, "● serves"),
                (Effect.SAME, "▲ same"),
                (Effect.UNKNOWN, "▲ unsure"),
                (Effect.WORSE, "✖ worse"),
                (Effect.FAILED, "✖ failed"),
            )
        ),
    ],
)
def test_results(record: DecisionRecord, words: str) -> None:
    """What became of a change: open, launched, refused, or verified."""
    assert line(record)[81:] == words


def test_ascii_and_colour_say_the_same() -> None:
    """In ASCII the marks are words; colour only repeats them."""
    record = DecisionRecord(CHANGE, SERVED)
    assert line(record, look=Look(ascii=True)).endswith("8.2 s  WARN serves")
    coloured = SGR.sub("", drawn(record, look=Look(colour=True)))
    assert [row.rstrip() for row in coloured.splitlines()] == drawn(record).splitlines()


HOSTILE = "\x1b[31m\x07\r\n\u202e"


def test_foreign_text_cannot_steer_the_terminal() -> None:
    """Escapes in triggers, flags and reasons are drawn, not obeyed."""
    flags = Flags(((HOSTILE, HOSTILE),))
    change = replace(example_change(trigger=HOSTILE), flags_before=Flags(), flags_after=flags)
    text = drawn(DecisionRecord(change), Hold(HoldReason.OPERATOR, HOSTILE))
    assert all(row.isprintable() for row in text.splitlines())


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = sorted(
    history_document("qwen", Page((Told("D1", NOW_S, DecisionRecord(CHANGE, SERVED)),), more=False, hidden_holds=0))[
        "decisions"
    ][0]
)


@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6), st.dictionaries(st.text(max_size=8), JSON, max_size=3))
def test_a_document_of_another_version_is_drawn(fields: dict[str, Any], others: dict[str, Any]) -> None:
    """Whatever stands in the fields, a table comes out, printable and at most 100 columns wide."""
    text = history_page({"name": "qwen", "decisions": [fields], **others}, Look())
    assert all(row.isprintable() and len(row) <= 100 for row in text.splitlines())
