"""Utilization asks for more memory than is free: down to what fits, or time for whoever holds the rest."""

from vllmd.decide.numbers import show_bytes
from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import KV_CACHE_BYTES, UTILIZATION
from vllmd_policies.memory_arithmetic import (
    MARGIN_BYTES,
    lowest,
    may_move,
    proposal,
    round_down,
    show,
    upper_bound,
    utilization,
)

# What fits is no remedy when it is less than this part of what was asked for: then somebody else has the device, and
# there is no room for the model.
_LEAST_PART = 0.5
_HOST_PART = 0.05  # vLLM for CPUs takes the host's memory, in which the operating system lives too
_PATIENCE = 2  # identical failures before waiting is given up: a process that ends gives memory back within seconds


def memory_taken(situation: Situation) -> Proposal | None:
    """Wish to wait for our own leftover; for foreign memory, to ask for less, else to wait, else for the operator."""
    failure = situation.failure
    if failure is None:
        return None
    if failure.kind is FailureClass.MEMORY_HELD_BY_PREDECESSOR:
        return proposal("memory_taken", failure, Wish.WAIT_THEN_RETRY, failure.summary)
    if failure.kind is not FailureClass.UTILIZATION_TOO_HIGH:
        return None
    if "pool_bytes" in failure.numbers:  # a pool of fixed size: utilization does not change it
        return _smaller_pool(situation, failure) or _stop_fixed(situation, failure)
    return _lower(situation, failure) or _wait_or_stop(situation, failure)


def fitting_utilization(situation: Situation, failure: Failure) -> float | None:
    """Return the utilization that fits into what is free, with a margin; None if the text had no numbers."""
    numbers = failure.numbers
    free, total, requested = (numbers.get(n) for n in ("free_bytes", "total_bytes", "requested_bytes"))
    if free is None or not total or requested is None:
        return None
    present = utilization(situation, failure)
    target = present - (requested - free + _margin_bytes(failure)) / total
    return max(0.0, min(round_down(min(target, present - 0.01), 0.01), upper_bound(situation)))


def _margin_bytes(failure: Failure) -> float:
    """Return what stays free: on a GPU the rounding of the driver, on a CPU's memory node what the host needs."""
    on_host = "node" in failure.numbers
    return max(MARGIN_BYTES, _HOST_PART * failure.numbers["total_bytes"]) if on_host else MARGIN_BYTES


def _lower(situation: Situation, failure: Failure) -> Proposal | None:
    """Lower utilization to what is free; None if it may not go there, or if that is no room for a model."""
    target, present = fitting_utilization(situation, failure), utilization(situation, failure)
    least = max(lowest(situation, UTILIZATION), present * _LEAST_PART)
    if target is None or target < least or not may_move(situation, UTILIZATION):
        return None
    fits = f"which fits and leaves {show_bytes(_margin_bytes(failure))}"
    reason = f"{failure.summary}; {UTILIZATION} {show(present)} -> {show(target)}, {fits}"
    numbers = {**failure.numbers, "utilization_from": present, "utilization_to": target}
    return proposal("memory_taken", failure, Wish.CHANGE_FLAGS, reason, {UTILIZATION: show(target)}, numbers)


def _wait_or_stop(situation: Situation, failure: Failure) -> Proposal:
    """Give whoever holds the memory some time, then ask the operator."""
    target = fitting_utilization(situation, failure)
    fits = "" if target is None else f"; only {UTILIZATION} {show(target)} would fit"
    if situation.repeats < _PATIENCE:
        reason = f"{failure.summary}{fits}, so the memory is given time to come back"
        return proposal("memory_taken", failure, Wish.WAIT_THEN_RETRY, reason)
    advice = f"free the memory that other processes hold, or lower {UTILIZATION} yourself"
    return proposal("memory_taken", failure, Wish.STOP, f"{failure.summary}{fits}; {advice}")


def _smaller_pool(situation: Situation, failure: Failure) -> Proposal | None:
    """Shrink a pool that a flag fixed to what is free; None if the operator does not allow that."""
    free = failure.numbers.get("free_bytes", 0.0)
    target = int(free - MARGIN_BYTES)
    allowed = KV_CACHE_BYTES in situation.flags and may_move(situation, KV_CACHE_BYTES)
    if not allowed or target <= 0 or target < lowest(situation, KV_CACHE_BYTES):
        return None
    reason = f"{failure.summary}; {KV_CACHE_BYTES} -> {target}, what is free less {show_bytes(MARGIN_BYTES)}"
    numbers = {**failure.numbers, "to_bytes": float(target)}
    return proposal("memory_taken", failure, Wish.CHANGE_FLAGS, reason, {KV_CACHE_BYTES: str(target)}, numbers)


def _stop_fixed(situation: Situation, failure: Failure) -> Proposal:
    """Say which size the operator must lower, and to what."""
    name = f"--{KV_CACHE_BYTES}" if KV_CACHE_BYTES in situation.flags else "VLLM_CPU_KVCACHE_SPACE"
    room = show_bytes(max(0.0, failure.numbers.get("free_bytes", 0.0) - MARGIN_BYTES))
    return proposal("memory_taken", failure, Wish.STOP, f"{failure.summary}; lower {name} to {room} or less")
