"""Which changes the running server takes at once, and between which flags a change leads."""

import pytest

from vllmd.decide.plan import ends_of, moves_live
from vllmd.model.flags import BATCHED_TOKENS, CHUNKED_PREFILL, MAX_NUM_SEQS, Flags, FlagValue

CAPACITY = {BATCHED_TOKENS: 2048, MAX_NUM_SEQS: 64}
LAUNCHED = Flags(((BATCHED_TOKENS, "2048"), ("port", "8000")))
PRESENT = LAUNCHED.changed({BATCHED_TOKENS: "512"})


@pytest.mark.parametrize(
    ("changes", "live"),
    [
        ({BATCHED_TOKENS: "1024"}, True),
        ({BATCHED_TOKENS: "2k"}, True),
        ({BATCHED_TOKENS: "2048", MAX_NUM_SEQS: "1"}, True),
        ({BATCHED_TOKENS: "2049"}, False),
        ({BATCHED_TOKENS: "0"}, False),
        ({BATCHED_TOKENS: "0.5"}, False),
        ({BATCHED_TOKENS: None}, False),
        ({BATCHED_TOKENS: "1024", CHUNKED_PREFILL: True}, False),
        ({CHUNKED_PREFILL: True}, False),
        ({}, False),
    ],
)
def test_live_is_what_lies_within_what_was_launched(changes: dict[str, FlagValue | None], *, live: bool) -> None:
    """All of it or nothing: a change is carried out in one way."""
    assert moves_live(changes, CAPACITY) is live


def test_nothing_is_live_where_nothing_is_offered() -> None:
    """A version without the hooks, or a launch without the shim."""
    assert not moves_live({BATCHED_TOKENS: "1024"}, {})


def test_a_live_change_leads_from_what_is_in_force() -> None:
    """With the launched value where the command does not say it."""
    before, after = ends_of({BATCHED_TOKENS: "256", MAX_NUM_SEQS: "32"}, PRESENT, LAUNCHED, CAPACITY)
    assert after.differences(before) == {BATCHED_TOKENS: ("512", "256"), MAX_NUM_SEQS: ("64", "32")}


def test_a_launch_keeps_the_capacity_of_what_it_does_not_change() -> None:
    """What is set live beside it stays so; what it changes begins at what is in force, also for the way back."""
    before, after = ends_of({CHUNKED_PREFILL: True}, PRESENT, LAUNCHED, CAPACITY)
    assert (before, after) == (LAUNCHED, LAUNCHED.changed({CHUNKED_PREFILL: True}))
    before, after = ends_of({BATCHED_TOKENS: "4096"}, PRESENT, LAUNCHED, CAPACITY)
    assert after.differences(before) == {BATCHED_TOKENS: ("512", "4096")}
