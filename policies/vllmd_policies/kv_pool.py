"""The KV pool holds not even one request: more utilization by what is missing, else the context length that fits.

Utilization comes first, since the context length is promised to users. vLLM prints opposite advice for some of these
failures (tests/data/logs, the CPU logs); the numbers decide.
"""

from vllmd.decide.numbers import GIB, show_bytes
from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import KV_CACHE_BYTES, MAX_MODEL_LEN, UTILIZATION
from vllmd_policies.memory_arithmetic import (
    BLIND_STEP,
    highest_utilization,
    lowest,
    may_move,
    pool_is_fixed,
    proposal,
    round_up,
    show,
    total_bytes,
    utilization,
)

_MARGIN = 0.01  # of utilization, beyond the need that was printed: its numbers are rounded
_STEP = 0.005
_BLOCK_TOKENS = 16  # vLLM's block: the pool holds whole ones
# Where nothing is left for the pool, nothing says what one request needs. A twentieth of the device lets a model of a
# fitting size serve a context of some thousand tokens; if it does not do, the next failure prints the need.
_FIRST_POOL = 0.05
_FIRST_POOL_BYTES = GIB


def kv_pool_too_small(situation: Situation) -> Proposal | None:
    """Wish for a larger pool, else for a shorter context, else for the operator."""
    failure = situation.failure
    if failure is None or failure.kind is not FailureClass.KV_POOL_TOO_SMALL:
        return None
    return _larger(situation, failure) or _shorter(situation, failure) or _stop(situation, failure)


def _larger(situation: Situation, failure: Failure) -> Proposal | None:
    """Raise utilization by what is missing; None if it may not move, has no effect, or cannot rise far enough."""
    if not may_move(situation, UTILIZATION) or pool_is_fixed(situation, failure):
        return None
    present, top = utilization(situation, failure), highest_utilization(situation, failure)
    bottom, (least, wanted) = lowest(situation, UTILIZATION), _rise(situation, failure)
    target = min(max(round_up(present + wanted, _STEP), bottom), top)
    if target <= present or target < max(bottom, present + least):
        return None
    reason = f"{failure.summary}; {UTILIZATION} {show(present)} -> {show(target)}"
    if total := total_bytes(situation, failure):
        reason = f"{reason} of {show_bytes(total)}, {show_bytes((target - present) * total)} more for the pool"
    numbers = {**failure.numbers, "utilization_from": present, "utilization_to": target}
    return proposal("kv_pool_too_small", failure, Wish.CHANGE_FLAGS, reason, {UTILIZATION: show(target)}, numbers)


def _rise(situation: Situation, failure: Failure) -> tuple[float, float]:
    """Return by how much utilization must rise at least, and by how much it should."""
    total = total_bytes(situation, failure)
    if total is None:
        return 0.0, BLIND_STEP * (situation.repeats + 1)
    available = failure.numbers.get("available_bytes")
    needed = _needed_bytes(failure)
    if needed is not None and available is not None:
        missing = max(0.0, needed - available) / total
        return missing, missing + _MARGIN
    missing = max(0.0, -(available or 0.0)) / total
    return missing, missing + max(_FIRST_POOL_BYTES / total, _FIRST_POOL)


def _needed_bytes(failure: Failure) -> float | None:
    """Return the pool that one request needs; where only tokens were printed, in their proportion to the pool."""
    numbers = failure.numbers
    if "needed_bytes" in numbers:
        return numbers["needed_bytes"]
    available, asked, fitting = (numbers.get(n) for n in ("available_bytes", "asked_tokens", "fitting_tokens"))
    return available * asked / fitting if available and asked and fitting else None


def _shorter(situation: Situation, failure: Failure) -> Proposal | None:
    """Shorten the context to what fits; None if nobody said what fits, or the operator promised more."""
    fitting = failure.numbers.get("fitting_tokens", 0.0) // _BLOCK_TOKENS * _BLOCK_TOKENS
    if not may_move(situation, MAX_MODEL_LEN) or fitting <= 0 or fitting < lowest(situation, MAX_MODEL_LEN):
        return None
    reason = f"{failure.summary}; {MAX_MODEL_LEN} -> {fitting:.0f}, the longest that fits"
    numbers = {**failure.numbers, "to_tokens": fitting}
    return proposal("kv_pool_too_small", failure, Wish.CHANGE_FLAGS, reason, {MAX_MODEL_LEN: f"{fitting:.0f}"}, numbers)


def _stop(situation: Situation, failure: Failure) -> Proposal:
    """Say what the operator can do, with the numbers."""
    ways = _way_to_more(situation, failure)
    if fitting := failure.numbers.get("fitting_tokens"):
        ways = f"{ways}, or allow {MAX_MODEL_LEN} {fitting:.0f} in [guard]"
    elif not pool_is_fixed(situation, failure):
        weights = failure.numbers.get("weights_bytes")
        taken = f" (the weights take {show_bytes(weights)})" if weights else ""
        ways = f"{ways}; or take a smaller or quantized model{taken}, or more GPUs (tensor-parallel-size)"
    return proposal("kv_pool_too_small", failure, Wish.STOP, f"{failure.summary}; {ways}")


def _way_to_more(situation: Situation, failure: Failure) -> str:
    """Say how the operator gets a larger pool."""
    needed = _needed_bytes(failure)
    wanted = f" to {show_bytes(needed)} or more" if needed else ""
    if KV_CACHE_BYTES in situation.flags:
        return f"--{KV_CACHE_BYTES} fixes the pool: raise it{wanted}"
    if pool_is_fixed(situation, failure):
        return f"VLLM_CPU_KVCACHE_SPACE fixes the pool: unset it, or raise it{wanted}"
    target = utilization(situation, failure) + _rise(situation, failure)[0]
    if not may_move(situation, UTILIZATION):
        return f"raise {UTILIZATION} above {show(target)}, or allow it in [guard]"
    top = highest_utilization(situation, failure)
    return f"{UTILIZATION} would have to rise above {show(target)}, and {show(top)} is as far as it may"
