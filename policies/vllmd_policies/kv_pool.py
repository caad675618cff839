"""The KV pool holds not even one request: more utilization by what is missing, else the context length that fits.

Utilization comes first, since the context length is promised to users. vLLM prints opposite advice for some of these
failures (tests/data/logs, the CPU logs); the numbers decide.
"""

import math

from vllmd.decide.numbers import GIB, show_bytes
from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import (
    BATCHED_TOKENS,
    CHUNKED_PREFILL,
    KV_CACHE_BYTES,
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    UTILIZATION,
    FlagValue,
)
from vllmd_policies.graph_memory import ESTIMATE, fewer_for_pool, set_aside_bytes
from vllmd_policies.memory_arithmetic import (
    CPU_SPACE,
    highest_utilization,
    lowest,
    may_move,
    on_cpu,
    pool_is_fixed,
    proposal,
    round_up,
    show,
    total_bytes,
    utilization,
)

_BLOCK_TOKENS = 16  # vLLM's block: the pool holds whole ones
_KINDS = frozenset({FailureClass.UTILIZATION_TOO_LOW, FailureClass.MAX_MODEL_LEN_TOO_LONG})
_SPACE_GIB = 4  # what the CPU backend took by itself up to 0.11


def kv_pool_too_small(situation: Situation) -> Proposal | None:
    """Wish for a larger pool, else a shorter context, smaller steps, the graphs' memory; else for the operator."""
    failure = situation.failure
    if failure is None or failure.kind not in _KINDS:
        return None
    return (
        _fewer_graphs_counted(situation, failure)
        or _larger(situation, failure)
        or _shorter(situation, failure)
        or _smaller_steps(situation, failure)
        or _from_graphs(situation, failure)
        or _larger_fixed(situation, failure)
        or _larger_space(situation, failure)
        or _stop(situation, failure)
    )


def _fewer_graphs_counted(situation: Situation, failure: Failure) -> Proposal | None:
    """Switch off an estimate of the graphs' memory that cannot be true (vLLM 0.18 to 0.33 know such)."""
    graphs, total = failure.numbers.get("graphs_bytes"), total_bytes(situation, failure)
    if situation.supervised or not graphs or not total or graphs < situation.thresholds.absurd_graphs_part * total:
        return None
    reason = f"{failure.summary}; vLLM sets {show_bytes(graphs)} aside for CUDA graphs, which is no true estimate"
    return proposal("kv_pool_too_small", failure, Wish.SET_ENV, reason, env={ESTIMATE: "0"})


def _smaller_steps(situation: Situation, failure: Failure) -> Proposal | None:
    """Lower the batched tokens where utilization cannot rise: the activation peak gives its room to the pool."""
    present = (
        situation.flags.number(BATCHED_TOKENS) or failure.numbers.get("batched_tokens") or situation.batched_tokens
    )
    small = round(max(situation.thresholds.small_step_tokens, lowest(situation, BATCHED_TOKENS)))
    whole_prompts = not situation.flags.get(CHUNKED_PREFILL, situation.chunked_prefill_default)
    if whole_prompts or pool_is_fixed(situation, failure) or not present or present < 2 * small:
        return None
    changes: dict[str, FlagValue | None] = {BATCHED_TOKENS: str(small)}
    if (situation.flags.number(MAX_NUM_SEQS) or situation.max_num_seqs or 0) > small:
        changes[MAX_NUM_SEQS] = str(small)  # vLLM refuses fewer tokens than sequences
    if not all(may_move(situation, name) for name in changes) or _frees_too_little(situation, failure, small / present):
        return None
    reason = f"{failure.summary}; {BATCHED_TOKENS} {present:.0f} -> {small}: the largest step takes less"
    return proposal("kv_pool_too_small", failure, Wish.CHANGE_FLAGS, reason, changes)


def _frees_too_little(situation: Situation, failure: Failure, part: float) -> bool:
    """Whether steps of this part would not give the pool what it lacks; False where the numbers do not say.

    The activation peak is what the budget holds besides weights, graphs and pool, and shrinks at most in proportion.
    """
    numbers = failure.numbers
    total, graphs = numbers.get("total_bytes") or situation.gpu_total_bytes, set_aside_bytes(situation, failure)
    weights, available = numbers.get("weights_bytes"), numbers.get("available_bytes")
    if not total or weights is None or available is None:
        return False
    peak = utilization(situation, failure) * total - weights - available - (graphs or 0.0)
    return peak * (1 - part) < (_needed_bytes(failure) or 0.0) - available


def _from_graphs(situation: Situation, failure: Failure) -> Proposal | None:
    """Give the pool what is set aside for the graphs, where that is what it lacks: the last resort."""
    available, needed = failure.numbers.get("available_bytes"), _needed_bytes(failure)
    missing = None if available is None else max(0.0, (needed or 0.0) - available)
    fewer = fewer_for_pool(situation, failure, missing)
    if fewer is None:
        return None
    reason = f"{failure.summary}; {UTILIZATION} alone cannot rise far enough, so {fewer.text}"
    return proposal("kv_pool_too_small", failure, Wish.CHANGE_FLAGS, reason, fewer.changes)


def _larger_fixed(situation: Situation, failure: Failure) -> Proposal | None:
    """Raise a pool that a flag fixed to what one request needs and a little more; None if nobody said what that is."""
    needed = _needed_bytes(failure)
    if situation.supervised or KV_CACHE_BYTES not in situation.flags or not needed:
        return None
    target = int(needed * situation.thresholds.fixed_pool_factor)
    reason = f"{failure.summary}; {KV_CACHE_BYTES} -> {target}, which holds one request"
    return proposal("kv_pool_too_small", failure, Wish.CHANGE_FLAGS, reason, {KV_CACHE_BYTES: str(target)})


def _larger_space(situation: Situation, failure: Failure) -> Proposal | None:
    """Set the CPU backend's variable to what one request needs, or to its default, within what is free."""
    if situation.supervised or not on_cpu_pool(situation, failure):
        return None
    free = failure.numbers.get("free_bytes") or failure.numbers.get("total_bytes") or _SPACE_GIB * 4 * GIB
    needed = _needed_bytes(failure)
    wanted = max(1, math.ceil(needed / GIB)) if needed else _SPACE_GIB
    space = max(1, min(wanted, int(free / GIB / 2)))
    reason = f"{failure.summary}; {CPU_SPACE}={space}"
    return proposal("kv_pool_too_small", failure, Wish.SET_ENV, reason, env={CPU_SPACE: str(space)})


def on_cpu_pool(situation: Situation, failure: Failure) -> bool:
    """Whether the CPU backend's variable, and no flag, fixes the pool."""
    return on_cpu(situation, failure) and KV_CACHE_BYTES not in situation.flags and pool_is_fixed(situation, failure)


def _larger(situation: Situation, failure: Failure) -> Proposal | None:
    """Raise utilization by what is missing; None if it may not move, has no effect, or cannot rise far enough."""
    if not may_move(situation, UTILIZATION) or pool_is_fixed(situation, failure):
        return None
    if not situation.supervised and "fitting_tokens" in failure.numbers and total_bytes(situation, failure) is None:
        return None  # nobody knows how far: the length that fits is the safer answer
    present, top = utilization(situation, failure), highest_utilization(situation, failure)
    if not situation.supervised and "fitting_tokens" in failure.numbers:
        top = min(
            top, situation.thresholds.easy_ceiling
        )  # a length that fits is the safer answer than the last hundredths
    bottom, (least, wanted) = lowest(situation, UTILIZATION), _rise(situation, failure)
    target = min(max(round_up(present + wanted, situation.thresholds.rise_step), bottom), top)
    if target <= present or target < max(bottom, present + least):
        return None
    reason = f"{failure.summary}; {UTILIZATION} {show(present)} -> {show(target)}"
    if total := total_bytes(situation, failure):
        reason = f"{reason} of {show_bytes(total)}, {show_bytes((target - present) * total)} more for the pool"
    numbers = {**failure.numbers, "utilization_from": present, "utilization_to": target}
    return proposal("kv_pool_too_small", failure, Wish.CHANGE_FLAGS, reason, {UTILIZATION: show(target)}, numbers)


def _rise(situation: Situation, failure: Failure) -> tuple[float, float]:
    """Return by how much utilization must rise at least, and by how much it should."""
    total, known = total_bytes(situation, failure), situation.thresholds
    if total is None:
        return 0.0, known.blind_step * (situation.repeats + 1)
    available = failure.numbers.get("available_bytes")
    needed = _needed_bytes(failure)
    if needed is not None and available is not None:
        missing = max(0.0, needed - available) / total
        return missing, missing + known.rise_margin
    if (part := _part_missing(situation, failure)) is not None and available is None:
        return 0.0, part + known.rise_margin
    missing = max(0.0, -(available or 0.0)) / total
    return missing, missing + max(known.first_pool_bytes / total, known.first_pool_part)


def _needed_bytes(failure: Failure) -> float | None:
    """Return the pool that one request needs; where only tokens were printed, in their proportion to the pool."""
    numbers = failure.numbers
    if "needed_bytes" in numbers:
        return numbers["needed_bytes"]
    available, asked, fitting = (numbers.get(n) for n in ("available_bytes", "asked_tokens", "fitting_tokens"))
    return available * asked / fitting if available and asked and fitting else None


def _part_missing(situation: Situation, failure: Failure) -> float | None:
    """Return how much utilization is missing at most, by tokens alone: the pool is no larger than the whole budget."""
    asked, fitting = failure.numbers.get("asked_tokens"), failure.numbers.get("fitting_tokens")
    if not asked or not fitting or asked > 2 * fitting:
        return None
    return (asked / fitting - 1) * utilization(situation, failure)


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
        return f"{CPU_SPACE} fixes the pool: unset it, or raise it{wanted}"
    target = utilization(situation, failure) + _rise(situation, failure)[0]
    if not may_move(situation, UTILIZATION):
        return f"raise {UTILIZATION} above {show(target)}, or allow it in [guard]"
    top = highest_utilization(situation, failure)
    return f"{UTILIZATION} would have to rise above {show(target)}, and {show(top)} is as far as it may"
