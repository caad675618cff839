"""How far a live value may go: never so far that vLLM's own assertions fail."""

import pytest
from hypothesis import given
from hypothesis.strategies import booleans, integers

from vllmd_shim.clamp import budget_in_force, seqs_in_force

counts = integers(0, 5000)


@pytest.mark.parametrize(
    ("asked", "running", "each", "found"),
    [
        (0, 10, 1, 2048),  # nothing is asked for
        (256, 10, 1, 256),
        (4096, 10, 1, 2048),  # more than was launched
        (8, 10, 1, 10),  # each running request has its token
        (8, 10, 4, 40),  # and its speculative ones
        (1, 0, 4, 4),  # and so has the first one
    ],
)
def test_a_budget_is_held_between_what_runs_and_what_was_launched(
    asked: int, running: int, each: int, found: int
) -> None:
    """2048 tokens were launched."""
    assert budget_in_force(asked, 2048, running, each) == found


@pytest.mark.parametrize(("separate", "found"), [(True, 4), (False, 10)])
def test_a_cap_sinks_with_what_runs_where_vllm_has_only_one(*, separate: bool, found: int) -> None:
    """4 of 64 are asked for while 10 run."""
    assert seqs_in_force(4, 64, 10, separate=separate) == found
    assert seqs_in_force(4, 64, 2, separate=separate) == 4
    assert seqs_in_force(0, 64, 10, separate=separate) == 64


@given(counts, integers(1, 5000), counts, integers(1, 9), booleans())
def test_no_value_is_above_what_was_launched(
    asked: int,
    launched: int,
    running: int,
    each: int,
    separate: bool,  # noqa: FBT001 - hypothesis gives values by position
) -> None:
    """Whatever is asked for and runs: buffers and slots are never outgrown, and something can always run."""
    assert 1 <= budget_in_force(asked, launched, running, each) <= launched
    assert 1 <= seqs_in_force(asked, launched, running, separate=separate) <= launched
