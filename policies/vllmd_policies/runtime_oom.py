"""Out of GPU memory while serving: a smaller pool, else smaller steps, else no CUDA graphs, else another try."""

from vllmd.decide.numbers import show_bytes
from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import BATCHED_TOKENS, ENFORCE_EAGER, UTILIZATION
from vllmd_policies.memory_arithmetic import (
    lacking_bytes,
    lowered_utilization,
    proposal,
    show,
    smaller_steps,
    total_bytes,
    utilization,
    without_graphs,
)


def runtime_oom(situation: Situation) -> Proposal | None:
    """Wish for less utilization by what the allocation lacked; where that cannot be, for eager mode."""
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
    if without_graphs(situation):
        reason = f"{failure.summary}; {UTILIZATION} may not go down, so the CUDA graphs go ({ENFORCE_EAGER})"
        return proposal("runtime_oom", failure, Wish.CHANGE_FLAGS, reason, {ENFORCE_EAGER: True})
    reason = f"{failure.summary}; no flag may move to make room, so it is started again as it was"
    return proposal("runtime_oom", failure, Wish.RETRY_UNCHANGED, reason)


def reserve_bytes(situation: Situation, failure: Failure) -> float | None:
    """Return how much more must stay free, more after each like failure; None if torch printed no numbers."""
    lacking, known, repeats = lacking_bytes(failure), situation.thresholds, situation.repeats
    if lacking is None:
        return None
    reserve = lacking + known.margin_bytes
    return reserve if repeats == 0 else max(reserve * known.reserve_growth**repeats, known.least_repeated_bytes)
