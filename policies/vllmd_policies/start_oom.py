"""Out of GPU memory during a start. What was being done decides, since utilization limits only the KV pool.

In order:
1. Loading the weights: no flag of ours makes them smaller.
2. Warming up the sampler or pooler: fewer sequences, else less utilization, else the room of the graphs.
3. Measuring memory, before there is a pool: fewer images and videos, a smaller step, fewer prompts or a shorter
   context; utilization has no effect yet.
4. Capturing graphs and after: less utilization, else smaller graphs, else none, which leaves their memory to the pool.
"""

import json

from vllmd.decide.numbers import show_bytes
from vllmd.decide.vllm_defaults import at_least
from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import (
    BATCHED_TOKENS,
    CAPTURE_SIZE,
    CHUNKED_PREFILL,
    ENFORCE_EAGER,
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    UTILIZATION,
    FlagValue,
)
from vllmd.model.server import Phase
from vllmd_policies.graph_memory import eager_after_capture, fewer_for_room, graphs_bytes, smaller_capture
from vllmd_policies.memory_arithmetic import (
    lacking_bytes,
    lowered_utilization,
    lowest,
    may_move,
    proposal,
    show,
    smaller_steps,
    total_bytes,
    utilization,
)

_KINDS = frozenset({FailureClass.WARMUP_OOM, FailureClass.GRAPH_CAPTURE_OOM, FailureClass.WEIGHTS_DO_NOT_FIT})
_PER_REQUEST = "limit-mm-per-prompt"
# What vLLM measures at least without chunked prefill, whatever the length (0.5 to 0.7, config.py).
_SHORT_TOKENS = 2048
_SEQUENCES = 256  # their default there
_JSON_LIMITS_SINCE = (0, 9)  # before, the limits are written image=1,video=0


def start_oom(situation: Situation) -> Proposal | None:
    """Wish for the flag that makes the failed allocation smaller, or its room larger."""
    failure = situation.failure
    if failure is None or failure.kind not in _KINDS:
        return None
    if failure.kind is FailureClass.WEIGHTS_DO_NOT_FIT:
        advice = "use more GPUs (tensor-parallel-size) or a quantized model, or free memory that others hold"
        return _stop(failure, f"the weights do not fit, whatever the utilization: {advice}")
    if "dummy_requests" in failure.numbers:
        remedy = _fewer_sequences(situation, failure) or _less_pool(situation, failure, situation.thresholds.blind_step)
        remedy = remedy or _room_of_graphs(situation, failure)
        return remedy or _stop(failure, f"lower {MAX_NUM_SEQS} or {UTILIZATION}")
    if _before_the_pool(failure):
        advice = f"lower {BATCHED_TOKENS}, or what one request may hold of images and video ({_PER_REQUEST})"
        remedy = (
            _fewer_media(situation, failure)
            or _smaller_steps(situation, failure)
            or _fewer_measured(situation, failure)
            or _shorter(situation, failure)
        )
        return remedy or _stop(failure, f"utilization has no effect here: {advice}")
    remedy = _less_pool(situation, failure) or _smaller_graphs(situation, failure) or _no_graphs(situation, failure)
    return remedy or _stop(failure, f"lower {UTILIZATION}, or set {ENFORCE_EAGER}")


def _before_the_pool(failure: Failure) -> bool:
    """Whether there was no pool yet."""
    early = failure.phase in (Phase.CONFIG, Phase.LOADING, Phase.PROFILING)
    return failure.kind is FailureClass.WARMUP_OOM and early and "available_bytes" not in failure.numbers


def _fewer_sequences(situation: Situation, failure: Failure) -> Proposal | None:
    """Halve max-num-seqs, or go lower where the numbers say that half is still too much."""
    present = failure.numbers["dummy_requests"]
    target = present // 2
    tried, free = failure.numbers.get("tried_bytes"), failure.numbers.get("free_bytes")
    if tried and free is not None:
        target = min(target, _power_of_two(min(situation.thresholds.usable_part * free / tried, 1.0) * present))
    if not may_move(situation, MAX_NUM_SEQS) or target < max(1.0, lowest(situation, MAX_NUM_SEQS)):
        return None
    text = f"{MAX_NUM_SEQS} {present:.0f} -> {target:.0f}: the warm-up's buffers grow with it"
    return _wish(failure, Wish.CHANGE_FLAGS, text, {MAX_NUM_SEQS: f"{target:.0f}"})


def _less_pool(situation: Situation, failure: Failure, blind_step: float | None = None) -> Proposal | None:
    """Take from the pool what the allocation lacked."""
    total, lacking = total_bytes(situation, failure), lacking_bytes(failure)
    margin = situation.thresholds.capture_margin_part
    # An estimate of the graphs below nothing gave the pool memory that is not there (vLLM 0.24 to 0.26 print such).
    phantom = max(0.0, -failure.numbers.get("graphs_bytes", 0.0))
    freed = None if total is None or lacking is None else lacking + margin * total + phantom
    target = lowered_utilization(situation, failure, freed, margin if blind_step is None else blind_step)
    if target is None:
        return None
    why = f" to free {show_bytes(freed)}" if freed is not None else ""
    text = f"{UTILIZATION} {show(utilization(situation, failure))} -> {show(target)}{why}"
    return _wish(failure, Wish.CHANGE_FLAGS, text, {UTILIZATION: show(target)})


def _fewer_media(situation: Situation, failure: Failure) -> Proposal | None:
    """Leave video out and allow one image, where the worst case that is measured holds more."""
    if "video" not in failure.words.get("multimodal", "") or not may_move(situation, _PER_REQUEST):
        return None
    if _PER_REQUEST in situation.flags:
        return None
    limits = {"image": 1, "video": 0}
    written = (
        json.dumps(limits)
        if at_least(situation.version, _JSON_LIMITS_SINCE)
        else ",".join(f"{kind}={count}" for kind, count in limits.items())
    )
    text = f"one image and no video a request: what is measured is {failure.words['multimodal']}"
    return _wish(failure, Wish.CHANGE_FLAGS, text, {_PER_REQUEST: written})


def _smaller_steps(situation: Situation, failure: Failure) -> Proposal | None:
    """Halve the batched tokens: the activation peak that is measured grows with them."""
    target = smaller_steps(situation, failure)
    if target is None:
        return None
    text = f"{BATCHED_TOKENS} -> {target}: the largest step needs less, and utilization has no effect"
    return _wish(failure, Wish.CHANGE_FLAGS, text, {BATCHED_TOKENS: str(target)})


def _fewer_measured(situation: Situation, failure: Failure) -> Proposal | None:
    """Halve the sequences where whole prompts are measured and are short: each brings its images, if it has any."""
    length = situation.flags.number(MAX_MODEL_LEN)
    whole_prompts = not situation.flags.get(CHUNKED_PREFILL, situation.chunked_prefill_default)
    if not whole_prompts or length is None or length > _SHORT_TOKENS or not may_move(situation, MAX_NUM_SEQS):
        return None
    present = situation.flags.number(MAX_NUM_SEQS) or situation.max_num_seqs or _SEQUENCES
    target = int(present) >> (situation.repeats + 1)
    if target < max(1.0, lowest(situation, MAX_NUM_SEQS)):
        return None
    text = f"{MAX_NUM_SEQS} {present:.0f} -> {target}: prompts are short, so their number is what is measured"
    return _wish(failure, Wish.CHANGE_FLAGS, text, {MAX_NUM_SEQS: str(target)})


def _shorter(situation: Situation, failure: Failure) -> Proposal | None:
    """Halve the context where whole prompts are measured: without chunked prefill a step holds a full one."""
    present = situation.flags.number(MAX_MODEL_LEN)
    if situation.supervised or (present is None and situation.chunked_prefill_default):
        return None
    longest = situation.thresholds.longest_measured_tokens
    target = longest if present is None or present > 2 * longest else present // 2
    text = f"{MAX_MODEL_LEN} -> {target:.0f}: a step holds a whole prompt, so the longest one is measured"
    return _wish(failure, Wish.CHANGE_FLAGS, text, {MAX_MODEL_LEN: f"{target:.0f}"})


def _smaller_graphs(situation: Situation, failure: Failure) -> Proposal | None:
    """Halve the largest batch whose graph is captured."""
    target = smaller_capture(situation)
    if target is None:
        return None
    text = f"{UTILIZATION} may not go down; {CAPTURE_SIZE} -> {target}: fewer and smaller graphs"
    return _wish(failure, Wish.CHANGE_FLAGS, text, {CAPTURE_SIZE: str(target)})


def _no_graphs(situation: Situation, failure: Failure) -> Proposal | None:
    """Give up the CUDA graphs."""
    fewer = eager_after_capture(situation, failure)
    if fewer is None:
        return None
    return _wish(failure, Wish.CHANGE_FLAGS, f"{UTILIZATION} may not go down, so {fewer.text}", fewer.changes)


def _room_of_graphs(situation: Situation, failure: Failure) -> Proposal | None:
    """Take the warm-up's room from the graphs, which were captured before it, where the numbers say that it is."""
    lacking = lacking_bytes(failure)
    if lacking is None or graphs_bytes(failure) is None:
        return None
    fewer = fewer_for_room(situation, failure, lacking + situation.thresholds.margin_bytes)
    return None if fewer is None else _wish(failure, Wish.CHANGE_FLAGS, fewer.text, fewer.changes)


def _stop(failure: Failure, advice: str) -> Proposal:
    return _wish(failure, Wish.STOP, advice)


def _power_of_two(value: float) -> float:
    """Return the largest power of two that is not above the value; 0 below 1."""
    return float(1 << (int(value).bit_length() - 1)) if value >= 1 else 0.0


def _wish(failure: Failure, wish: Wish, text: str, changes: dict[str, FlagValue | None] | None = None) -> Proposal:
    return proposal("start_oom", failure, wish, f"{failure.summary}; {text}", changes)
