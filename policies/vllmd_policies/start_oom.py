"""Out of GPU memory during a start. What was being done decides, since utilization limits only the KV pool.

In order:
1. Warming up the sampler or pooler: fewer sequences, else less utilization.
2. Loading the weights: no flag of ours makes them smaller.
3. Measuring memory, before there is a pool: fewer batched tokens make a smaller step; utilization has no effect yet.
4. Capturing graphs and after: less utilization, else no graphs.
"""

from vllmd.decide.numbers import show_bytes
from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import BATCHED_TOKENS, CHUNKED_PREFILL, ENFORCE_EAGER, MAX_NUM_SEQS, UTILIZATION, FlagValue
from vllmd.model.server import Phase
from vllmd_policies.memory_arithmetic import (
    lacking_bytes,
    lowered_utilization,
    lowest,
    may_move,
    proposal,
    show,
    total_bytes,
    utilization,
    without_graphs,
)

_SPARE = 0.01  # of the device, beyond what the allocation lacked
_USABLE = 0.8  # of the free memory, for the warm-up of fewer sequences
_FEWEST_TOKENS = 256  # a smaller step would not even hold a batch of decodes


def start_oom(situation: Situation) -> Proposal | None:
    """Wish for the flag that makes the failed allocation smaller, or its room larger."""
    failure = situation.failure
    if failure is None or failure.kind is not FailureClass.START_OOM:
        return None
    if "dummy_requests" in failure.numbers:
        remedy = _fewer_sequences(situation, failure) or _less_pool(situation, failure)
        return remedy or _stop(failure, f"lower {MAX_NUM_SEQS} or {UTILIZATION}")
    if failure.phase in (Phase.CONFIG, Phase.LOADING):
        advice = "use more GPUs (tensor-parallel-size) or a quantized model, or free memory that others hold"
        return _stop(failure, f"the weights do not fit, whatever the utilization: {advice}")
    if failure.phase is Phase.PROFILING:
        advice = f"lower {BATCHED_TOKENS}, or what one request may hold of images and video (limit-mm-per-prompt)"
        return _smaller_steps(situation, failure) or _stop(failure, f"utilization has no effect here: {advice}")
    remedy = _less_pool(situation, failure) or _no_graphs(situation, failure)
    return remedy or _stop(failure, f"lower {UTILIZATION}, or set {ENFORCE_EAGER}")


def _fewer_sequences(situation: Situation, failure: Failure) -> Proposal | None:
    """Halve max-num-seqs, or go lower where the numbers say that half is still too much."""
    present = failure.numbers["dummy_requests"]
    target = present // 2
    tried, free = failure.numbers.get("tried_bytes"), failure.numbers.get("free_bytes")
    if tried and free is not None:
        target = min(target, _power_of_two(min(_USABLE * free / tried, 1.0) * present))
    if not may_move(situation, MAX_NUM_SEQS) or target < max(1.0, lowest(situation, MAX_NUM_SEQS)):
        return None
    text = f"{MAX_NUM_SEQS} {present:.0f} -> {target:.0f}: the warm-up's buffers grow with it"
    return _wish(failure, Wish.CHANGE_FLAGS, text, {MAX_NUM_SEQS: f"{target:.0f}"})


def _less_pool(situation: Situation, failure: Failure) -> Proposal | None:
    """Take from the pool what the allocation lacked."""
    total, lacking = total_bytes(situation, failure), lacking_bytes(failure)
    freed = None if total is None or lacking is None else lacking + _SPARE * total
    target = lowered_utilization(situation, failure, freed)
    if target is None:
        return None
    why = f" to free {show_bytes(freed)}" if freed is not None else ""
    text = f"{UTILIZATION} {show(utilization(situation, failure))} -> {show(target)}{why}"
    return _wish(failure, Wish.CHANGE_FLAGS, text, {UTILIZATION: show(target)})


def _smaller_steps(situation: Situation, failure: Failure) -> Proposal | None:
    """Halve the batched tokens: the activation peak that is measured grows with them."""
    present = situation.flags.number(BATCHED_TOKENS) or situation.batched_tokens
    whole_prompts = not situation.flags.get(CHUNKED_PREFILL, situation.chunked_prefill_default)
    if present is None or whole_prompts or not may_move(situation, BATCHED_TOKENS):
        return None
    sequences = situation.flags.number(MAX_NUM_SEQS) or situation.max_num_seqs or 0
    target = present // 2
    if target < max(_FEWEST_TOKENS, sequences, lowest(situation, BATCHED_TOKENS)):
        return None
    text = f"{BATCHED_TOKENS} {present:.0f} -> {target:.0f}: the largest step needs less, and utilization has no effect"
    return _wish(failure, Wish.CHANGE_FLAGS, text, {BATCHED_TOKENS: f"{target:.0f}"})


def _no_graphs(situation: Situation, failure: Failure) -> Proposal | None:
    """Give up the CUDA graphs."""
    if not without_graphs(situation):
        return None
    text = f"{UTILIZATION} may not go down, so the CUDA graphs go ({ENFORCE_EAGER})"
    return _wish(failure, Wish.CHANGE_FLAGS, text, {ENFORCE_EAGER: True})


def _stop(failure: Failure, advice: str) -> Proposal:
    return _wish(failure, Wish.STOP, advice)


def _power_of_two(value: float) -> float:
    """Return the largest power of two that is not above the value; 0 below 1."""
    return float(1 << (int(value).bit_length() - 1)) if value >= 1 else 0.0


def _wish(failure: Failure, wish: Wish, text: str, changes: dict[str, FlagValue | None] | None = None) -> Proposal:
    return proposal("start_oom", failure, wish, f"{failure.summary}; {text}", changes)
