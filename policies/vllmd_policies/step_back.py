"""Nothing failed for long: one step of what a recovery moved goes back towards the operator's baseline.

First what costs latency (no graphs, few of them), then what costs throughput, and a lowered utilization last and by
half of its way: it is what an OOM depends on most.
"""

from vllmd.decide.vllm_defaults import default_utilization
from vllmd.model.decision import Domain, Proposal, Situation, Wish
from vllmd.model.failure import FailureClass
from vllmd.model.flags import (
    BATCHED_TOKENS,
    CAPTURE_SIZE,
    ENFORCE_EAGER,
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    UTILIZATION,
    FlagValue,
    show_value,
)
from vllmd_policies.memory_arithmetic import round_down, show

_ORDER = (ENFORCE_EAGER, CAPTURE_SIZE, MAX_MODEL_LEN, MAX_NUM_SEQS, BATCHED_TOKENS, UTILIZATION)


def step_back(situation: Situation) -> Proposal | None:
    """Wish for one step back towards the baseline, once it was quiet."""
    if not situation.quiet or situation.failure is not None:
        return None
    moved = [name for name in _ORDER if name in situation.recovered]
    differing = situation.flags.differences(situation.baseline)
    for name in (name for name in moved if name in differing):
        value = _utilization(situation) if name == UTILIZATION else situation.baseline.get(name)
        present = situation.flags.get(name)
        if value == present:
            continue
        own = situation.baseline.get(name)
        towards = "vLLM's default" if own is None else f"the baseline's {show_value(own)}"
        step = f"{name} {show_value(present)} -> {show_value(value)}"
        reason = f"nothing failed for long: {step}, back towards {towards}"
        return Proposal("step_back", Domain.MEMORY, Wish.CHANGE_FLAGS, reason, {name: value}, trigger="quiet")
    return None


def _utilization(situation: Situation) -> FlagValue | None:
    """Return the utilization half of the way back up, at least one step; the baseline's own text at the end.

    The whole way where only a neighbour's memory took it down. One that was raised stays: going down gives nothing.
    """
    present, own = situation.flags.number(UTILIZATION), situation.baseline.get(UTILIZATION)
    baseline = situation.baseline.number(UTILIZATION)
    wanted = default_utilization(situation.version) if baseline is None else baseline
    if present is None or wanted < present:
        return situation.flags.get(UTILIZATION)
    step = situation.thresholds.least_step
    taken = situation.recovered[UTILIZATION] == FailureClass.GPU_MEMORY_TAKEN
    return own if taken or wanted - present <= 2 * step else show(round_down((present + wanted) / 2, step))
