"""Inter-token latency slips: fewer batched tokens, one step down the ladder; or chunked prefill on where it is off.

A step that prefills a full chunk takes about c0 + a * batched tokens, and every decoding request waits for it: on an
H200 with an 8B model, 8192 tokens gave an ITL p99 of 212-238 ms, 2048 67-72 ms and 512 21-24 ms at the same throughput.
"""

from collections.abc import Sequence

from vllmd.model.decision import Domain, Proposal, Situation, TargetAssessment, Wish
from vllmd.model.flags import BATCHED_TOKENS, CHUNKED_PREFILL, MAX_NUM_SEQS


def itl_ladder(situation: Situation) -> Proposal | None:
    """Wish for half the batched tokens, rounded down to the ladder, when an ITL target slips in two windows."""
    slipping = [t for t in situation.assessment.slipping() if t.target.metric == "itl"] if situation.assessment else []
    if not slipping:
        return None
    worst = min(slipping, key=lambda t: t.share_high if t.share_high is not None else 1.0)
    if not situation.flags.get(CHUNKED_PREFILL, situation.chunked_prefill_default):
        return _wish(worst, {CHUNKED_PREFILL: True}, "chunked prefill on: whole prompts now stall every stream", {})
    present = situation.flags.number(BATCHED_TOKENS) or situation.batched_tokens
    if present is None:
        return None
    step = next_step(situation.thresholds.ladder_tokens, present, _floor(situation))
    if step is None:
        return None
    text = f"{BATCHED_TOKENS} {present:g} -> {step}: a shorter step delays every stream less"
    return _wish(worst, {BATCHED_TOKENS: str(step)}, text, {"from_tokens": present, "to_tokens": float(step)})


def next_step(ladder: Sequence[int], present: float, floor: float) -> int | None:
    """Return the largest step not above half of the present value, or else the next lower one, not below the floor."""
    lower = [step for step in ladder if floor <= step < present]
    halved = [step for step in lower if step <= present / 2]
    return halved[-1] if halved else (lower[-1] if lower else None)


def _floor(situation: Situation) -> float:
    """Return the least value that vLLM accepts (no fewer tokens than sequences) and that the guard allows."""
    sequences = situation.flags.number(MAX_NUM_SEQS) or situation.max_num_seqs or 0
    low, _ = situation.bounds.get(BATCHED_TOKENS, (None, None))
    return max(situation.thresholds.ladder_tokens[0], sequences, low or 0)


def _wish(target: TargetAssessment, changes: dict[str, str | bool], text: str, numbers: dict[str, float]) -> Proposal:
    share, goal = target.share_high, target.target
    reason = (
        f"{goal.name}: {'none' if share is None else f'{share:.2%}'} of {target.observations} gaps within "
        f"{goal.limit_s * 1000:g} ms, {goal.quantile:.1%} wanted, in two windows; {text}"
    )
    numbers = {**numbers, "observations": float(target.observations), "limit_s": goal.limit_s}
    return Proposal("itl_ladder", Domain.LATENCY, Wish.CHANGE_FLAGS, reason, changes, numbers, trigger=goal.name)
