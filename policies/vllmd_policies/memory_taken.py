"""Utilization asks for more memory than is free: down to what fits, or time for whoever holds the rest."""

import re

from vllmd.decide.numbers import GIB, MIB, show_bytes
from vllmd.decide.refine import held_by_others
from vllmd.decide.vllm_defaults import counts_whole_device
from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import KV_CACHE_BYTES, UTILIZATION
from vllmd_policies.memory_arithmetic import (
    CPU_SPACE,
    lacking_bytes,
    lowered_utilization,
    lowest,
    may_move,
    proposal,
    round_down,
    round_up,
    show,
    total_bytes,
    upper_bound,
    utilization,
)

OWN_LEFTOVER = "own-leftover"  # processes of our former launch hold it
_LEAVING = re.compile(r"previous|predecessor|former|orphan|zombie|leftover|exiting|terminating|shutting", re.IGNORECASE)
_ENDED = re.compile(r"\b(?:restart|stopp|kill|crash|redeploy|roll(?:out|ing))", re.IGNORECASE)


def memory_taken(situation: Situation) -> Proposal | None:
    """Wish to wait for our own leftover; for foreign memory, to ask for less, else to wait, else for the operator."""
    failure = situation.failure
    if failure is None:
        return None
    if failure.cause == OWN_LEFTOVER:
        return proposal("memory_taken", failure, Wish.WAIT_THEN_RETRY, failure.summary)
    if failure.kind is FailureClass.GPU_MEMORY_TAKEN:
        return _of_taken(situation, failure)
    if failure.kind is not FailureClass.UTILIZATION_TOO_HIGH:
        return None
    if "pool_bytes" in failure.numbers or _fixed_beyond_the_device(situation, failure):
        return (
            _smaller_pool(situation, failure) or _smaller_space(situation, failure) or _stop_fixed(situation, failure)
        )
    if "requested_bytes" not in failure.numbers:
        return _less(situation, failure) or _wait_or_stop(situation, failure)
    if _coming_back(situation, failure):
        return _wait_or_stop(situation, failure)
    return _lower(situation, failure) or _wait_or_stop(situation, failure)


def _fixed_beyond_the_device(situation: Situation, failure: Failure) -> bool:
    """Whether a pool of fixed size finds no room on a device that nobody else holds a large part of: waiting is no use.

    Utilization does not change such a pool.
    """
    measured = failure.numbers.keys() >= {"tried_bytes", "free_bytes", "total_bytes"}
    return measured and KV_CACHE_BYTES in situation.flags and not held_by_others(failure.numbers, situation.host)


def _of_taken(situation: Situation, failure: Failure) -> Proposal:
    """Add a neighbour that vLLM counts as its own, wait for one that leaves, else ask for less."""
    if "requested_bytes" not in failure.numbers:
        return _beside(situation, failure) or _wait_or_stop(situation, failure)
    host = situation.host
    leaving = _LEAVING.search(host.other_process or "") or _ENDED.search(host.recent_event or "")
    if (leaving and situation.repeats < situation.thresholds.patience) or _coming_back(situation, failure):
        return _wait_or_stop(situation, failure)
    return _lower(situation, failure) or _wait_or_stop(situation, failure)


def _coming_back(situation: Situation, failure: Failure) -> bool:
    """Whether somebody is giving memory back: more is free now than the launch found, beyond its own context.

    A few times only: what is free may have been read before others took it.
    """
    found, now, known = failure.numbers.get("free_bytes"), situation.gpu_free_bytes, situation.thresholds
    if found is None or now is None or "node" in failure.numbers or situation.repeats >= known.patience:
        return False
    return now - found > known.context_bytes + known.margin_bytes


def _beside(situation: Situation, failure: Failure) -> Proposal | None:
    """Add a neighbour's share where this vLLM charges it to its own utilization; stop where both do not fit."""
    others, total = failure.numbers.get("others_bytes"), total_bytes(situation, failure)
    if not others or not total or not counts_whole_device(situation.version):
        return None
    present = utilization(situation, failure)
    target = round_up(present + others / total, 0.01)
    counted = f"this vLLM counts the {show_bytes(others)} of others as its own"
    if target > min(situation.thresholds.beside_ceiling, upper_bound(situation)):
        text = f"{counted}, so it would need {UTILIZATION} {show(target)}: shrink or stop the other, or upgrade vLLM"
        return proposal("memory_taken", failure, Wish.STOP, f"{failure.summary}; {text}")
    if not may_move(situation, UTILIZATION):
        return proposal("memory_taken", failure, Wish.STOP, f"{failure.summary}; {counted}: raise {UTILIZATION}")
    reason = f"{failure.summary}; {counted}; {UTILIZATION} {show(present)} -> {show(target)}"
    return proposal("memory_taken", failure, Wish.CHANGE_FLAGS, reason, {UTILIZATION: show(target)})


def _less(situation: Situation, failure: Failure) -> Proposal | None:
    """Lower utilization where the pool itself could not be made, by what was lacking or by a step."""
    lacking = lacking_bytes(failure)
    unified = situation.host.shares_memory or failure.cause == "no-number"
    step = situation.thresholds.unified_step if unified else situation.thresholds.blind_step
    freed = None if lacking is None else lacking + situation.thresholds.margin_bytes
    target = lowered_utilization(situation, failure, freed, step)
    if target is None:
        return None
    present = utilization(situation, failure)
    reason = f"{failure.summary}; {UTILIZATION} {show(present)} -> {show(target)}, since the pool found no room"
    return proposal("memory_taken", failure, Wish.CHANGE_FLAGS, reason, {UTILIZATION: show(target)})


def fitting_utilization(situation: Situation, failure: Failure) -> float | None:
    """Return the utilization that fits into what is free, with a margin; None if the text had no numbers."""
    numbers = failure.numbers
    free, total, requested = (numbers.get(n) for n in ("free_bytes", "total_bytes", "requested_bytes"))
    if free is None or not total or total < MIB or requested is None:
        return None
    present = utilization(situation, failure)
    target = present - (requested - free + _margin_bytes(situation, failure)) / total
    return max(
        0.0, min(round_down(min(target, present - situation.thresholds.least_step), 0.01), upper_bound(situation))
    )


def _margin_bytes(situation: Situation, failure: Failure) -> float:
    """Return what stays free: on a GPU the rounding of the driver, on a CPU's memory node what the host needs."""
    known = situation.thresholds
    part = known.host_margin_part if "node" in failure.numbers else 0.0
    return max(known.margin_bytes, part * failure.numbers["total_bytes"])


def _lower(situation: Situation, failure: Failure) -> Proposal | None:
    """Lower utilization to what is free; None if it may not go there, or if that is no room for a model."""
    target, present = fitting_utilization(situation, failure), utilization(situation, failure)
    least = max(lowest(situation, UTILIZATION), present * situation.thresholds.least_part)
    weights, total = failure.numbers.get("weights_bytes", 0.0), failure.numbers.get("total_bytes", 0.0)
    if target is None or target < least or target * total <= weights or not may_move(situation, UTILIZATION):
        return None
    fits = f"which fits and leaves {show_bytes(_margin_bytes(situation, failure))}"
    reason = f"{failure.summary}; {UTILIZATION} {show(present)} -> {show(target)}, {fits}"
    numbers = {**failure.numbers, "utilization_from": present, "utilization_to": target}
    return proposal("memory_taken", failure, Wish.CHANGE_FLAGS, reason, {UTILIZATION: show(target)}, numbers)


def _wait_or_stop(situation: Situation, failure: Failure) -> Proposal:
    """Give whoever holds the memory some time, then ask the operator; a server of vllmd's own has the breaker."""
    target = fitting_utilization(situation, failure)
    fits = "" if target is None else f"; only {UTILIZATION} {show(target)} would fit"
    if situation.supervised or situation.repeats < situation.thresholds.patience:
        reason = f"{failure.summary}{fits}, so the memory is given time to come back"
        return proposal("memory_taken", failure, Wish.WAIT_THEN_RETRY, reason)
    advice = f"free the memory that other processes hold, or lower {UTILIZATION} yourself"
    return proposal("memory_taken", failure, Wish.STOP, f"{failure.summary}{fits}; {advice}")


def _smaller_pool(situation: Situation, failure: Failure) -> Proposal | None:
    """Shrink a pool that a flag fixed to what is free; None if the operator does not allow that."""
    margin_bytes = situation.thresholds.margin_bytes
    target = int(failure.numbers.get("free_bytes", 0.0) - margin_bytes)
    allowed = KV_CACHE_BYTES in situation.flags and may_move(situation, KV_CACHE_BYTES)
    if not allowed or target <= 0 or target < lowest(situation, KV_CACHE_BYTES):
        return None
    reason = f"{failure.summary}; {KV_CACHE_BYTES} -> {target}, what is free less {show_bytes(margin_bytes)}"
    numbers = {**failure.numbers, "to_bytes": float(target)}
    return proposal("memory_taken", failure, Wish.CHANGE_FLAGS, reason, {KV_CACHE_BYTES: str(target)}, numbers)


def _smaller_space(situation: Situation, failure: Failure) -> Proposal | None:
    """Shrink the pool that the CPU backend's variable fixed to whole GiB of what is free."""
    room = int(failure.numbers.get("free_bytes", 0.0) * situation.thresholds.host_pool_part / GIB)
    if situation.supervised or KV_CACHE_BYTES in situation.flags or room < 1:
        return None
    reason = f"{failure.summary}; {CPU_SPACE}={room} fits"
    return proposal("memory_taken", failure, Wish.SET_ENV, reason, env={CPU_SPACE: str(room)})


def _stop_fixed(situation: Situation, failure: Failure) -> Proposal:
    """Say which size the operator must lower, and to what."""
    room_bytes = max(0.0, failure.numbers.get("free_bytes", 0.0) - situation.thresholds.margin_bytes)
    if KV_CACHE_BYTES in situation.flags:
        advice = f"lower --{KV_CACHE_BYTES} to {show_bytes(room_bytes)} or less"
    elif room_bytes >= GIB:
        advice = f"lower {CPU_SPACE} to {room_bytes // GIB:.0f} or less"  # whole GiB: vLLM takes no others (envs.py)
    else:
        advice = f"unset {CPU_SPACE}"
    return proposal("memory_taken", failure, Wish.STOP, f"{failure.summary}; {advice}")
