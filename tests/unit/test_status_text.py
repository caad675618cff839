"""The text pages: what they must show, and what they must never let through."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import NOW_S, example_status, held_status, starting_status
from vllmd.model.decision import Hold, HoldReason, Verdict
from vllmd.model.failure import Evidence
from vllmd.model.settings import Modes
from vllmd.model.status import Status
from vllmd.report.drawing import Look, duration, latency, rate, share
from vllmd.report.status_json import status_document
from vllmd.report.status_table import table
from vllmd.report.status_text import Seen, page

SGR = re.compile(r"\x1b\[\d*m")
PLAIN = Look()
NOW = datetime.fromtimestamp(NOW_S + 180, UTC)


def seen(status: Status, problem: str = "") -> Seen:
    """Return what the daemon told, or told last when there is a problem."""
    return Seen(status.name, status_document(status), problem)


def drawn(status: Status, look: Look = PLAIN) -> str:
    """Return the page of a living daemon."""
    return page(seen(status), look)


def test_page_shows_what_an_operator_asks_first() -> None:
    """State and since when, generation, pid, url, model and versions stand in the head."""
    head = drawn(example_status()).split("\n\n")[0]
    assert head.startswith("● qwen  serving, SLO met\n")
    assert "since 2026-09-24 16:48:28 UTC (28 min), generation 7, pid 41877, http://127.0.0.1:8000" in head
    assert "Qwen/Qwen3-32B" in head
    assert "vllmd 0.1.0 · vLLM 0.28.0 · memory active, latency advisory · gpu7" in head


def test_page_shows_every_target() -> None:
    """A target stands with bounds, limit, share, what is needed, observations and verdict."""
    row = next(line for line in drawn(example_status()).splitlines() if "ttft_p95" in line)
    assert row.split() == ["ttft_p95", "500..750", "ms", "1", "s", "98.70", "%", "95", "%", "3720", "met"]


def test_page_shows_flags_off_baseline_with_their_decision() -> None:
    """A flag that was moved stands with both values and the decision; one that was not does not stand there."""
    text = drawn(example_status())
    assert re.search(r"gpu-memory-utilization +0\.92 -> 0\.88 +D20, 30 min ago", text)
    assert "enforce-eager" not in text


def test_page_shows_memory_that_is_not_ours() -> None:
    """A foreign process on the GPU is named."""
    assert "not ours 2.1 GiB: pid 3120 python3" in drawn(example_status())


def test_page_shows_where_the_gpus_memory_goes() -> None:
    """The parts of the launch and what is free, of the whole, on one line; what is none of them is other."""
    text = drawn(example_status())
    assert "GPU memory     weights 61.0 │ KV 55.1 │ activation 5.6 │ graphs 1.3 │ other 0.6 │ free 14.7 GiB" in text
    assert re.search(r"of 140\.4 GiB +used 125\.7, NVIDIA H200", text)
    assert "vLLM's start" not in text


def test_page_shows_the_start_log_where_no_gpu_tells_it() -> None:
    """Without a driver the parts stand as the log told them; without a budget a GPU stands with what is used of it."""
    assert re.search(r"vLLM's start +weights 61\.0 │ KV 55\.1", drawn(example_status(gpus=None, memory=None)))
    text = drawn(example_status(memory=None))
    assert "used 125.7 of 140.4 GiB, ours 122.9, free 14.7   NVIDIA H200" in text


def test_page_calls_nobody_foreign_who_may_be_ours() -> None:
    """In a container no pid is recognised, and our own memory is not told as somebody else's."""
    (gpu,) = example_status().gpus or ()
    hidden = replace(gpu, processes=tuple(replace(p, ours=False) for p in gpu.processes))
    assert "not ours" not in drawn(example_status(gpus=(hidden,), memory=None))
    assert "not ours 2.1 GiB" in drawn(held_status(gpus=(hidden,), memory=None))


def test_page_shows_budget_and_breaker() -> None:
    """Restarts and crashes stand with their limits."""
    text = drawn(example_status())
    assert "voluntary restarts 1 of 2 this hour, 1 of 6 today; crashes 1 of 5, breaker closed" in text


def test_last_decision_stands_with_its_verification() -> None:
    """A change that was verified says what it brought."""
    decisions = example_status().decisions[:1]
    text = drawn(example_status(decisions=decisions, last_decision=decisions[0].change))
    assert "D19 1 h ago: restart max-num-batched-tokens 8192 -> 2048 - itl_p99 slips" in text
    assert "verified: better - 97.1 % to 99.9 % within 0.1 s" in text


def test_last_change_stands_beside_a_later_hold() -> None:
    """When the last decision is a hold, the last change that was made is still told."""
    text = drawn(example_status(last_decision=Hold(HoldReason.TARGETS_MET, "all targets are met")))
    assert "hold - all targets are met (targets_met)" in text
    assert "D20 30 min ago: recover gpu-memory-utilization 0.92 -> 0.88" in text
    assert "generation 7 serves, 125 s down; not verified yet" in text


def test_failure_stands_while_it_does_not_serve() -> None:
    """A held instance names the failure, the line that decided, and the log."""
    status = held_status(generation=6, failure_log="/var/lib/vllmd/qwen/engine-0006.log")
    text = drawn(status)
    assert text.startswith("✖ qwen  held\n")
    assert "utilization-too-high (loading, generation 6, exit code 1)" in text
    assert "line 182: ValueError: Free memory on device" in text
    assert "`less +182 /var/lib/vllmd/qwen/engine-0006.log`" in text


def test_failure_is_old_news_while_it_serves() -> None:
    """A server that serves again no longer shows its last failure."""
    assert "Last failure" not in drawn(example_status())


def test_simulated_server_says_so() -> None:
    """The embedded simulator is never taken for a real server."""
    assert "simulated server" in drawn(example_status(simulated=True))
    assert "simulated server" not in drawn(example_status())


def test_dead_daemon_is_told_with_the_last_that_is_known() -> None:
    """From status.json the page says that vllmd is not running, and when it was last seen; the state is unknown."""
    text = page(seen(example_status(), "no daemon answers on /run/x"), Look(), NOW)
    assert text.startswith("? qwen  state unknown, was serving, SLO met\n")
    assert "vllmd is not running; last seen 2026-09-24 17:16:48 UTC, 3 min ago" in text
    assert "`systemctl status vllmd@qwen`" in text


def test_nothing_known_says_why() -> None:
    """Without daemon and without status.json the page still says what is wrong and what to type."""
    text = page(Seen("qwen", None, "no daemon answers on /run/x"), Look(), NOW)
    assert "no daemon answers on /run/x" in text
    assert "`vllmd run`" in text


def test_no_permission_names_the_way() -> None:
    """Who may not ask is told how to."""
    text = page(Seen("qwen", None, "no permission to use /run/x", denied=True), Look(), NOW)
    assert "`sudo vllmd status qwen`" in text


@pytest.mark.parametrize(
    "status",
    [example_status(), starting_status(), held_status(), example_status(last_decision=None)],
    ids=["serving", "starting", "held", "nothing decided"],
)
def test_page_ends_with_a_command_and_fits(status: Status) -> None:
    """Every page ends with a command to type, and no line is longer than 100 columns."""
    text = drawn(status)
    assert "`" in text.rstrip("\n").splitlines()[-1]
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("reason", list(HoldReason))
def test_a_hold_is_never_without_its_reason(reason: HoldReason) -> None:
    """Doing nothing is always explained, by a sentence and a code."""
    text = drawn(example_status(last_decision=Hold(reason, f"because of {reason.value}")))
    assert f"hold - because of {reason.value} ({reason.value})" in text


def test_advice_says_how_to_let_it_act() -> None:
    """After an advice the page names the setting that would have acted on it."""
    assert 'set mode.latency = "active"' in drawn(example_status())


def test_slipping_target_leads_the_headline() -> None:
    """A target that slips stands in the first line, with the mark of attention."""
    assessment = example_status().assessment
    assert assessment is not None
    now = (replace(assessment.now[0], verdict=Verdict.SLIPPING),)
    assert drawn(example_status(assessment=replace(assessment, now=now))).startswith(
        "▲ qwen  serving, slipping: ttft_p95\n"
    )


def test_colour_only_repeats_what_the_text_says() -> None:
    """Without its colours the coloured page is the plain one, and the glyph is still there."""
    coloured = drawn(example_status(), Look(colour=True))
    assert "\x1b[32m●" in coloured
    assert [line.rstrip() for line in SGR.sub("", coloured).splitlines()] == drawn(example_status()).splitlines()


def test_ascii_is_ascii() -> None:
    """The ASCII set draws marks as words, and escapes what comes from elsewhere."""
    text = drawn(example_status(model="modèle"), Look(ascii=True))
    assert text.isascii()
    assert text.startswith("OK qwen")
    assert "mod\\xe8le" in text


HOSTILE = "\x1b[31m\x07\r\n[bold]x[/bold]\u202e\x9b2J"


def hostile_status() -> Status:
    """Return a status with an attack in every text that may come from elsewhere."""
    failure = held_status().last_failure
    assert failure is not None
    return held_status(
        message=HOSTILE,
        model=HOSTILE,
        host=HOSTILE,
        url=HOSTILE,
        log_path=HOSTILE,
        missing_metrics=(HOSTILE,),
        outage_s={HOSTILE: 1.0},
        last_decision=Hold(HoldReason.OPERATOR, HOSTILE),
        last_failure=replace(failure, summary=HOSTILE, evidence=Evidence(1, HOSTILE)),
    )


def test_foreign_text_cannot_steer_the_terminal() -> None:
    """Escapes, line breaks and direction marks of foreign text are drawn, not obeyed; markup is just text."""
    text = drawn(hostile_status())
    assert all(line.isprintable() for line in text.splitlines())
    assert "\\x1b[31m" in text
    assert "[bold]" in text


def test_only_our_colours_are_escapes() -> None:
    """On a coloured page the only escapes are vllmd's own colours."""
    text = SGR.sub("", drawn(hostile_status(), Look(colour=True)))
    assert all(line.isprintable() for line in text.splitlines())


def test_table_has_a_line_an_instance_and_notes() -> None:
    """Several instances are a table; under it stands why one needs attention, and what to type."""
    text = table([seen(example_status()), seen(held_status(name="embed")), Seen("gone", None, "no daemon")], Look())
    lines = text.splitlines()
    assert lines[0].split() == ["INSTANCE", "STATE", "MODE", "MODEL", "SLO", "RESTARTS", "FLAGS", "DECISION"]
    assert lines[1].split()[:4] == ["●", "qwen", "serving", "active/advisory"]
    assert lines[2].startswith("✖   embed")
    assert lines[3].startswith("?   gone        unknown")
    assert "held: 5 failures in 15 min and no remedy left" in text
    assert max(map(len, lines)) <= 100


def test_longest_modes_fit_the_table() -> None:
    """No mode is cut in its column."""
    text = table([seen(example_status(modes=Modes())), seen(example_status(name="b"))], Look())
    assert text.count("active/advisory") == 2


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = sorted(status_document(example_status())["instances"][0])


@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=8), st.booleans())
def test_a_damaged_document_is_drawn_all_the_same(fields: dict[str, Any], colour: bool) -> None:  # noqa: FBT001 - drawn
    """Whatever stands in the fields of a document, the page and the table come out, printable and at most 100 wide."""
    whole: dict[str, Any] = dict(status_document(example_status())["instances"][0])
    document = {"schema": "vllmd.status/v1", "time": "2026-09-24T17:16:48Z", "instances": [whole | fields]}
    found = Seen("qwen", document)
    for text in (page(found, Look(colour=colour)), table([found, found], Look(colour=colour))):
        lines = SGR.sub("", text).splitlines()
        # A command is whole, however long the path in it is.
        assert all(line.isprintable() and (len(line) <= 100 or line.startswith("  `")) for line in lines)


@given(JSON)
def test_a_document_of_anything_is_drawn(document: Any) -> None:
    """A document that is no status at all ends in a page that says so."""
    found = document if isinstance(document, dict) else {"instances": document}
    assert "qwen" in page(Seen("qwen", found), Look())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"),
        (0.0, "0 s"),
        (59.9, "59 s"),
        (60.0, "1 min"),
        (3600.0, "1 h"),
        (11_520.0, "3 h 12 min"),
        (90_000.0, "1 d 1 h"),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    """A length of time is told in one or two units."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (None, None, "-"),
        (0.05, 0.075, "50..75 ms"),
        (0.5, 1.0, "0.5..1 s"),
        (0.1, 0.1, "100 ms"),
        (80.0, None, "> 80 s"),
        (None, 0.5, "500 ms"),
    ],
)
def test_latency(low: float | None, high: float | None, text: str) -> None:
    """A latency is told with both bounds, in one unit."""
    assert latency(low, high) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(None, None, "-"), (0.99999, 0.99999, "99.99 %"), (0.971, 0.987, "97.10..98.70 %"), (1.0, 1.0, "100.00 %")],
)
def test_share(low: float | None, high: float | None, text: str) -> None:
    """A share is rounded down: a target that is just missed never reads as 100 %."""
    assert share(low, high) == text


def test_rate() -> None:
    """Rates are short."""
    assert [rate(None), rate(6.2), rate(999.0), rate(9800.0)] == ["?", "6.2", "999", "9.8k"]
