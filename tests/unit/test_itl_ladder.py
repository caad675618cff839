"""The ladder of batched tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllmd.model.decision import Assessment, Situation, Target, TargetAssessment, Verdict
from vllmd.model.flags import Flags, FlagValue
from vllmd.model.thresholds import Thresholds
from vllmd_policies.itl_ladder import itl_ladder, next_step

TARGET = Target("itl_p99", "itl", 0.99, 0.05)
LADDER = Thresholds().ladder_tokens


def judged(verdict: Verdict) -> tuple[TargetAssessment, ...]:
    """Return an assessment of the target."""
    return (TargetAssessment(TARGET, verdict, 1000, 0.95, 0.95, 0.15, 0.2),)


def situation(now: Verdict, before: Verdict, **flags: FlagValue) -> Situation:
    """Return a situation with these two windows and flags."""
    named = Flags(tuple((name.replace("_", "-"), value) for name, value in flags.items()))
    assessment = Assessment(0.0, 1, judged(now), judged(before), None)
    return Situation(named, named, assessment=assessment, batched_tokens=8192, max_num_seqs=256)


@pytest.mark.parametrize(
    ("present", "floor", "step"),
    [(8192, 256, 4096), (6144, 256, 3072), (2048, 256, 1024), (5000, 256, 2048), (300, 256, 256), (256, 256, None)],
)
def test_a_step_halves_and_rounds_down_to_the_ladder(present: int, floor: int, step: int | None) -> None:
    """One step is half of the present value, on the ladder, and stops at the floor."""
    assert next_step(LADDER, present, floor) == step


def test_a_slip_in_two_windows_lowers_the_batched_tokens() -> None:
    """The effective value counts when the operator set none, and the reason has its numbers."""
    wish = itl_ladder(situation(Verdict.SLIPPING, Verdict.SLIPPING))
    assert wish is not None
    assert wish.changes == {"max-num-batched-tokens": "4096"}
    assert "95.00%" in wish.reason
    assert "8192 -> 4096" in wish.reason


def test_one_window_is_not_enough() -> None:
    """A slip in the last window alone is no wish."""
    assert itl_ladder(situation(Verdict.SLIPPING, Verdict.MET)) is None
    assert itl_ladder(situation(Verdict.SLIPPING, Verdict.UNSURE)) is None


def test_chunked_prefill_comes_first_where_it_is_off() -> None:
    """Whole prompts in one step cannot be helped by a smaller budget."""
    wish = itl_ladder(situation(Verdict.SLIPPING, Verdict.SLIPPING, enable_chunked_prefill=False))
    assert wish is not None
    assert wish.changes == {"enable-chunked-prefill": True}


def test_vllm_refuses_fewer_tokens_than_sequences() -> None:
    """The floor is the number of sequences."""
    assert itl_ladder(situation(Verdict.SLIPPING, Verdict.SLIPPING, max_num_seqs="8192")) is None


@given(st.integers(1, 40_000), st.integers(1, 40_000))
def test_a_step_always_goes_down_and_stays_on_the_ladder(present: int, floor: int) -> None:
    """A step is lower than the present value, not below the floor, and one of few values."""
    step = next_step(LADDER, present, floor)
    assert step is None or (step < present and step >= floor and step in LADDER)
