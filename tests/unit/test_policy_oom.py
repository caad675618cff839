"""The policies for allocations that failed, during a start and while serving."""

import pytest

from captures import GIB, GUARDS, failure_of, situation
from vllmd.model.decision import Proposal, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import BATCHED_TOKENS, ENFORCE_EAGER, KV_CACHE_BYTES, MAX_NUM_SEQS, UTILIZATION, FlagValue
from vllmd.model.server import Phase
from vllmd_policies.runtime_oom import runtime_oom
from vllmd_policies.start_oom import start_oom

MIB = 2**20


def serving(tried_mib: float = 448, free_mib: float = 63.56, total_gib: float = 139.8) -> Failure:
    """Return an allocation that failed while serving."""
    numbers = {"tried_bytes": tried_mib * MIB, "free_bytes": free_mib * MIB, "total_bytes": total_gib * GIB}
    return failure_of(FailureClass.RUNTIME_OOM, Phase.SERVING, numbers)


def starting(phase: Phase, **numbers: float) -> Failure:
    """Return an allocation of 1 GiB that failed in this phase, with half of it free on an 80 GiB device."""
    sizes = {"tried_bytes": 1.0 * GIB, "free_bytes": 0.5 * GIB, "total_bytes": 80.0 * GIB}
    kinds = {Phase.LOADING: FailureClass.WEIGHTS_DO_NOT_FIT, Phase.CAPTURE: FailureClass.GRAPH_CAPTURE_OOM}
    return failure_of(kinds.get(phase, FailureClass.WARMUP_OOM), phase, sizes | numbers)


def _of(wish: Proposal | None) -> tuple[Wish, dict[str, FlagValue | None]]:
    assert wish is not None
    return wish.wish, dict(wish.changes)


def test_a_runtime_oom_takes_a_hundredth_at_least() -> None:
    """0.6 GiB of 139.8 are less than a hundredth."""
    assert _of(runtime_oom(situation(serving(), {UTILIZATION: "0.9"}))) == (Wish.CHANGE_FLAGS, {UTILIZATION: "0.89"})


def test_a_runtime_oom_takes_what_was_lacking_and_a_margin() -> None:
    """50 MiB of 21.75 on a 23.56 GiB device: 284 MiB are 0.0118 of it."""
    wish = runtime_oom(situation(serving(50, 21.75, 23.56), {UTILIZATION: "0.97"}))
    assert _of(wish) == (Wish.CHANGE_FLAGS, {UTILIZATION: "0.95"})
    assert wish is not None
    assert "to keep 284 MiB more free" in wish.reason


def test_the_reserve_grows_when_it_was_not_enough() -> None:
    """A repeated failure gets at least 512 MiB, and a fifth more each time."""
    values = [
        _of(runtime_oom(situation(serving(2048, 0, 23.56), {UTILIZATION: "0.97"}, repeats=n)))[1][UTILIZATION]
        for n in range(4)
    ]
    assert values == ["0.87", "0.85", "0.83", "0.8"]
    small = runtime_oom(situation(serving(50, 21.75, 23.56), {UTILIZATION: "0.97"}, repeats=1))
    assert small is not None
    assert "to keep 512 MiB more free" in small.reason


def test_without_numbers_a_runtime_oom_takes_a_step() -> None:
    """A line without sizes still says that something must give."""
    failure = failure_of(FailureClass.RUNTIME_OOM, Phase.SERVING)
    assert _of(runtime_oom(situation(failure))) == (Wish.CHANGE_FLAGS, {UTILIZATION: "0.9"})


@pytest.mark.parametrize(
    ("flags", "bounds"),
    [
        ({UTILIZATION: "0.9"}, {ENFORCE_EAGER: (None, None)}),
        ({UTILIZATION: "0.9"}, {ENFORCE_EAGER: (None, None), UTILIZATION: (0.9, None)}),
        ({KV_CACHE_BYTES: "40G"}, GUARDS),
    ],
)
def test_where_utilization_may_not_move_the_graphs_go(
    flags: dict[str, FlagValue], bounds: dict[str, tuple[float | None, float | None]]
) -> None:
    """Not allowed, at its minimum, or without effect: eager mode is the last resort."""
    assert _of(runtime_oom(situation(serving(), flags, bounds=bounds))) == (Wish.CHANGE_FLAGS, {ENFORCE_EAGER: True})


@pytest.mark.parametrize("flags", [{UTILIZATION: "0.9"}, {UTILIZATION: "0.9", ENFORCE_EAGER: True}])
def test_a_runtime_oom_without_a_remedy_is_tried_again(flags: dict[str, FlagValue]) -> None:
    """It served before: once more is better than standing still."""
    bounds = {ENFORCE_EAGER: (None, None)} if ENFORCE_EAGER in flags else {}
    wish = runtime_oom(situation(serving(), flags, bounds=bounds))
    assert _of(wish) == (Wish.RETRY_UNCHANGED, {})


def test_utilization_stops_at_its_minimum() -> None:
    """A part of what was lacking is better than nothing."""
    wish = runtime_oom(situation(serving(2048, 0, 23.56), {UTILIZATION: "0.9"}, bounds={UTILIZATION: (0.88, 0.95)}))
    assert _of(wish) == (Wish.CHANGE_FLAGS, {UTILIZATION: "0.88"})


@pytest.mark.parametrize("phase", [Phase.CAPTURE, Phase.WARMUP])
def test_graphs_that_do_not_fit_take_from_the_pool(phase: Phase) -> None:
    """After the pool was made, what is lacking is what it took: 0.5 GiB and a hundredth of 80."""
    wish = start_oom(situation(starting(phase), {UTILIZATION: "0.9"}))
    assert _of(wish) == (Wish.CHANGE_FLAGS, {UTILIZATION: "0.88"})


def test_graphs_that_do_not_fit_go_where_the_pool_may_not_shrink() -> None:
    """The graphs themselves are the last resort, then the operator."""
    bounds = {ENFORCE_EAGER: (None, None)}
    assert _of(start_oom(situation(starting(Phase.CAPTURE), bounds=bounds))) == (
        Wish.CHANGE_FLAGS,
        {ENFORCE_EAGER: True},
    )
    stop = start_oom(situation(starting(Phase.CAPTURE), {ENFORCE_EAGER: True}, bounds=bounds))
    assert _of(stop) == (Wish.STOP, {})


@pytest.mark.parametrize(("ceiling", "changes"), [(0.97, {UTILIZATION: "0.914"}), (0.9, {ENFORCE_EAGER: True})])
def test_neither_rounding_nor_a_bound_takes_more_than_the_pool_can_spare(
    ceiling: float, changes: dict[str, FlagValue]
) -> None:
    """1.3 GiB of 80 are lacking and 1.4 to spare: 0.91 would end in the opposite failure, and so would 0.9."""
    failure = starting(Phase.CAPTURE, free_bytes=0.5 * GIB, available_bytes=9.0 * GIB, concurrency=9.0 / 7.6)
    bounds = {UTILIZATION: (0.5, ceiling), ENFORCE_EAGER: (None, None)}
    assert _of(start_oom(situation(failure, {UTILIZATION: "0.931"}, bounds=bounds)))[1] == changes


def test_weights_that_do_not_fit_are_the_operators() -> None:
    """Utilization does not limit the weights, whatever the advice in the log says."""
    wish = start_oom(situation(starting(Phase.LOADING), {UTILIZATION: "0.9"}))
    assert _of(wish) == (Wish.STOP, {})
    assert wish is not None
    assert "tensor-parallel-size" in wish.reason


@pytest.mark.parametrize(
    ("tried_gib", "free_gib", "target"),
    [(1.74, 0.59, "256"), (1.47, 1.25, "512"), (1.0, 0.99, "512"), (9.0, 0.0, None)],
)
def test_a_sampler_that_does_not_fit_gets_fewer_sequences(
    tried_gib: float, free_gib: float, target: str | None
) -> None:
    """Half of 1024, or what four fifths of the free memory hold; utilization where that is nothing."""
    failure = starting(Phase.WARMUP, dummy_requests=1024, tried_bytes=tried_gib * GIB, free_bytes=free_gib * GIB)
    bounds = dict(GUARDS) | {MAX_NUM_SEQS: (16.0, None)}
    changes = {UTILIZATION: "0.77"} if target is None else {MAX_NUM_SEQS: target}
    assert _of(start_oom(situation(failure, {UTILIZATION: "0.9"}, bounds=bounds))) == (Wish.CHANGE_FLAGS, changes)


def test_without_leave_for_fewer_sequences_the_pool_gives_way() -> None:
    """The sampler's room can come from the pool as well."""
    failure = starting(Phase.WARMUP, dummy_requests=1024)
    assert _of(start_oom(situation(failure, {UTILIZATION: "0.9"})))[1] == {UTILIZATION: "0.88"}
    assert _of(start_oom(situation(failure, {UTILIZATION: "0.9"}, bounds={})))[0] is Wish.STOP


def test_a_step_that_does_not_fit_gets_smaller() -> None:
    """Before there is a pool, utilization has no effect; half the batched tokens has."""
    wish = start_oom(situation(starting(Phase.PROFILING), batched_tokens=8192, max_num_seqs=1024))
    assert _of(wish) == (Wish.CHANGE_FLAGS, {BATCHED_TOKENS: "4096"})


@pytest.mark.parametrize(
    ("flags", "given"),
    [
        ({BATCHED_TOKENS: "1024", MAX_NUM_SEQS: "1024"}, {}),  # vLLM refuses fewer tokens than sequences
        ({BATCHED_TOKENS: "8192", "enable-chunked-prefill": False}, {}),  # whole prompts must fit
        ({BATCHED_TOKENS: "8192"}, {"bounds": {}}),
        ({}, {}),  # how many it is, is unknown
    ],
)
def test_a_step_that_may_not_get_smaller_is_the_operators(
    flags: dict[str, FlagValue], given: dict[str, dict[str, tuple[float | None, float | None]]]
) -> None:
    """Where vLLM or the guard forbids fewer batched tokens, the operator decides."""
    assert _of(start_oom(situation(starting(Phase.PROFILING), flags, **given))) == (Wish.STOP, {})


def test_other_failures_are_not_their_business() -> None:
    """Each policy looks at its own class only."""
    assert runtime_oom(situation(starting(Phase.CAPTURE))) is None
    assert start_oom(situation(serving())) is None
