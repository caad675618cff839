"""`vllmd doctor`: what is said of a status, how the page is drawn, and what fails it."""

from dataclasses import replace
from typing import Any

import pytest

from examples import example_live, example_status, held_status, starting_status
from vllmd.model.flags import BATCHED_TOKENS, MAX_NUM_SEQS
from vllmd.model.live import Knob, Live
from vllmd.model.orders import Pause
from vllmd.model.status import LiveStatus, Status
from vllmd.report.doctor_running import daemon_check, running_checks
from vllmd.report.doctor_text import Check, Health, doctor_document, doctor_page, failed, restart_check
from vllmd.report.drawing import Look
from vllmd.report.status_json import status_document
from vllmd.report.status_text import Seen

OK, WARN, BAD = Check("vLLM", Health.OK, "0.32"), Check("GPU", Health.WARN, "none"), Check("state", Health.BAD, "full")


def told(status: Status) -> dict[str, Check]:
    """Return what is said of a status, by the names of the checks."""
    instance: dict[str, Any] = status_document(status)["instances"][0]
    return {check.name: check for check in running_checks(instance)}


def asked(status: Status | None, problem: str = "") -> Check:
    """Return what is said of the daemon that told this status, or does not answer."""
    return daemon_check(Seen("qwen", None if status is None else status_document(status), problem))


def test_only_what_is_bad_fails() -> None:
    """A warning works with less, and so is no failure; scripts get the same."""
    assert not failed([OK, WARN])
    assert failed([OK, WARN, BAD])
    document = doctor_document("qwen", [OK, WARN, BAD])
    assert [check["verdict"] for check in document["checks"]] == ["ok", "warn", "bad"]
    assert (document["bad"], document["checks"][0]["step"]) == (True, None)


def test_each_check_is_a_line_with_its_step_below() -> None:
    """A glyph, the name, what is said; the step is never cut, and no line of it else is wider than the page."""
    long = Check("restart", Health.WARN, "word " * 60, f"type {'x' * 120}")
    page = doctor_page("qwen", [OK, long, BAD], Look(ascii=True))
    lines = page.splitlines()
    assert lines[0] == "OK   vLLM       0.32"
    assert lines[1].startswith("WARN restart    word word")
    assert "x" * 120 in page
    assert max(len(line) for line in lines if "x" * 120 not in line) <= 100
    assert lines[-1] == "qwen: 1 bad, 1 to look at, 1 ok"


def test_what_others_wrote_is_escaped() -> None:
    """An error's text moves no cursor of the operator's terminal."""
    page = doctor_page("qwen", [Check("state", Health.BAD, "bad\x1b[2J", "step\x1b[2J")], Look())
    assert "\x1b" not in page


@pytest.mark.parametrize(
    ("reason", "step"),
    [
        ("net.ipv4.tcp_migrate_req is 0: connections that wait would be reset", "sysctl -w net.ipv4.tcp_migrate_req=1"),
        ("this kernel has no net.ipv4.tcp_migrate_req (Linux 5.14 and later have it)", "5.14 or later"),
        ("the server listens on a UNIX socket, which no second listener can share", "--host and --port"),
        ("4 API servers listen: which of them gets a connection is not ours to say", "--api-server-count=1"),
        ("vllmd_shim does not count the server's requests", "line about the shim"),
        ("engine.shim is off", "engine.shim = true"),
        ("VLLM_PLUGINS of the server's environment does not name vllmd_shim", "add vllmd_shim to VLLM_PLUGINS"),
        ("a port cannot be parked here: Operation not permitted", "SO_ATTACH_REUSEPORT_CBPF"),
    ],
)
def test_a_plain_restart_has_its_reason_and_its_step(reason: str, step: str) -> None:
    """Each reason has what to do about it."""
    check = restart_check(reason)
    assert check.health is Health.WARN
    assert reason in check.said
    assert step in check.step


def test_a_planned_restart_is_well() -> None:
    """Nothing is to be done."""
    assert restart_check(None) == Check("restart", Health.OK, restart_check(None).said, "")


def test_the_shim_is_told_with_what_is_off() -> None:
    """What works first, then each reason once; without anything off it is well."""
    shim = told(example_status())["shim"]
    assert shim.health is Health.WARN
    assert shim.said == (
        "max-num-batched-tokens live, 5000 steps seen, requests counted; "
        "max-num-seqs not live: this vLLM's scheduler has none"
    )
    knobs = {BATCHED_TOKENS: Knob("", 2048), MAX_NUM_SEQS: Knob("", 64)}
    live = example_live()
    assert told(example_status(live=replace(live, live=replace(live.live, knobs=knobs))))["shim"].health is Health.OK
    nothing = told(example_status(live=LiveStatus(Live.nothing("not loaded"), plain_restart="vllmd_shim is not there")))
    assert nothing["shim"].said == "max-num-batched-tokens, max-num-seqs not live: not loaded; requests not counted"
    assert nothing["restart"].health is Health.WARN


def test_an_idle_engine_that_made_no_step_is_well() -> None:
    """Its first step comes with the first request."""
    knobs = {BATCHED_TOKENS: Knob("", 2048), MAX_NUM_SEQS: Knob("", 64)}
    shim = told(example_status(live=LiveStatus(Live(knobs))))["shim"]
    assert shim.health is Health.OK
    assert "no step seen yet" in shim.said


def test_metrics_that_are_missing_are_named() -> None:
    """Names that this vLLM no longer exports; none before the first reading is said to be well."""
    assert told(example_status())["scrape"].health is Health.OK
    assert "vllm:x" in told(example_status(missing_metrics=("vllm:x",)))["scrape"].said
    assert told(example_status(data_at_s=None))["scrape"].health is Health.WARN


def test_nothing_is_said_of_a_server_that_does_not_serve() -> None:
    """Without one there is nothing that runs."""
    assert told(starting_status()) == {}
    assert running_checks({}) == ()


def test_the_daemon_is_told_as_it_is() -> None:
    """Well, paused, held, or silent: then with what it was when it last told."""
    assert asked(example_status()).health is Health.OK
    assert asked(example_status(pause=Pause(0.0, None, "root"))).health is Health.WARN
    assert asked(held_status()).health is Health.BAD
    silent = asked(example_status(), "no daemon answers")
    assert (silent.health, "it was serving when it last told" in silent.said) == (Health.WARN, True)
    assert "when it last told" not in asked(None, "no daemon answers").said
    assert "sudo" in daemon_check(Seen("qwen", None, "permission denied", denied=True)).step
