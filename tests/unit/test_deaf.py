"""A server that answers nothing: deaf is one whose main process stands still."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from vllmd.decide.deaf import Deafness, unanswered
from vllmd.model.snapshot import Snapshot

GAP_S = 20.0
EVERY_S = 5.0


def reading(at_s: float, cpu_s: float | None = 7.0, *, answers: bool | None = False) -> Snapshot:
    """Return a reading at a monotonic time."""
    return Snapshot(1e9, 3, None, None, monotonic_s=at_s, answers=answers, leader_cpu_s=cpu_s)


def after(*readings: Snapshot) -> Deafness:
    """Return the deafness after these readings."""
    deafness = Deafness()
    for snapshot in readings:
        deafness = unanswered(deafness, snapshot, GAP_S)
    return deafness


def test_no_answer_and_no_cpu_add_up() -> None:
    """From the first reading without an answer to the last."""
    assert after(*(reading(100 + EVERY_S * n) for n in range(9))).deaf_s == 8 * EVERY_S


def test_it_begins_with_the_question_that_was_not_answered() -> None:
    """A reading without an answer takes as long as it waits."""
    assert after(replace(reading(108), asked_s=100)).deaf_s == 8


def test_any_answer_begins_anew() -> None:
    """A refusal is an answer; what was not asked says nothing."""
    before = [reading(100), reading(105), reading(110)]
    for answers in (True, None):
        assert after(*before, reading(115, answers=answers)).deaf_s == 0
        assert after(*before, reading(115, answers=answers), reading(120), reading(125)).deaf_s == EVERY_S


def test_a_busy_main_process_is_late_and_not_deaf() -> None:
    """An event loop that is held up by work answers when it is done with it."""
    assert after(*(reading(100 + EVERY_S * n, cpu_s=7 + 4 * n) for n in range(50))).deaf_s == 0


def test_what_cannot_be_read_proves_nothing() -> None:
    """Neither a process that is not seen nor readings that are far apart."""
    assert after(*(reading(100 + EVERY_S * n, cpu_s=None) for n in range(9))).deaf_s == 0
    assert after(reading(100), reading(105), reading(105 + GAP_S + 1)).deaf_s == 0


def test_another_launch_begins_anew() -> None:
    """What the one before did not answer says nothing about the next."""
    assert after(reading(100), reading(105), replace(reading(110), generation=4)).deaf_s == 0


@given(st.lists(st.tuples(st.floats(0.1, 19), st.floats(0, 20), st.booleans()), max_size=40))
def test_it_never_lasts_longer_than_the_readings_without_an_answer(steps: list[tuple[float, float, bool]]) -> None:
    """Whatever comes in whatever order."""
    deafness, at_s, cpu_s, answered_s = Deafness(), 100.0, 0.0, 100.0
    for gap_s, used_s, answers in steps:
        at_s, cpu_s = at_s + gap_s, cpu_s + used_s
        deafness = unanswered(deafness, reading(at_s, cpu_s, answers=answers), GAP_S)
        answered_s = at_s if answers else answered_s
        assert 0 <= deafness.deaf_s <= at_s - answered_s
