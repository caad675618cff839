"""Whether a change of flags fits into the memory that is there. What is not known refuses nothing.

In order: more asked for than others and the CUDA context leave · less left for the KV pool than one request of full
length needs.
"""

from collections.abc import Mapping

from vllmd.decide.memory_budget import CONTEXT_BYTES
from vllmd.decide.numbers import show_bytes
from vllmd.model.flags import (
    BATCHED_TOKENS,
    KV_CACHE_BYTES,
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    UTILIZATION,
    Flags,
    FlagValue,
    show_value,
)
from vllmd.model.memory_budget import MemoryBudget

# With another flag changed, what the pool becomes is not a matter of these numbers.
_UNDERSTOOD = frozenset({UTILIZATION, BATCHED_TOKENS, MAX_NUM_SEQS, MAX_MODEL_LEN, KV_CACHE_BYTES})
_FITTED = ("auto", "-1")  # vLLM takes the longest context that the pool holds (0.14 on)


def shortfall(budget: MemoryBudget, present: Flags, changes: Mapping[str, FlagValue | None]) -> str | None:
    """Return in one sentence why flags with these changes do not fit; None if they do, or if too little is known."""
    after = present.changed(changes)
    return _no_room(budget, present, after) or _pool_too_small(budget, present, after)


def _no_room(budget: MemoryBudget, present: Flags, after: Flags) -> str | None:
    """Return why more is asked for than there is: of a rise only, since what runs has its memory."""
    device = budget.device_bytes if budget.device_bytes is not None else budget.total_bytes
    others = 0.0 if budget.counts_others else budget.others_bytes
    if device is None or others is None:
        return None
    before_bytes, after_bytes = _asked(budget, present, present, device), _asked(budget, present, after, device)
    room = device - others - CONTEXT_BYTES
    if before_bytes is None or after_bytes is None or after_bytes <= max(before_bytes, room):
        return None
    beside = f" beside the {show_bytes(others)} of others" if others else ""
    needs = f"{_changed(present, after)} needs {show_bytes(after_bytes)}"
    return f"{needs}, and {show_bytes(room)} of {show_bytes(device)} can be had{beside}"


def _asked(budget: MemoryBudget, present: Flags, flags: Flags, device: float) -> float | None:
    """Return what a launch with these flags takes at least; None if nobody knows.

    A pool of fixed size comes beside the parts that are known; otherwise the utilization has all of them in it but the
    graphs that were not counted.
    """
    if KV_CACHE_BYTES not in flags:
        share = _utilization(budget, flags, present)
        return None if share is None else share * device + budget.uncounted_graphs_bytes
    pool = flags.number(KV_CACHE_BYTES)
    if pool is None:
        return None
    parts = (budget.weights_bytes, budget.non_torch_bytes, budget.graphs_bytes, _activation(budget, present, flags))
    return pool + sum(part for part in parts if part is not None)


def _pool_too_small(budget: MemoryBudget, present: Flags, after: Flags) -> str | None:
    """Return why the pool would not hold one request: of a pool that shrinks, or a length that grows."""
    pool, need, length = budget.kv_cache_bytes, budget.request_bytes or 0.0, after.get(MAX_MODEL_LEN)
    if pool is None or pool <= 0 or length in _FITTED or not after.differences(present).keys() <= _UNDERSTOOD:
        return None
    left, needed = _pool_after(budget, present, after, pool), need * _longer(budget, present, after)
    if left is None or (left >= pool and needed <= need) or left >= max(needed, 1.0):
        return None
    wants = f"one request of full length needs {show_bytes(needed)}" if needed else "the pool cannot be empty"
    return f"{_changed(present, after)} leaves {show_bytes(left)} of the KV pool's {show_bytes(pool)}, and {wants}"


def _pool_after(budget: MemoryBudget, present: Flags, after: Flags, pool: float) -> float | None:
    """Return the pool that the flags leave, by the identity in `decide.memory_budget`."""
    if KV_CACHE_BYTES in after or KV_CACHE_BYTES in present:
        return after.number(KV_CACHE_BYTES)
    device = budget.device_bytes if budget.device_bytes is not None else budget.total_bytes
    before, then = _utilization(budget, present, present), _utilization(budget, after, present)
    if before is None or then is None or (before != then and device is None):
        return None
    grown = (_activation(budget, present, after) or 0.0) - (budget.activation_bytes or 0.0)
    return pool + (then - before) * (device or 0.0) - grown


def _utilization(budget: MemoryBudget, flags: Flags, present: Flags) -> float | None:
    """Return the utilization of these flags; where they do not say it, the one in force, or the default they go to."""
    said = flags.number(UTILIZATION)
    if said is not None:
        return said
    return budget.utilization_default if UTILIZATION in present else budget.utilization


def _activation(budget: MemoryBudget, present: Flags, after: Flags) -> float | None:
    """Return the activation peak, which grows in proportion to the largest step (and the sampler's to sequences)."""
    if budget.activation_bytes is None:
        return None
    steps = _ratio(present.number(BATCHED_TOKENS) or budget.batched_tokens, after.number(BATCHED_TOKENS))
    return budget.activation_bytes * max(steps, _ratio(present.number(MAX_NUM_SEQS), after.number(MAX_NUM_SEQS)))


def _longer(budget: MemoryBudget, present: Flags, after: Flags) -> float:
    """Return how much longer one request may become."""
    return _ratio(present.number(MAX_MODEL_LEN) or budget.request_tokens, after.number(MAX_MODEL_LEN))


def _changed(present: Flags, after: Flags) -> str:
    return ", ".join(f"{name} {show_value(value)}" for name, (_, value) in after.differences(present).items())


def _ratio(before: float | None, after: float | None) -> float:
    return after / before if before and after else 1.0
