"""What the memory policies compute with: the utilization in force, the device's memory, how far a flag may move.

The identity behind all of them (vLLM 0.33, v1/worker/gpu_worker.py): KV pool = total * utilization - weights -
activation peak - graphs. So one hundredth of utilization is one hundredth of the device, up or down.
"""

import math
from collections.abc import Mapping

from vllmd.decide.numbers import MIB
from vllmd.decide.vllm_defaults import at_least, counts_whole_device
from vllmd.model.decision import Domain, Proposal, Situation, Wish
from vllmd.model.failure import Failure
from vllmd.model.flags import (
    BATCHED_TOKENS,
    CHUNKED_PREFILL,
    KV_CACHE_BYTES,
    MAX_NUM_SEQS,
    UTILIZATION,
    FlagValue,
)

CPU_SPACE = "VLLM_CPU_KVCACHE_SPACE"  # GiB; the CPU backend's pool
# vLLM's default since 0.20 (config/cache.py); a diagnosis of an older one brings its 0.9 with it.
DEFAULT_UTILIZATION = 0.92

# The first sample of vLLM whose CPU worker reads the utilization (0.11 does not, 0.32 does).
_CPU_READS_UTILIZATION = (0, 20)

_ROUNDINGS = (0.01, 0.001)  # of a utilization: hundredths where the pool can spare what they add

_FUZZ = 1e-9  # 0.29 * 100 is 28.999999999999996


def utilization(situation: Situation, failure: Failure) -> float:
    """Return the utilization that the failed launch ran with; the default where what is said is none."""
    said = (situation.flags.number(UTILIZATION), failure.numbers.get("utilization"))
    return next((value for value in said if value is not None and 0 < value <= 1), DEFAULT_UTILIZATION)


def total_bytes(situation: Situation, failure: Failure) -> float | None:
    """Return the device's memory as vLLM printed it, else as the driver says, else at least; None if nobody does.

    Where neither says it, the identity above does: total * utilization is at least the weights and what is left for
    the pool (less than nothing if it is negative). Too small a total makes a rise too large, never too small.
    """
    total = failure.numbers.get("total_bytes") or situation.gpu_total_bytes
    if total and total >= MIB:
        return float(total)
    weights, left = failure.numbers.get("weights_bytes"), failure.numbers.get("available_bytes")
    if weights is None or left is None or weights + left < MIB:
        return None
    return (weights + left) / utilization(situation, failure)


def may_move(situation: Situation, name: str) -> bool:
    """Whether the flag may be changed: of a server that vllmd keeps, where the operator's guard has an entry for it."""
    return not situation.supervised or name in situation.bounds


def lowest(situation: Situation, name: str) -> float:
    """Return the guard's lower bound of a flag; 0 where it is open."""
    low, _ = situation.bounds.get(name, (None, None))
    return low or 0.0


def upper_bound(situation: Situation) -> float:
    """Return the guard's upper bound of the utilization, ours where it is open."""
    _, high = situation.bounds.get(UTILIZATION, (None, None))
    return situation.thresholds.open_ceiling if high is None else min(high, 1.0)


def highest_utilization(situation: Situation, failure: Failure) -> float:
    """Return the guard's upper bound of the utilization, or what is free on the device or beside others if less."""
    top, total = upper_bound(situation), total_bytes(situation, failure)
    free, context = failure.numbers.get("free_bytes"), 0
    if free is None:
        free, context = situation.gpu_free_bytes, situation.thresholds.context_bytes
    # The launch passed vLLM's own check for as much as it asked for: if less is free now, that is memory which the
    # ended process has not given back yet, and no limit.
    if total and free is not None and free >= utilization(situation, failure) * total:
        top = min(top, round_down((free - context) / total, 0.001))
    others = failure.numbers.get("others_bytes")
    if total and others and not counts_whole_device(situation.version):
        top = min(top, round_down((total - others - situation.thresholds.context_bytes) / total, 0.001))
    return top


def pool_is_fixed(situation: Situation, failure: Failure) -> bool:
    """Whether the pool has a size of its own, by a flag or the CPU's variable, so that utilization is no remedy."""
    if KV_CACHE_BYTES in situation.flags or "pool_bytes" in failure.numbers:
        return True
    return on_cpu(situation, failure) and not at_least(situation.version, _CPU_READS_UTILIZATION)


def on_cpu(situation: Situation, failure: Failure) -> bool:
    """Whether this is vLLM's CPU backend."""
    return failure.words.get("device") == "cpu" or "CPU backend" in (situation.host.hardware or "")


def lacking_bytes(failure: Failure) -> float | None:
    """Return what the failed allocation had too little of; None if torch printed no numbers."""
    tried, free = failure.numbers.get("tried_bytes"), failure.numbers.get("free_bytes")
    return None if tried is None or free is None else max(0.0, tried - free)


def lowered_utilization(
    situation: Situation, failure: Failure, freed_bytes: float | None, blind_step: float | None = None
) -> float | None:
    """Return the utilization that frees this much, at least the least step less and not below its bound.

    `freed_bytes` is None where no number was printed; then it falls by `blind_step`, or the profile's. None if it may
    not move, or if the pool would then not hold one request of full length.
    """
    if not may_move(situation, UTILIZATION) or pool_is_fixed(situation, failure):
        return None
    present, total = utilization(situation, failure), total_bytes(situation, failure)
    spare, known = _spare_part(situation, failure), situation.thresholds
    if freed_bytes is None or total is None:
        step = known.blind_step if blind_step is None else blind_step
        drop = min(step * (situation.repeats + 1), max(spare, known.least_step))
    else:
        drop = max(known.least_step, freed_bytes / total)
    targets = (min(round_down(present - drop, step), upper_bound(situation)) for step in _ROUNDINGS)
    target = next((value for value in targets if present - value <= spare + _FUZZ), None)
    if target is None:
        return None
    target = max(target, lowest(situation, UTILIZATION))
    return target if 0 < target < present and known.least_part * present <= target else None


def _spare_part(situation: Situation, failure: Failure) -> float:
    """Return how much of the device the pool can give up and still hold one request; all where nobody said."""
    pool, total = failure.numbers.get("available_bytes"), total_bytes(situation, failure)
    concurrency = failure.numbers.get("concurrency")
    if pool is None or not total or not concurrency or concurrency <= 0:
        return 1.0
    return max(0.0, pool * (1 - 1 / concurrency)) / total


def smaller_steps(situation: Situation, failure: Failure) -> int | None:
    """Return half the batched tokens; None if they may not or cannot be lowered."""
    present = (
        situation.flags.number(BATCHED_TOKENS) or failure.numbers.get("batched_tokens") or situation.batched_tokens
    )
    whole_prompts = not situation.flags.get(CHUNKED_PREFILL, situation.chunked_prefill_default)
    if present is None or whole_prompts or not may_move(situation, BATCHED_TOKENS):
        return None
    sequences = situation.flags.number(MAX_NUM_SEQS) or situation.max_num_seqs or 0
    target = int(present) // 2
    return (
        None
        if target < max(situation.thresholds.fewest_tokens, sequences, lowest(situation, BATCHED_TOKENS))
        else target
    )


def round_up(value: float, step: float) -> float:
    """Return the next multiple of the step."""
    return round(math.ceil(value / step - _FUZZ) * step, 6)


def round_down(value: float, step: float) -> float:
    """Return the multiple of the step below."""
    return round(math.floor(value / step + _FUZZ) * step, 6)


def show(value: float) -> str:
    """Return a utilization as a flag's value: "0.145", "0.9"."""
    return f"{value:.6g}"


def proposal(
    policy: str,
    failure: Failure,
    wish: Wish,
    reason: str,
    changes: Mapping[str, FlagValue | None] | None = None,
    numbers: Mapping[str, float] | None = None,
    env: Mapping[str, str | None] | None = None,
) -> Proposal:
    """Return a memory proposal that this failure triggered, with the numbers it rests on."""
    rests_on = numbers or failure.numbers
    return Proposal(policy, Domain.MEMORY, wish, reason, changes or {}, rests_on, failure.kind, env or {})
