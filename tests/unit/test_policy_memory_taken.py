"""The policy for a utilization that asks for more than is free."""

from dataclasses import replace

import pytest

from captures import GIB, GUARDS, failure_of, situation
from vllmd.model.decision import Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import KV_CACHE_BYTES, UTILIZATION
from vllmd_policies.memory_taken import memory_taken


def taken(free: float, total: float, requested: float) -> Failure:
    """Return the failure with these sizes in GiB."""
    numbers = {"free_bytes": free * GIB, "total_bytes": total * GIB, "requested_bytes": requested * GIB}
    return failure_of(FailureClass.UTILIZATION_TOO_HIGH, numbers=numbers)


@pytest.mark.parametrize(
    ("failure", "present", "target"),
    [
        (taken(78.77, 139.8, 128.62), "0.92", "0.56"),  # H200, another process holds 60 GiB
        (taken(30.12, 31.84, 30.25), "0.95", "0.93"),  # 130 MiB short under WSL2
        (taken(13.53, 14.84, 14.69), "0.99", "0.89"),  # CPU at the start
        (taken(13.45, 14.84, 13.6), "0.95", "0.92"),  # CPU at the pool: the request is the pool's
        (taken(950.0, 1050.0, 950.1), "0.905", "0.89"),  # a hair too much: at least one hundredth
    ],
)
def test_utilization_falls_to_what_is_free(failure: Failure, present: str, target: str) -> None:
    """What is free less a margin, in hundredths, and at least one of them lower."""
    wish = memory_taken(situation(failure, {UTILIZATION: present}))
    assert wish is not None
    assert (wish.wish, wish.changes) == (Wish.CHANGE_FLAGS, {UTILIZATION: target})
    assert f"{present} -> {target}" in wish.reason


def test_our_own_leftover_is_waited_for() -> None:
    """The flags are right when our own predecessor holds the memory."""
    wish = memory_taken(situation(replace(failure_of(FailureClass.GPU_MEMORY_TAKEN), cause="own-leftover"), repeats=7))
    assert wish is not None
    assert (wish.wish, dict(wish.changes)) == (Wish.WAIT_THEN_RETRY, {})


@pytest.mark.parametrize(
    ("failure", "bounds"),
    [
        (taken(0.41, 79.18, 67.3), GUARDS),  # a predecessor that is not ours holds it all
        (taken(36.75, 121.63, 103.38), GUARDS),  # what fits is less than half
        (taken(60.0, 79.18, 67.3), {UTILIZATION: (0.8, 0.94)}),  # below the operator's minimum
        (taken(60.0, 79.18, 67.3), {}),  # may not move
        (failure_of(FailureClass.GPU_MEMORY_TAKEN), GUARDS),  # no numbers
    ],
)
def test_where_nothing_fits_it_waits(failure: Failure, bounds: dict[str, tuple[float | None, float | None]]) -> None:
    """Memory often comes back by itself; how often to try is for the daemon's breaker."""
    wishes = [memory_taken(situation(failure, {UTILIZATION: "0.85"}, bounds=bounds, repeats=n)) for n in range(4)]
    assert {w.wish for w in wishes if w} == {Wish.WAIT_THEN_RETRY}


def test_a_log_alone_waits_twice_and_then_asks() -> None:
    """Without a daemon's breaker the third like failure is the operator's, who learns what is free."""
    seen = situation(taken(36.75, 121.63, 103.38), {UTILIZATION: "0.85"}, bounds=GUARDS)
    wishes = [memory_taken(replace(seen, supervised=False, repeats=n)) for n in range(3)]
    assert [w.wish for w in wishes if w] == [Wish.WAIT_THEN_RETRY, Wish.WAIT_THEN_RETRY, Wish.STOP]
    assert wishes[2] is not None
    assert "free the memory that other processes hold" in wishes[2].reason


def test_a_pool_of_fixed_size_shrinks_where_the_operator_allows_it() -> None:
    """With an explicit size the utilization has no effect: the size itself moves, or the operator does."""
    numbers = {"free_bytes": 13.45 * GIB, "total_bytes": 14.84 * GIB, "pool_bytes": 100.0 * GIB}
    failure = failure_of(FailureClass.UTILIZATION_TOO_HIGH, numbers=numbers)
    flags = {KV_CACHE_BYTES: "100G"}
    wish = memory_taken(situation(failure, flags, bounds={KV_CACHE_BYTES: (None, None)}))
    assert wish is not None
    assert wish.changes == {KV_CACHE_BYTES: str(int(13.2 * GIB))}
    stop = memory_taken(situation(failure, flags))
    assert stop is not None
    assert stop.wish is Wish.STOP
    assert "lower --kv-cache-memory-bytes to 13.2 GiB or less" in stop.reason


@pytest.mark.parametrize(
    ("free_gib", "advice"),
    [(6.49, "lower VLLM_CPU_KVCACHE_SPACE to 6 or less"), (1.2, "unset VLLM_CPU_KVCACHE_SPACE")],
)
def test_the_variable_of_the_cpu_backend_is_told_in_whole_gib(free_gib: float, advice: str) -> None:
    """VLLM_CPU_KVCACHE_SPACE=6.24 would end the next start; less than one GiB cannot be said with it."""
    numbers = {"free_bytes": free_gib * GIB, "pool_bytes": 100.0 * GIB}
    stop = memory_taken(situation(failure_of(FailureClass.UTILIZATION_TOO_HIGH, numbers=numbers)))
    assert stop is not None
    assert stop.wish is Wish.STOP
    assert stop.reason.endswith(advice)


def test_no_more_than_the_bound_is_asked_for() -> None:
    """What is free may be more than the operator allows."""
    wish = memory_taken(situation(taken(75.0, 79.18, 78.4), {UTILIZATION: "0.99"}, bounds={UTILIZATION: (0.5, 0.9)}))
    assert wish is not None
    assert wish.changes == {UTILIZATION: "0.9"}


def test_other_failures_are_not_its_business() -> None:
    """The opposite failure is left to another policy."""
    assert memory_taken(situation(failure_of(FailureClass.UTILIZATION_TOO_LOW))) is None


@pytest.mark.parametrize("kind", [FailureClass.GPU_MEMORY_TAKEN, FailureClass.UTILIZATION_TOO_HIGH])
def test_memory_that_comes_back_is_waited_for(kind: FailureClass) -> None:
    """More is free than the launch found: a neighbour leaves, and is given two launches' time to."""
    failure = replace(taken(80.0, 139.8, 128.62), kind=kind)
    seen = situation(failure, {UTILIZATION: "0.92"}, gpu_free_bytes=82 * GIB)
    wishes = [memory_taken(replace(seen, repeats=n)) for n in range(3)]
    assert [w.wish for w in wishes if w] == [Wish.WAIT_THEN_RETRY, Wish.WAIT_THEN_RETRY, Wish.CHANGE_FLAGS]
    own_context = memory_taken(replace(seen, gpu_free_bytes=int(80.5 * GIB)))
    assert own_context is not None
    assert own_context.wish is Wish.CHANGE_FLAGS


@pytest.mark.parametrize(
    ("others", "bounds", "wanted"),
    [
        (0.0, {}, Wish.STOP),
        (0.0, {KV_CACHE_BYTES: (1.0, None)}, Wish.CHANGE_FLAGS),
        (30.0, {}, Wish.WAIT_THEN_RETRY),  # which may come back
    ],
)
def test_a_fixed_pool_that_the_device_does_not_hold_is_not_waited_for(
    others: float, bounds: dict[str, tuple[float | None, float | None]], wanted: Wish
) -> None:
    """An allocation of 90 GiB on a device of 80: the size is named, or lowered where it may be."""
    sizes = {"tried_bytes": 90.0, "free_bytes": 63.25 - others, "total_bytes": 80.0, "used_bytes": 16.75}
    failure = failure_of(FailureClass.UTILIZATION_TOO_HIGH, numbers={name: size * GIB for name, size in sizes.items()})
    wish = memory_taken(situation(failure, {KV_CACHE_BYTES: "90G"}, bounds=bounds))
    assert wish is not None
    assert wish.wish is wanted
    assert wanted is not Wish.STOP or f"lower --{KV_CACHE_BYTES} to 63.0 GiB or less" in wish.reason
