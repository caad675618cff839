"""The policy for a KV pool that holds not even one request."""

import pytest

from captures import GIB, GUARDS, H200_BYTES, failure_of, situation
from vllmd.model.decision import Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import KV_CACHE_BYTES, MAX_MODEL_LEN, UTILIZATION
from vllmd_policies.kv_pool import kv_pool_too_small

LENGTH_MAY_MOVE = dict(GUARDS) | {MAX_MODEL_LEN: (None, None)}


def pool(**numbers: float) -> Failure:
    """Return the failure with these numbers."""
    return failure_of(FailureClass.UTILIZATION_TOO_LOW, numbers=numbers)


def test_utilization_rises_by_what_is_missing() -> None:
    """1.12 GiB of 139.8 are 0.008 of utilization, and 0.01 more for safety, rounded up."""
    failure = pool(needed_bytes=4 * GIB, available_bytes=2.88 * GIB, total_bytes=139.8 * GIB, fitting_tokens=23568)
    wish = kv_pool_too_small(situation(failure, {UTILIZATION: "0.125"}, bounds=LENGTH_MAY_MOVE))
    assert wish is not None
    assert wish.changes == {UTILIZATION: "0.145"}
    assert wish.reason == "it failed; gpu-memory-utilization 0.125 -> 0.145 of 139.8 GiB, 2.8 GiB more for the pool"
    assert wish.numbers["utilization_to"] == 0.145


def test_the_bound_is_taken_where_it_is_enough() -> None:
    """A bound between the need and the need with its margin is good enough."""
    failure = pool(needed_bytes=4 * GIB, available_bytes=2.88 * GIB, total_bytes=139.8 * GIB)
    bounds = {UTILIZATION: (0.1, 0.134)}
    wish = kv_pool_too_small(situation(failure, {UTILIZATION: "0.125"}, bounds=bounds))
    assert wish is not None
    assert wish.changes == {UTILIZATION: "0.134"}


def test_beyond_the_bound_the_length_that_fits_is_next() -> None:
    """The context is shortened only where utilization cannot rise far enough, to whole blocks."""
    failure = pool(needed_bytes=9 * GIB, available_bytes=2 * GIB, total_bytes=79 * GIB, fitting_tokens=23575)
    bounds = {UTILIZATION: (0.1, 0.93), MAX_MODEL_LEN: (16384.0, None)}
    wish = kv_pool_too_small(situation(failure, {UTILIZATION: "0.92"}, bounds=bounds))
    assert wish is not None
    assert wish.changes == {MAX_MODEL_LEN: "23568"}


@pytest.mark.parametrize(
    "bounds", [{UTILIZATION: (0.1, 0.93)}, {UTILIZATION: (0.1, 0.93), MAX_MODEL_LEN: (24000.0, None)}]
)
def test_below_a_promised_length_the_operator_is_asked(bounds: dict[str, tuple[float | None, float | None]]) -> None:
    """Neither a length without an entry nor one below its minimum is taken; the sentence has the numbers."""
    failure = pool(needed_bytes=9 * GIB, available_bytes=2 * GIB, total_bytes=79 * GIB, fitting_tokens=23568)
    wish = kv_pool_too_small(situation(failure, {UTILIZATION: "0.92"}, bounds=bounds))
    assert wish is not None
    assert (wish.wish, dict(wish.changes)) == (Wish.STOP, {})
    assert "would have to rise above 1.00861, and 0.93 is as far as it may" in wish.reason
    assert "allow max-model-len 23568 in [guard]" in wish.reason


def test_a_utilization_that_may_not_move_is_left_alone() -> None:
    """Without an entry in the guard the operator learns what it would take."""
    failure = pool(needed_bytes=4 * GIB, available_bytes=2.88 * GIB, total_bytes=139.8 * GIB)
    wish = kv_pool_too_small(situation(failure, {UTILIZATION: "0.125"}, bounds={}))
    assert wish is not None
    assert wish.wish is Wish.STOP
    assert "raise gpu-memory-utilization above 0.133011, or allow it in [guard]" in wish.reason


def test_an_empty_pool_gets_room_for_a_first_request() -> None:
    """What is missing to zero, and a twentieth of the device on top, since nobody said what one request needs."""
    failure = pool(available_bytes=-1.34 * GIB, total_bytes=121.7 * GIB)
    wish = kv_pool_too_small(situation(failure, {UTILIZATION: "0.4"}))
    assert wish is not None
    assert wish.changes == {UTILIZATION: "0.465"}


def test_on_a_small_device_the_first_request_gets_a_gibibyte() -> None:
    """The negative request of the CPU backend: 0.24 GiB are missing, and a twentieth of 14.84 is less than 1 GiB."""
    failure = pool(
        available_bytes=-0.24 * GIB, total_bytes=14.84 * GIB, free_bytes=13.49 * GIB, requested_bytes=0.3 * GIB
    )
    wish = kv_pool_too_small(situation(failure, {UTILIZATION: "0.02"}))
    assert wish is not None
    assert wish.changes == {UTILIZATION: "0.105"}


def test_an_empty_pool_takes_what_its_bound_allows() -> None:
    """70B on one H200: all that may be taken leaves 2.2 GiB, whose sufficiency only a start can tell."""
    failure = pool(available_bytes=-4.75 * GIB, utilization=0.92, weights_bytes=131.42 * GIB)
    wish = kv_pool_too_small(situation(failure, gpu_total_bytes=H200_BYTES))
    assert wish is not None
    assert wish.changes == {UTILIZATION: "0.97"}


def test_an_empty_pool_beyond_the_bound_is_the_operators() -> None:
    """Where even the bound leaves nothing, the weights are named."""
    failure = pool(available_bytes=-4.75 * GIB, utilization=0.95, weights_bytes=135 * GIB)
    wish = kv_pool_too_small(situation(failure, gpu_total_bytes=H200_BYTES))
    assert wish is not None
    assert wish.wish is Wish.STOP
    assert "(the weights take 135.0 GiB)" in wish.reason


def test_utilization_stays_within_what_is_free() -> None:
    """Another process holds a part of the device: more than the rest cannot be had."""
    failure = pool(needed_bytes=6 * GIB, available_bytes=2 * GIB, total_bytes=80 * GIB, fitting_tokens=8192)
    given = {"gpu_free_bytes": 40 * GIB, "bounds": LENGTH_MAY_MOVE}
    wish = kv_pool_too_small(situation(failure, {UTILIZATION: "0.48"}, **given))
    assert wish is not None
    assert wish.changes == {MAX_MODEL_LEN: "8192"}


def test_what_is_free_is_less_the_context_of_the_next_process() -> None:
    """Of 40 GiB free on 80, the next process's own context takes a little before vLLM looks."""
    failure = pool(needed_bytes=3.5 * GIB, available_bytes=2 * GIB, total_bytes=80 * GIB)
    wish = kv_pool_too_small(situation(failure, {UTILIZATION: "0.47"}, gpu_free_bytes=40 * GIB))
    assert wish is not None
    assert wish.changes == {UTILIZATION: "0.492"}


def test_memory_that_the_ended_process_still_holds_is_no_limit() -> None:
    """A reading below what the launch itself was granted is one of memory that has not come back yet."""
    failure = pool(needed_bytes=6 * GIB, available_bytes=2 * GIB, total_bytes=80 * GIB)
    wish = kv_pool_too_small(situation(failure, {UTILIZATION: "0.5"}, gpu_free_bytes=3 * GIB))
    assert wish is not None
    assert wish.changes == {UTILIZATION: "0.56"}


def test_a_pool_of_fixed_size_goes_straight_to_the_length() -> None:
    """With --kv-cache-memory-bytes utilization changes nothing."""
    failure = pool(needed_bytes=0.0, available_bytes=0.0, fitting_tokens=1792, total_bytes=14.84 * GIB)
    flags = {KV_CACHE_BYTES: "1000000", MAX_MODEL_LEN: "8192"}
    wish = kv_pool_too_small(situation(failure, flags, bounds=LENGTH_MAY_MOVE))
    assert wish is not None
    assert wish.changes == {MAX_MODEL_LEN: "1792"}
    stop = kv_pool_too_small(situation(failure, flags))
    assert stop is not None
    assert stop.wish is Wish.STOP
    assert "--kv-cache-memory-bytes fixes the pool: raise it, or allow max-model-len 1792" in stop.reason


def test_tokens_alone_are_put_in_proportion() -> None:
    """The V0 engine printed how many tokens fit; the pool's size says what they weigh."""
    failure = pool(available_bytes=7.26 * GIB, asked_tokens=60000, fitting_tokens=58384, total_bytes=31.37 * GIB)
    wish = kv_pool_too_small(situation(failure, {UTILIZATION: "0.85"}))
    assert wish is not None
    assert wish.changes == {UTILIZATION: "0.87"}


def test_without_a_device_size_the_steps_grow() -> None:
    """Nothing to compute with: a small step first, a larger one each time it was not enough."""
    failure = pool(needed_bytes=4.11 * GIB, available_bytes=4 * GIB)
    values = []
    for repeats in (0, 1, 2):
        wish = kv_pool_too_small(situation(failure, {UTILIZATION: "0.8"}, repeats=repeats))
        assert wish is not None
        values.append(wish.changes[UTILIZATION])
    assert values == ["0.82", "0.84", "0.86"]


def test_the_default_of_an_old_version_is_known() -> None:
    """An argv without a utilization ran with what the diagnosis says."""
    failure = pool(utilization=0.9, total_bytes=79.19 * GIB)
    wish = kv_pool_too_small(situation(failure))
    assert wish is not None
    assert wish.changes == {UTILIZATION: "0.95"}


def test_other_failures_are_not_its_business() -> None:
    """The opposite failure is left to another policy."""
    assert kv_pool_too_small(situation(failure_of(FailureClass.UTILIZATION_TOO_HIGH))) is None
