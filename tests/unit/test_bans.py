"""Bans: a configuration that crashed is not tried again, nor one that asks for more; what passed is no ban."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllmd.decide.bans import banned, bans_of, last_good
from vllmd.model.failure import GUESSED, Failure, FailureClass
from vllmd.model.flags import Flags, FlagValue
from vllmd.model.masking import MASK
from vllmd.model.server import Launch, Phase
from vllmd.model.tried import Ban, Tried

GIB = 2.0**30


def flags(**values: FlagValue) -> Flags:
    """Return flags by names with underscores."""
    return Flags(tuple((name.replace("_", "-"), value) for name, value in values.items()))


def failure(kind: FailureClass, **numbers: float) -> Failure:
    """Return a failure of a start."""
    return Failure(kind, Phase.PROFILING, 3, f"a {kind}", numbers=numbers)


def launch(generation: int, of: Flags, baseline: Flags) -> Launch:
    """Return a launch of the past."""
    return Launch(generation, (), of, 0.0, "", baseline=baseline, fingerprint="here")


CRASHED = flags(gpu_memory_utilization="0.9", max_num_seqs="64", port="8000")


@pytest.mark.parametrize(
    ("kind", "tried", "forbidden"),
    [
        (FailureClass.RUNTIME_OOM, {"gpu-memory-utilization": "0.9"}, True),
        (FailureClass.RUNTIME_OOM, {"gpu-memory-utilization": "0.92"}, True),
        (FailureClass.RUNTIME_OOM, {"gpu-memory-utilization": "0.88"}, False),
        (FailureClass.RUNTIME_OOM, {"max-num-seqs": "128"}, True),
        (FailureClass.RUNTIME_OOM, {"max-num-seqs": "32"}, False),
        (FailureClass.RUNTIME_OOM, {"gpu-memory-utilization": "0.92", "max-num-seqs": "32"}, False),
        (FailureClass.RUNTIME_OOM, {"enforce-eager": True}, False),
        (FailureClass.RUNTIME_OOM, {"port": "8001", "gpu-memory-utilization": "0.92"}, False),
        (FailureClass.RUNTIME_OOM, {"gpu-memory-utilization": None}, False),
        (FailureClass.RUNTIME_OOM, {"max-model-len": "4096"}, False),
        (FailureClass.MAX_MODEL_LEN_TOO_LONG, {"gpu-memory-utilization": "0.92"}, False),
        (FailureClass.MAX_MODEL_LEN_TOO_LONG, {"gpu-memory-utilization": "0.88"}, True),
        (FailureClass.UTILIZATION_TOO_LOW, {"max-num-seqs": "128"}, True),
        (FailureClass.UTILIZATION_TOO_LOW, {"max-num-seqs": "32"}, False),
        (FailureClass.UTILIZATION_TOO_LOW, {"enforce-eager": True}, False),
        (FailureClass.INVALID_FLAG, {"gpu-memory-utilization": "0.9"}, True),
        (FailureClass.INVALID_FLAG, {"gpu-memory-utilization": "0.92"}, False),
    ],
)
def test_what_a_crash_forbids(kind: FailureClass, tried: dict[str, FlagValue | None], *, forbidden: bool) -> None:
    """The same again, and what asks for at least as much in every respect, and nothing else."""
    ban = Ban(CRASHED, failure(kind))
    assert (banned(CRASHED.changed(tried), [ban]) is ban) is forbidden


def test_what_neighbours_made_impossible_is_allowed_once_they_are_gone() -> None:
    """A check of free memory at the start failed with 40 GiB free; with as much as it asked for it may be tried."""
    ban = Ban(CRASHED, failure(FailureClass.UTILIZATION_TOO_HIGH, requested_bytes=72 * GIB, free_bytes=40 * GIB))
    assert banned(CRASHED, [ban], 40 * GIB) is ban
    assert banned(CRASHED, [ban], None) is ban
    assert banned(CRASHED, [ban], 79 * GIB) is None


def test_only_failures_of_the_flags_forbid() -> None:
    """What the host did to a launch says nothing of its flags, and a guess is no ground."""
    past = [
        Tried(launch(1, CRASHED, CRASHED), failure=failure(FailureClass.INFRA_FAULT)),
        Tried(launch(2, CRASHED, CRASHED), failure=failure(FailureClass.WARMUP_OOM)),
        Tried(launch(3, CRASHED, CRASHED), good_at_s=5.0),
        Tried(launch(4, CRASHED, CRASHED), failure=replace(failure(FailureClass.INVALID_COMBINATION), cause=GUESSED)),
    ]
    assert [ban.failure.kind for ban in bans_of(past)] == [FailureClass.WARMUP_OOM]


def test_the_last_good_launch_is_the_newest_that_no_ban_forbids() -> None:
    """What served and crashed later is passed over; so is what served under another command of the operator's."""
    other = flags(gpu_memory_utilization="0.8")
    lower = CRASHED.changed({"gpu-memory-utilization": "0.88"})
    lowest = CRASHED.changed({"gpu-memory-utilization": "0.86"})
    past = [
        Tried(launch(5, other, other), good_at_s=9.0),
        Tried(launch(4, CRASHED, CRASHED), good_at_s=8.0, failure=failure(FailureClass.RUNTIME_OOM)),
        Tried(launch(3, lower, CRASHED), good_at_s=7.0),
        Tried(launch(2, lowest, CRASHED), good_at_s=6.0),
    ]
    found = last_good(past, CRASHED, None)
    assert found is not None
    assert found[0].launch.generation == 3
    assert found[1] == {"gpu-memory-utilization": "0.88"}
    assert last_good(past[:2], CRASHED, None) is None


def test_a_utilization_that_neighbours_took_comes_back_with_the_next_start() -> None:
    """Once as much is free as the operator's flags ask for; what else was changed stays."""
    lower = CRASHED.changed({"gpu-memory-utilization": "0.5", "max-num-seqs": "32"})
    taken = failure(FailureClass.GPU_MEMORY_TAKEN, requested_bytes=72 * GIB, free_bytes=40 * GIB)
    past = [
        Tried(launch(2, lower, CRASHED), good_at_s=7.0),
        Tried(launch(1, CRASHED, CRASHED), failure=taken),
    ]
    beside, alone = last_good(past, CRASHED, 40 * GIB), last_good(past, CRASHED, 79 * GIB)
    assert beside is not None
    assert beside[1] == {"gpu-memory-utilization": "0.5", "max-num-seqs": "32"}
    assert alone is not None
    assert alone[1] == {"max-num-seqs": "32"}


def test_what_a_mask_hides_is_not_run_again() -> None:
    """A utilization that reads like the operator's key is stored as a mask, and no server takes that."""
    hidden = CRASHED.changed({"gpu-memory-utilization": MASK})
    lower = CRASHED.changed({"gpu-memory-utilization": "0.86"})
    past = [Tried(launch(3, hidden, CRASHED), good_at_s=7.0), Tried(launch(2, lower, CRASHED), good_at_s=6.0)]
    found = last_good(past, CRASHED, None)
    assert found is not None
    assert found[0].launch.generation == 2
    assert last_good(past[:1], CRASHED, None) is None


sizes = st.integers(1, 9).map(lambda n: f"0.{n}")
counts = st.integers(1, 9).map(str)


@given(sizes, counts, sizes, counts)
def test_what_a_ban_forbids_asks_for_no_less_anywhere(util: str, seqs: str, other_util: str, other_seqs: str) -> None:
    """After an OOM, something smaller in any respect stays open."""
    ban = Ban(flags(gpu_memory_utilization=util, max_num_seqs=seqs), failure(FailureClass.WARMUP_OOM))
    tried = flags(gpu_memory_utilization=other_util, max_num_seqs=other_seqs)
    smaller = float(other_util) < float(util) or int(other_seqs) < int(seqs)
    assert (banned(tried, [ban]) is None) is smaller
