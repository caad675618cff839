"""What is told of a pause: on the page, in the table, by the commands, and in the rules of degraded."""

from dataclasses import replace
from typing import Any

import pytest

from examples import NOW_S, example_status, held_status
from vllmd.model.orders import Pause
from vllmd.model.status import Status
from vllmd.report.drawing import Look
from vllmd.report.pause_text import paused_line, paused_page, resumed_page
from vllmd.report.status_json import degraded, health, pause_document, status_document
from vllmd.report.status_table import table
from vllmd.report.status_text import Seen, page

PAUSE = Pause(NOW_S - 60, NOW_S + 7200, "root", "driver upgrade, CHG-1182")
LINE = "paused until 2026-09-24 19:16:48 UTC by root (driver upgrade, CHG-1182)"


def paused_status(**changes: Any) -> Status:
    """Return a serving instance that is paused."""
    return example_status(pause=PAUSE, **changes)


def seen(status: Status) -> Seen:
    """Return what a living daemon tells."""
    return Seen(status.name, status_document(status))


def told(pause: Pause, state: str) -> str:
    """Return what `vllmd pause` prints."""
    return paused_page("qwen", {"paused": pause_document(pause), "state": state}, Look())


def test_document_has_the_pause() -> None:
    """A pause stands in the document with its ends, its author and what it keeps; null where there is none."""
    (instance,) = status_document(paused_status())["instances"]
    assert instance["paused"] == {
        "since": "2026-09-24T17:15:48Z",
        "until": "2026-09-24T19:16:48Z",
        "by": "root",
        "reason": "driver upgrade, CHG-1182",
        "keep_recovery": False,
    }
    assert status_document(example_status())["instances"][0]["paused"] is None


def test_paused_is_degraded() -> None:
    """A paused server that serves needs attention."""
    assert degraded(paused_status())
    assert health(paused_status()) == "attention"


def test_page_says_it_near_the_top_and_how_to_end_it() -> None:
    """The page of a paused instance says so in its head, and ends with the way out."""
    text = page(seen(paused_status()), Look())
    assert f"  ▲ {LINE}\n" in text.split("\n\n", maxsplit=1)[0]
    assert "`vllmd resume qwen`" in text.splitlines()[-2]


def test_page_of_what_is_not_paused_does_not_speak_of_it() -> None:
    """Without a pause there is no word of one."""
    assert "paused" not in page(seen(example_status()), Look())


def test_a_pause_that_keeps_it_down_is_what_to_end_first() -> None:
    """A held server that is paused is not to be restarted but resumed."""
    text = page(seen(held_status(pause=PAUSE)), Look())
    assert "`vllmd resume qwen`" in text
    assert "vllmd restart" not in text


def test_table_notes_it() -> None:
    """Under the table the pause stands with its end."""
    text = table([seen(paused_status()), seen(example_status(name="b"))], Look())
    assert f"  ▲ {LINE}\n" in text


@pytest.mark.parametrize(
    ("pause", "line"),
    [
        (PAUSE, LINE),
        (replace(PAUSE, until_s=None, reason=""), "paused until `vllmd resume` by root"),
        (replace(PAUSE, keeps_recovery=True), f"{LINE}, crashes are recovered"),
    ],
)
def test_line(pause: Pause, line: str) -> None:
    """One line says until when, by whom, why, and what it keeps."""
    assert paused_line(pause_document(pause)) == line


def test_command_says_the_exact_contract() -> None:
    """`vllmd pause` says what is not done, also after a crash, and how it ends."""
    text = told(PAUSE, "serving")
    assert text.startswith(f"▲ qwen {LINE}\n")
    assert "no change, no restart, also none after a crash" in text
    assert text.endswith("  It ends by itself; sooner: `vllmd resume qwen`\n")
    assert max(map(len, text.splitlines())) <= 100


def test_command_says_that_recovery_is_kept() -> None:
    """With --keep-recovery a crash is told to be recovered."""
    text = told(replace(PAUSE, keeps_recovery=True, until_s=None), "serving")
    assert "After a crash it is started again" in text
    assert "by itself" not in text


@pytest.mark.parametrize(
    ("state", "words"),
    [("held", "It is held now, and stays down."), ("starting", "It is starting now: that goes on.")],
)
def test_command_says_what_it_means_now(state: str, words: str) -> None:
    """What does not serve stays down, or goes on."""
    assert words in told(PAUSE, state)


def test_resume_says_how_long_it_was() -> None:
    """The end of a pause says how long it lasted and what the server does."""
    answer = {"state": "serving", "message": "serving", "paused_seconds": 2040.0}
    assert resumed_page("qwen", answer, Look()).startswith("● qwen resumed after 34 min (serving)\n")


def test_foreign_text_in_answers_is_escaped() -> None:
    """A reason with escapes is drawn, not obeyed."""
    text = told(replace(PAUSE, reason="\x1b[31mred"), "serving") + resumed_page("q", {"message": "\x1b[2J"}, Look())
    assert all(line.isprintable() for line in text.splitlines())
