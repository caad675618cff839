"""The memory of the CUDA graphs: what frees it, whom it goes to, and what moves with it."""

from collections.abc import Mapping

import pytest

from captures import GIB, GUARDS, diagnose_lines, failure_of, situation
from vllmd.decide.propose import propose
from vllmd.model.decision import Proposal, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import BATCHED_TOKENS, CAPTURE_SIZE, ENFORCE_EAGER, MAX_NUM_SEQS, UTILIZATION, Flags, FlagValue
from vllmd.model.host_facts import HostFacts
from vllmd.model.server import Phase
from vllmd_policies import BUILT_IN

Bounds = dict[str, tuple[float | None, float | None]]
EAGER_ONLY: Bounds = {ENFORCE_EAGER: (None, None)}
FULL: Mapping[str, float] = {"total_bytes": 80 * GIB, "available_bytes": 10 * GIB, "concurrency": 1.001}


def wished(failure: Failure, flags: Mapping[str, FlagValue] | None = None, **given: object) -> Proposal:
    """Return what the policies wish."""
    wish = propose(situation(failure, flags or {UTILIZATION: "0.9"}, **given), BUILT_IN)
    assert wish is not None
    return wish


def capture(**numbers: float) -> Failure:
    """Return a capture that failed."""
    return failure_of(FailureClass.GRAPH_CAPTURE_OOM, Phase.CAPTURE, numbers)


def serving(**numbers: float) -> Failure:
    """Return an allocation of 1 GiB that failed while serving with half of it free, the pool holding one request."""
    sizes = {"tried_bytes": 1.0 * GIB, "free_bytes": 0.5 * GIB}
    return failure_of(FailureClass.RUNTIME_OOM, Phase.SERVING, {**FULL, **sizes, **numbers})


def empty_pool(lacking_gib: float, graphs_gib: float) -> Failure:
    """Return a pool that lacks this much when this much is set aside for the graphs."""
    numbers = {
        "total_bytes": 80 * GIB,
        "available_bytes": -lacking_gib * GIB,
        "graphs_bytes": graphs_gib * GIB,
        "utilization": 0.97,
    }
    return failure_of(FailureClass.UTILIZATION_TOO_LOW, numbers=numbers)


def test_what_was_set_aside_becomes_the_pools_and_utilization_stays() -> None:
    """Since 0.21 the estimate is part of the budget: nothing else has to move when the graphs go."""
    wish = wished(capture(**FULL, graphs_bytes=1.5 * GIB), bounds=EAGER_ONLY, version="0.26.0")
    assert wish.changes == {ENFORCE_EAGER: True}
    assert "1.5 GiB set aside for them are the pool's, so gpu-memory-utilization 0.9 stays" in wish.reason


@pytest.mark.parametrize(
    ("version", "environ"),
    [("0.11.0", {}), ("0.26.0", {"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"})],
)
def test_where_nothing_is_set_aside_the_graphs_memory_stays_free(version: str, environ: dict[str, str]) -> None:
    """Before 0.21, or by the operator's variable, the graphs lie outside the budget."""
    host = HostFacts(environ=environ)
    wish = wished(capture(captured_bytes=2.0 * GIB), bounds=EAGER_ONLY, version=version, host=host)
    assert "their 2.0 GiB stay free" in wish.reason
    assert wish.changes == {ENFORCE_EAGER: True}


def test_without_numbers_the_graphs_go_and_nothing_else_moves() -> None:
    """Nothing is raised blindly."""
    baseline = Flags(((UTILIZATION, "0.94"),))
    wish = wished(capture(total_bytes=80 * GIB), bounds=dict(EAGER_ONLY), baseline=baseline, repeats=3)
    assert wish.changes == {ENFORCE_EAGER: True}
    assert "stays" not in wish.reason


@pytest.mark.parametrize(
    ("asked", "repeats", "version", "numbers", "target"),
    [
        ("0.94", 3, "0.26.0", {"graphs_bytes": 2.0 * GIB}, "0.915"),  # 0.94 less the 0.025 that the pool gets anyway
        ("0.94", 3, "0.11.0", {"captured_bytes": 4.0 * GIB}, "0.94"),
        ("0.94", 0, "0.26.0", {"graphs_bytes": 2.0 * GIB}, None),  # vllmd lowered it for something else
        ("0.92", 3, "0.26.0", {"graphs_bytes": 2.0 * GIB}, None),  # the pool is larger than was asked for already
        ("0.94", 3, "0.11.0", {"captured_bytes": 1.0 * GIB}, None),  # more than the graphs took
    ],
)
def test_a_utilization_lowered_for_the_graphs_returns_to_the_pool_asked_for(
    asked: str, repeats: int, version: str, numbers: dict[str, float], target: str | None
) -> None:
    """Back to the size of the operator's own pool, by no more than the graphs take, in the same change."""
    failure = capture(**FULL, **numbers)
    bounds: Bounds = {ENFORCE_EAGER: (None, None), UTILIZATION: (0.5, 0.97)}
    wish = wished(failure, baseline=Flags(((UTILIZATION, asked),)), bounds=bounds, repeats=repeats, version=version)
    assert wish.changes == {ENFORCE_EAGER: True} | ({} if target is None else {UTILIZATION: target})
    assert ("the pool that was asked for" in wish.reason) == (target is not None)


def test_smaller_graphs_come_before_none() -> None:
    """Half of what is captured, a quarter and less after like failures, then eager mode."""
    sizes = [wished(capture(**FULL), bounds=GUARDS, repeats=n, version="0.26.0").changes for n in (0, 1, 2, 9)]
    assert sizes == [{CAPTURE_SIZE: "256"}, {CAPTURE_SIZE: "128"}, {CAPTURE_SIZE: "64"}, {ENFORCE_EAGER: True}]


@pytest.mark.parametrize(
    ("flags", "version"),
    [
        ({"cudagraph-capture-sizes": ("1", "2")}, "0.26.0"),
        ({"compilation-config": '{"cudagraph_capture_sizes": [1, 2]}'}, "0.26.0"),
        ({}, "0.11.0"),
    ],
)
def test_a_largest_size_is_not_set_where_it_is_refused(flags: dict[str, FlagValue], version: str) -> None:
    """Beside a list of sizes vLLM refuses it, and before 0.12 it does not know it."""
    assert wished(capture(**FULL), flags, bounds=GUARDS, version=version).changes == {ENFORCE_EAGER: True}


def test_while_serving_the_pool_gives_up_what_the_graphs_gave_it() -> None:
    """0.75 GiB are lacking and 2 GiB set aside: utilization falls in the same change and the pool is no smaller."""
    bounds: Bounds = {ENFORCE_EAGER: (None, None), UTILIZATION: (0.5, 0.97)}
    wish = wished(serving(graphs_bytes=2.0 * GIB), bounds=bounds, version="0.26.0")
    assert wish.changes == {ENFORCE_EAGER: True, UTILIZATION: "0.89"}
    assert "the pool is given 2.0 GiB set aside for them, and gives up what was lacking" in wish.reason


def test_while_serving_what_the_graphs_took_outside_the_budget_is_enough() -> None:
    """Before 0.21 the graphs' 2 GiB become free where 0.75 are lacking: utilization need not fall."""
    wish = wished(serving(captured_bytes=2.0 * GIB), bounds=EAGER_ONLY, version="0.11.0")
    assert wish.changes == {ENFORCE_EAGER: True}
    assert "2.0 GiB of theirs become free, so gpu-memory-utilization 0.9 stays" in wish.reason


def test_while_serving_a_part_of_the_graphs_is_given_up_where_it_is_enough() -> None:
    """A quarter of 4 GiB covers 0.75."""
    bounds: Bounds = {ENFORCE_EAGER: (None, None), CAPTURE_SIZE: (1, None)}
    wish = wished(serving(captured_bytes=6.0 * GIB, graphs_bytes=2.0 * GIB), bounds=bounds, version="0.26.0")
    assert wish.changes == {CAPTURE_SIZE: "256"}


@pytest.mark.parametrize("graphs_gib", [0.5, 2.0])
def test_while_serving_eager_mode_that_frees_nothing_is_not_wished_for(graphs_gib: float) -> None:
    """Where utilization may not move, the pool takes all that was set aside."""
    wish = wished(serving(graphs_bytes=graphs_gib * GIB), bounds=EAGER_ONLY, version="0.26.0")
    assert wish.wish is Wish.RETRY_UNCHANGED


def test_fewer_sequences_come_before_eager_mode() -> None:
    """Where the operator lets them move; one cannot be halved."""
    bounds: Bounds = {**EAGER_ONLY, MAX_NUM_SEQS: (16, None)}
    assert wished(serving(), {MAX_NUM_SEQS: "64"}, bounds=bounds).changes == {MAX_NUM_SEQS: "32"}
    assert wished(serving(), {MAX_NUM_SEQS: "16"}, bounds=bounds).changes == {ENFORCE_EAGER: True}


def test_a_warm_up_takes_the_graphs_room_where_nothing_else_may_move() -> None:
    """The sampler is warmed up after the capture: 2 GiB cover what it lacks. Without numbers the operator decides."""
    numbers = {"dummy_requests": 256.0, "tried_bytes": 1.0 * GIB, "free_bytes": 0.5 * GIB}
    failure = failure_of(FailureClass.WARMUP_OOM, Phase.WARMUP, {**numbers, "captured_bytes": 2.0 * GIB})
    assert wished(failure, bounds=EAGER_ONLY, version="0.11.0").changes == {ENFORCE_EAGER: True}
    unknown = failure_of(FailureClass.WARMUP_OOM, Phase.WARMUP, numbers)
    assert wished(unknown, bounds=EAGER_ONLY, version="0.11.0").wish is Wish.STOP


@pytest.mark.parametrize(
    ("failure", "bounds", "changes"),
    [
        (empty_pool(0.5, 2.0), EAGER_ONLY, {ENFORCE_EAGER: True}),
        (empty_pool(0.2, 2.0), {CAPTURE_SIZE: (1, None), **EAGER_ONLY}, {CAPTURE_SIZE: "256"}),
        (
            empty_pool(2.5, 2.0),  # a hundredth of utilization is left, 0.8 GiB
            {UTILIZATION: (0.5, 0.98), **EAGER_ONLY},
            {ENFORCE_EAGER: True, UTILIZATION: "0.98"},
        ),
        (empty_pool(2.5, 2.0), EAGER_ONLY, {}),
    ],
)
def test_a_pool_takes_what_is_set_aside_for_graphs(
    failure: Failure, bounds: Bounds, changes: dict[str, FlagValue]
) -> None:
    """Where utilization cannot rise far enough and the estimate is what is missing: smaller graphs, else none."""
    wish = wished(failure, {UTILIZATION: "0.97"}, bounds=bounds, version="0.26.0")
    assert wish.changes == changes
    assert (wish.wish is Wish.STOP) == (not changes)


def test_a_kept_servers_steps_give_their_memory_to_the_pool() -> None:
    """Where utilization is at its bound and the guard lets the batched tokens move; never without chunked prefill."""
    failure = empty_pool(2.0, 0.0)
    flags: dict[str, FlagValue] = {UTILIZATION: "0.97", BATCHED_TOKENS: "8192"}
    assert wished(failure, flags).changes == {BATCHED_TOKENS: "1024"}
    assert wished(failure, flags, max_num_seqs=2048).wish is Wish.STOP  # the sequences may not move
    assert wished(failure, {**flags, "enable-chunked-prefill": False}).wish is Wish.STOP


def test_steps_that_cannot_free_enough_are_not_tried() -> None:
    """77.6 GiB less 75 of weights and the pool's -2 are a peak of 4.6: seven eighths are enough, of 1.6 not."""
    flags: dict[str, FlagValue] = {UTILIZATION: "0.97", BATCHED_TOKENS: "8192"}
    numbers = {**empty_pool(2.0, 0.0).numbers, "weights_bytes": 75 * GIB}
    failure = failure_of(FailureClass.UTILIZATION_TOO_LOW, numbers=numbers)
    assert wished(failure, flags).changes == {BATCHED_TOKENS: "1024"}
    heavier = failure_of(FailureClass.UTILIZATION_TOO_LOW, numbers={**numbers, "weights_bytes": 78 * GIB})
    assert wished(heavier, flags).wish is Wish.STOP


def test_the_log_says_what_the_graphs_took() -> None:
    """The line of a capture that finished, and the estimate before it."""
    lines = [
        "(EngineCore pid=9) INFO 01-01 00:00:00 [gpu_worker.py:1] Estimated CUDA graph memory: 1.20 GiB total",
        "(EngineCore pid=9) INFO 01-01 00:00:09 [gpu_worker.py:1] Graph capturing finished in 24 secs, took 1.84 GiB",
        "(EngineCore pid=9) ERROR 01-01 00:00:10 [core.py:1] torch.OutOfMemoryError: CUDA out of memory.",
    ]
    numbers = diagnose_lines(lines).numbers
    assert (numbers["graphs_bytes"], numbers["captured_bytes"]) == (1.2 * GIB, 1.84 * GIB)
