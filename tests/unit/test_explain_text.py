"""The page of an explanation: every question that an operator asks of a decision has its section."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import NOW_S, example_change, example_status
from past_ledger import write_past
from vllmd.cli.main import main
from vllmd.model.decision import Action, Hold, HoldReason
from vllmd.model.orders import Pause
from vllmd.model.status import DecisionRecord
from vllmd.report.drawing import Look
from vllmd.report.explain_text import explain_markdown, explain_page
from vllmd.report.history_json import explanation, told_document
from vllmd.report.ledger_history import Told
from vllmd.report.sections import Line as SectionLine
from vllmd.report.sections import Section, as_markdown, as_page, command, quote
from vllmd.report.status_json import status_document

STATUS = status_document(example_status())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give the state folder of an instance with a past."""
    write_past(tmp_path)
    return tmp_path


def parts_of(document: Any) -> dict[str, str]:
    """Return the sections of a page by their title."""
    heading, *sections = explain_page(document, Look()).split("\n\n")
    titled = (section.partition("\n") for section in sections)
    return {"": heading, **{title: body for title, _, body in titled}}


def about(change: Any) -> dict[str, str]:
    """Return the page about a change of which nothing more is known."""
    document = {
        "name": "qwen",
        "live": True,
        "asked": change.id,
        "decision": told_document("qwen", Told(change.id, NOW_S, DecisionRecord(change))),
    }
    return parts_of(document)


def test_a_recovery_is_explained_whole(folder: Path) -> None:
    """The failure with its line and log, the reason with its numbers, limits, result, and the way back."""
    text = explain_page(explanation(folder, "qwen", "D1", STATUS), Look())
    assert text.splitlines() == [
        "D1  qwen  2026-09-24 16:17:19 UTC  launch with other flags after a failure",
        "",
        "What happened",
        "  2026-09-24 16:17:18 UTC: utilization-too-high (loading, generation 1, exit code 1):",
        "    gpu-memory-utilization 0.92 asks for 129.2 GiB, 125.1 GiB are free",
        "  line 182: ValueError: Free memory on device (125.1/140.4 GiB) on startup is less than desired",
        "  `less +182 /var/lib/vllmd/qwen/logs/engine-0001.log` is the log of that launch",
        "",
        "Why",
        "  125.1 of 140.4 GiB are free: 0.88 fits",
        "  by the policy itl-ladder",
        "  share 0.971, limit 0.1 s",
        "",
        "What it changes",
        "  gpu-memory-utilization 0.92 -> 0.88",
        "",
        "Limits",
        "  guard: gpu-memory-utilization 0.8..0.94, 0.88 lies inside",
        "  restart budget: a recovery is bounded by the crash breaker instead",
        "  bans: the flags of 1 failed launch were not to be run again:",
        "  generation 1, utilization-too-high: gpu-memory-utilization 0.92 asks for 129.2 GiB, 125.1 GiB are",
        "    free",
        "",
        "Result",
        "  generation 2 serves",
        "  serving: serving again as generation 2",
        "",
        "Undo",
        "  None of its flags is in force by it any more.",
        "  `vllmd forget qwen` and then a start of vllmd launches your own flags again",
        "  `vllmd pause qwen` keeps vllmd from changing anything until then",
        '  To keep it for good: frozen = ["gpu-memory-utilization"] in [guard] of the configuration.',
    ]


def test_a_change_for_a_target_tells_its_measure(folder: Path) -> None:
    """A slipped target is the cause; the budget counts; the shares before and after stand in the result."""
    page = parts_of(explanation(folder, "qwen", "D2", STATUS))
    assert "The target itl_p99 was not met." in page["What happened"]
    assert "it counts; used now 1 of 2 this hour, 1 of 6 today" in page["Limits"]
    assert "generation 3 serves, 85 s down" in page["Result"]
    assert "its start: reading its configuration 21 s, loading the weights 6 s" in page["Result"]
    assert "share within the limit 97.10 % -> 80.00 %" in page["Result"]


def test_without_a_status_the_limits_are_unknown(folder: Path) -> None:
    """When no daemon ever told its status, guards and budget are said to be unknown, not absent."""
    page = parts_of(explanation(folder, "qwen", "D2", {}))
    assert "max-num-batched-tokens has no bounds that are known now" in page["Limits"]
    assert "what is used now is not known" in page["Limits"]


def test_flags_in_force_are_named() -> None:
    """A change whose flags still hold says so."""
    change = example_change(20, {"gpu-memory-utilization": "0.88"}, action=Action.RECOVER)
    decision = told_document("qwen", Told("D20", NOW_S, DecisionRecord(change)))
    present = STATUS["instances"][0]
    page = parts_of({"name": "qwen", "asked": "D20", "decision": decision, "present": present})
    assert "Still in force: gpu-memory-utilization." in page["Undo"]


def test_a_value_outside_of_a_guard_is_said(folder: Path) -> None:
    """Guards may have been narrowed since: what lies outside now is said."""
    document = explanation(folder, "qwen", "D1", STATUS)
    document["present"]["flags"] = [{"name": "gpu-memory-utilization", "min": 0.9, "max": None}]
    assert "guard: gpu-memory-utilization 0.9.., 0.88 lies outside now" in parts_of(document)["Limits"]


@pytest.mark.parametrize(
    ("action", "trigger", "words"),
    [
        (Action.RESTART, "admin", "The operator asked for a restart."),
        (Action.REMEMBER, "first", "vllmd started, and the ledger holds flags that served"),
        (Action.RESTART, "quiet", "Nothing had failed for so long"),
        (Action.RETRY, "clean-exit", "no failure is recorded"),
    ],
)
def test_every_cause_has_words(action: Action, trigger: str, words: str) -> None:
    """What set a decision off is told, also where no failure did."""
    change = example_change(action=action, trigger=trigger)
    proposal = replace(change.proposal, domain=change.proposal.domain.MEMORY)
    assert words in about(replace(change, proposal=proposal))["What happened"]


def test_same_flags_need_no_undo() -> None:
    """A launch with the same flags leaves nothing to undo."""
    page = about(example_change(action=Action.RETRY, changes={}))
    assert "nothing to undo" in page["Undo"]
    assert "no flag moves" in page["Limits"]


def test_a_live_value_that_was_lost_is_not_in_force() -> None:
    """Nothing more comes of it before the next launch."""
    page = about(example_change(action=Action.LIVE, changes={}))
    assert page["Result"] == "  What was set is given up; the next launch begins with the launched value."
    assert "nothing to undo" in page["Undo"]


def test_a_live_change_that_was_decided_says_how_to_end_it() -> None:
    """It restarts nothing, and outlives the server, unlike what the operator set."""
    page = about(example_change(action=Action.LIVE))
    assert "restarts nothing" in page["Limits"]
    assert "engine's next step" in page["Result"]
    assert "max-num-batched-tokens=launched" in page["Undo"]
    assert "so does a restart" not in page["Undo"]


def test_an_advice_did_nothing() -> None:
    """An advice says that nothing was done."""
    page = about(example_change(action=Action.ADVISE))
    assert "Nothing was done" in page["Result"]


@pytest.mark.parametrize("action", list(Action))
def test_every_action_reads_as_a_sentence(action: Action) -> None:
    """No action is told by its bare word, and every page names limits and undo."""
    page = about(example_change(action=action))
    assert not page[""].endswith(f"  {action}")
    assert page["Limits"]
    assert page["Undo"]


def now(folder: Path, **changes: Any) -> dict[str, str]:
    """Return the page about the present."""
    return parts_of(explanation(folder, "qwen", None, status_document(example_status(**changes))))


def test_the_present_tells_the_hold_and_the_counts(folder: Path) -> None:
    """Why nothing is done now: the hold in force, the one recorded last, and how often each reason came."""
    page = now(folder, last_decision=Hold(HoldReason.BUDGET, "2 of 2 restarts used this hour"))
    assert page[""] == "qwen  serving: why nothing is done now"
    assert "hold (budget): 2 of 2 restarts used this hour" in page["Now"]
    assert "verifying: D2 is being verified" in page["The last hold that was recorded"]
    assert page["Holds since vllmd began, by reason"].split() == ["targets_met", "12", "budget", "1"]
    assert "[budget]" in page["What you can do"]


def test_a_pause_is_the_first_reason(folder: Path) -> None:
    """A paused instance says so first, and how to end it."""
    page = now(folder, pause=Pause(NOW_S, None, "root", "CHG-1"))
    assert page["Now"].startswith("  paused until `vllmd resume` by root (CHG-1)")
    assert "`vllmd resume qwen`" in page["What you can do"]


def test_a_dead_daemon_is_the_reason(folder: Path) -> None:
    """Where no daemon runs, nothing is decided, and that is said before all else."""
    page = parts_of({**explanation(folder, "qwen", None, STATUS), "live": False})
    assert page[""].startswith("qwen  state unknown, was serving")
    assert page["Now"].startswith("  vllmd is not running")


def test_a_hold_of_the_past_is_explained(folder: Path) -> None:
    """A hold by its id tells its reason and until when."""
    page = parts_of(explanation(folder, "qwen", "H4", STATUS))
    assert page["Why"].splitlines() == [
        "  2026-09-24 16:48:28 UTC",
        "  verifying: D2 is being verified",
        "  until 2026-09-24 17:03:28 UTC",
    ]


@pytest.mark.parametrize("decision_id", ["D1", "D2", "D3", "H4", None])
def test_only_commands_that_exist_are_named(folder: Path, decision_id: str | None) -> None:
    """Every command on the page is one of vllmd's, or reads a log."""
    text = explain_page(explanation(folder, "qwen", decision_id, STATUS), Look())
    commands = re.findall(r"`vllmd (\w+)", text)
    assert commands
    assert set(commands) <= set(main.list_commands(click.Context(main)))


def test_markdown_holds_the_same_sections(folder: Path) -> None:
    """The Markdown has each section as a list; words of the log are code."""
    text = explain_markdown(explanation(folder, "qwen", "D1", STATUS))
    assert text.startswith("### D1  qwen  2026-09-24 16:17:19 UTC")
    assert "\n**Why**\n\n- 125.1 of 140.4 GiB are free: 0.88 fits\n" in text
    assert "- `line 182: ValueError: Free memory on device (125.1/140.4 GiB) on startup" in text
    assert "- `vllmd forget qwen` and then a start" in text


def test_markup_of_the_log_stays_text() -> None:
    """A log line with Markdown and backticks in it is code; a fact with markup is escaped."""
    lines = (quote("``` <b> [x](http://evil)"), SectionLine("- *a* [b](c) <img>"), command("less `x`", "for *it*"))
    text = as_markdown("# a", [Section("t", lines)])
    assert "- ```` ``` <b> [x](http://evil) ````" in text
    assert r"- \- \*a\* \[b\](c) \<img\>" in text
    assert r"- `` less `x` `` for \*it\*" in text
    assert text.startswith(r"### \# a")


@given(st.text(), st.text())
def test_foreign_text_cannot_steer_anything(first: str, second: str) -> None:
    """Whatever the text is, page and Markdown are printable and keep their lines."""
    said, typed = (quote(first), SectionLine(second)), command(first, second)
    assert all(len(row) <= 100 for row in as_page("h", [Section("t", said)], Look()).splitlines())
    sections = [Section("t", (*said, typed))]
    assert all(row.isprintable() for row in as_page("h", sections, Look()).splitlines())
    assert len(as_markdown("h", sections).splitlines()) == 7


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = ("name", "live", "asked", "decision", "failure", "bans", "banned", "present", "time")


@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=9))
def test_a_document_of_another_version_is_drawn(document: dict[str, Any]) -> None:
    """Whatever stands in the fields, a page comes out."""
    assert explain_page(document, Look())
    assert explain_markdown(document)


def test_a_command_is_whole_however_long_its_path_is() -> None:
    """What is cut cannot be typed; what it is for goes into the next line."""
    path = "/srv/" + "a-long-folder/" * 12 + "engine-0001.log"
    page = as_page("a page", (Section("a section", (command(f"less +49 {path}", "is the log"),)),), Look())
    assert f"  `less +49 {path}`\n    is the log\n" in page
