"""Out of GPU memory while serving: a smaller pool, else smaller steps, else no CUDA graphs, else another try."""

from vllmd.decide.numbers import MIB, show_bytes
from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import BATCHED_TOKENS, ENFORCE_EAGER, UTILIZATION
from vllmd_policies.memory_arithmetic import (
    MARGIN_BYTES,
    lacking_bytes,
    lowered_utilization,
    proposal,
    show,
    smaller_steps,
    total_bytes,
    utilization,
    without_graphs,
)

# A failure that comes back despite the reserve gets a larger one each time: the Kubernetes VPA recommender's bump
# after an OOM, which is a factor of 1.2 and not less than a fixed amount.
_GROWTH = 1.2
_LEAST_REPEATED_BYTES = 512 * MIB
_LARGE_PART = 0.15  # of the device


def runtime_oom(situation: Situation) -> Proposal | None:
    """Wish for less utilization by what the allocation lacked; where that cannot be, for eager mode."""
    failure = situation.failure
    if failure is None or failure.kind is not FailureClass.RUNTIME_OOM:
        return None
    freed = reserve_bytes(failure, situation.repeats)
    target = lowered_utilization(situation, failure, freed)
    total = total_bytes(situation, failure)
    if freed is not None and total and freed > _LARGE_PART * total and smaller_steps(situation, failure):
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


def reserve_bytes(failure: Failure, repeats: int) -> float | None:
    """Return how much more must stay free after `repeats` like failures; None if torch printed no numbers."""
    lacking = lacking_bytes(failure)
    if lacking is None:
        return None
    reserve = lacking + MARGIN_BYTES
    return reserve if repeats == 0 else max(reserve * _GROWTH**repeats, _LEAST_REPEATED_BYTES)
