"""Out of GPU memory while serving: a smaller pool, smaller steps, fewer sequences, fewer graphs, or another try."""

from vllmd.decide.numbers import show_bytes
from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import BATCHED_TOKENS, MAX_NUM_SEQS, UTILIZATION
from vllmd_policies.graph_memory import fewer_for_room
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


def runtime_oom(situation: Situation) -> Proposal | None:
    """Wish for less utilization by what the allocation lacked; else for smaller steps or batches, then fewer graphs."""
    failure = situation.failure
    if failure is None or failure.kind is not FailureClass.RUNTIME_OOM:
        return None
    freed = reserve_bytes(situation, failure)
    target = lowered_utilization(situation, failure, freed)
    total = total_bytes(situation, failure)
    if (
        freed is not None
        and total
        and freed > situation.thresholds.large_step_part * total
        and smaller_steps(situation, failure)
    ):
        target = None  # one step that large is what has to shrink, not the pool for its sake
    if target is not None:
        present = utilization(situation, failure)
        why = "" if freed is None else f" to keep {show_bytes(freed)} more free"
        reason = f"{failure.summary}; {UTILIZATION} {show(present)} -> {show(target)}{why}"
        numbers = {**failure.numbers, "utilization_from": present, "utilization_to": target}
        return proposal("runtime_oom", failure, Wish.CHANGE_FLAGS, reason, {UTILIZATION: show(target)}, numbers)
    if smaller := smaller_steps(situation, failure):
        reason = f"{failure.summary}; {BATCHED_TOKENS} -> {smaller}: the largest step needs less"
        return proposal("runtime_oom", failure, Wish.CHANGE_FLAGS, reason, {BATCHED_TOKENS: str(smaller)})
    if sequences := _fewer_sequences(situation):
        reason = f"{failure.summary}; {MAX_NUM_SEQS} -> {sequences}: the largest batch needs less"
        return proposal("runtime_oom", failure, Wish.CHANGE_FLAGS, reason, {MAX_NUM_SEQS: str(sequences)})
    if fewer := fewer_for_room(situation, failure, freed):
        reason = f"{failure.summary}; {UTILIZATION} alone may not go down, so {fewer.text}"
        return proposal("runtime_oom", failure, Wish.CHANGE_FLAGS, reason, fewer.changes)
    reason = f"{failure.summary}; no flag may move to make room, so it is started again as it was"
    return proposal("runtime_oom", failure, Wish.RETRY_UNCHANGED, reason)


def _fewer_sequences(situation: Situation) -> int | None:
    """Return half the sequences of a batch; None if they may not move, are unknown, or one is all there is."""
    present = situation.flags.number(MAX_NUM_SEQS) or situation.max_num_seqs
    if present is None or not may_move(situation, MAX_NUM_SEQS):
        return None
    target = int(present) // 2
    return target if target >= max(1.0, lowest(situation, MAX_NUM_SEQS)) else None


def reserve_bytes(situation: Situation, failure: Failure) -> float | None:
    """Return how much more must stay free, more after each like failure; None if torch printed no numbers."""
    lacking, known, repeats = lacking_bytes(failure), situation.thresholds, situation.repeats
    if lacking is None:
        return None
    reserve = lacking + known.margin_bytes
    return reserve if repeats == 0 else max(reserve * known.reserve_growth**repeats, known.least_repeated_bytes)
