"""The class of a failure where the text alone does not decide it: arithmetic, what was being done, what the host knows.

One function a class that a row names; each returns the class that the numbers say.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vllmd.decide.failure_texts import Work
from vllmd.decide.vllm_defaults import counts_whole_device
from vllmd.model.failure import FailureClass
from vllmd.model.host_facts import HostFacts
from vllmd.model.server import Phase

# Of the device: what a desktop, a driver and an operating system take; more belongs to another program.
_USUAL_PART = 0.25
_USUAL_PART_UNIFIED = 0.5  # where the GPU's memory is the host's
_NEARLY_FULL_PART = 0.85  # below, it is the activation peak that fills the device, and that can shrink
_FULL_PART = 0.93  # weights above it leave no room for anything else
# vLLM's budget ends here in practice: the driver and torch's workspace need the rest.
_HIGHEST_UTILIZATION = 0.99


@dataclass(frozen=True, slots=True)
class Clues:
    """What decides between classes."""

    numbers: Mapping[str, float]
    phase: Phase
    work: Work | None
    version: str | None
    host: HostFacts
    cause: str = ""


def refined(kind: FailureClass, clues: Clues) -> FailureClass:
    """Return the class that the clues make of a text's."""
    refine = _REFINE.get(kind)
    return refine(clues) if refine is not None else kind


def _more_than_free(clues: Clues) -> FailureClass:
    """Tell a utilization that is too high from memory that somebody else holds."""
    free, total = clues.numbers.get("free_bytes"), clues.numbers.get("total_bytes")
    if clues.cause == "no-number" and (clues.work or _WORK.get(clues.phase)) is Work.WEIGHTS:
        return FailureClass.WEIGHTS_DO_NOT_FIT
    if free is None or not total or "requested_bytes" not in clues.numbers:
        return FailureClass.UTILIZATION_TOO_HIGH
    usual = _USUAL_PART_UNIFIED if clues.host.shares_memory else _USUAL_PART
    held = max(total - free, clues.numbers.get("others_bytes", 0.0))
    return FailureClass.GPU_MEMORY_TAKEN if held >= usual * total else FailureClass.UTILIZATION_TOO_HIGH


def _nothing_for_the_pool(clues: Clues) -> FailureClass:
    """Tell a utilization that is too low from weights that fill the device, and from a neighbour that was counted."""
    numbers = clues.numbers
    if clues.host.other_engine_starting:
        return FailureClass.PROFILING_RACE
    total, weights = numbers.get("total_bytes"), numbers.get("weights_bytes")
    others = numbers.get("others_bytes", 0.0)
    if total and others > 0.1 * total and counts_whole_device(clues.version):
        return FailureClass.GPU_MEMORY_TAKEN
    available, utilization = numbers.get("available_bytes"), numbers.get("utilization")
    graphs = numbers.get("graphs_bytes", 0.0)
    if not total or weights is None:
        return FailureClass.UTILIZATION_TOO_LOW
    if available is not None and utilization is not None:
        most = available + (_HIGHEST_UTILIZATION - utilization) * total + graphs
        full = most <= 0 and weights >= _NEARLY_FULL_PART * total
        return FailureClass.WEIGHTS_DO_NOT_FIT if full else FailureClass.UTILIZATION_TOO_LOW
    return FailureClass.WEIGHTS_DO_NOT_FIT if weights >= _FULL_PART * total else FailureClass.UTILIZATION_TOO_LOW


def _no_room_for_a_request(clues: Clues) -> FailureClass:
    """Tell a length from a neighbour: an engine that starts beside this one may have taken its room."""
    return FailureClass.PROFILING_RACE if clues.host.other_engine_starting else FailureClass.MAX_MODEL_LEN_TOO_LONG


def _allocation_at_start(clues: Clues) -> FailureClass:
    """Tell allocations before serving apart by what was being done."""
    numbers, work = clues.numbers, clues.work or _WORK.get(clues.phase)
    total, weights = numbers.get("total_bytes"), numbers.get("weights_bytes")
    if "dummy_requests" in numbers:
        return FailureClass.WARMUP_OOM
    match work:
        case None | Work.WEIGHTS:
            if held_by_others(numbers, clues.host) or (work is None and clues.cause == "driver"):
                return FailureClass.GPU_MEMORY_TAKEN
            return FailureClass.WEIGHTS_DO_NOT_FIT
        case Work.MEASURING if total and weights and weights >= _FULL_PART * total:
            return FailureClass.WEIGHTS_DO_NOT_FIT
        case Work.MEASURING | Work.WARMUP:
            return FailureClass.WARMUP_OOM
        case Work.POOL:
            return FailureClass.UTILIZATION_TOO_HIGH
        case Work.GRAPHS:
            return FailureClass.GRAPH_CAPTURE_OOM


def held_by_others(numbers: Mapping[str, float], host: HostFacts) -> bool:
    """Whether a large part of a full device is neither free nor this process's own.

    Torch's "Process N has …" is no proof: in a container it may be this process under the host's number.
    """
    total, free = numbers.get("total_bytes"), numbers.get("free_bytes")
    own = max(numbers.get(name, 0.0) for name in ("used_bytes", "allocated_bytes"))
    usual = _USUAL_PART_UNIFIED if host.shares_memory else _USUAL_PART
    if not total:
        return False
    if numbers.get("others_bytes", 0.0) >= usual * total:
        return True
    return free is not None and own > 0 and total - free - own >= usual * total


def _moved_while_measured(clues: Clues) -> FailureClass:
    """Tell memory that grew from memory that stayed the same, where vLLM's own comparison is at fault."""
    before, after = clues.numbers.get("before_bytes"), clues.numbers.get("after_bytes")
    same = before is not None and before == after
    return FailureClass.INFRA_FAULT if same else FailureClass.PROFILING_RACE


_WORK: Mapping[Phase, Work] = {
    Phase.LOADING: Work.WEIGHTS,
    Phase.PROFILING: Work.MEASURING,
    Phase.CAPTURE: Work.GRAPHS,
    Phase.WARMUP: Work.WARMUP,
}
_REFINE: Mapping[FailureClass, Callable[[Clues], FailureClass]] = {
    FailureClass.UTILIZATION_TOO_HIGH: _more_than_free,
    FailureClass.UTILIZATION_TOO_LOW: _nothing_for_the_pool,
    FailureClass.MAX_MODEL_LEN_TOO_LONG: _no_room_for_a_request,
    FailureClass.WARMUP_OOM: _allocation_at_start,
    FailureClass.PROFILING_RACE: _moved_while_measured,
}
