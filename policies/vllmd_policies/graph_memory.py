"""The memory of the CUDA graphs: whom it goes to when there are fewer of them or none, and what uses it at once.

vLLM's identity (0.33, v1/worker/gpu_worker.py): KV pool = total * utilization - weights - activation peak - what is set
aside for the graphs. Two cases follow:

1. An estimate is set aside: by default from 0.21 on. Without graphs nothing is, so that the pool grows by the estimate
   at the same utilization, and what lies outside the budget stays as it was. Then
   - a pool that lacks less than the estimate becomes large enough, and nothing else has to move;
   - a capture that failed no longer asks for anything: utilization stays;
   - an allocation outside the pool that failed gains nothing by eager mode alone. Utilization falls by what was lacking
     in the same change, which the pool has just been given: it is no smaller than before.
2. Nothing is set aside: before, with a pool of fixed size, or by the operator's variable. The graphs lie outside the
   budget, and their memory becomes free there: it covers what was lacking, and utilization stays.

After a capture that failed, a utilization that vllmd had lowered for the graphs' sake goes up again, to where the pool
is as large as the operator's own flags made it, and never beyond: nobody asked for more. All this needs numbers that
vLLM printed; without them the graphs go and nothing else moves. Eager mode makes every token slower, so that smaller
graphs come first where the numbers say that they do.
"""

from dataclasses import dataclass

from vllmd.decide.numbers import show_bytes
from vllmd.decide.vllm_defaults import at_least, default_utilization
from vllmd.model.decision import Situation
from vllmd.model.failure import Failure
from vllmd.model.flags import CAPTURE_SIZE, ENFORCE_EAGER, MAX_NUM_SEQS, UTILIZATION, FlagValue
from vllmd_policies.memory_arithmetic import (
    highest_utilization,
    lowest,
    may_move,
    pool_is_fixed,
    round_down,
    show,
    total_bytes,
    utilization,
)

ESTIMATE = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"  # "1" sets the estimate aside, "0" does not (envs.py)
_SET_ASIDE_SINCE = (0, 21)  # its default, as the log of these versions says
_CAPTURED = 512  # vLLM's largest default capture size (config/vllm.py)
_CAPTURE_SIZE_SINCE = (0, 12)
_LISTS = ("cudagraph-capture-sizes", "cuda-graph-sizes")  # a list beside a largest size that it contradicts is refused
_IN_CONFIG = "capture_sizes"  # the same list in --compilation-config
_GO = f"the CUDA graphs go ({ENFORCE_EAGER})"


@dataclass(frozen=True, slots=True)
class FewerGraphs:
    """Flags that take memory from the graphs, and in words what becomes of it."""

    changes: dict[str, FlagValue | None]
    text: str


def without_graphs(situation: Situation) -> bool:
    """Whether CUDA graphs can still be given up: allowed, and not done yet. The last resort: ITL suffers."""
    return may_move(situation, ENFORCE_EAGER) and situation.flags.get(ENFORCE_EAGER) is not True


def set_aside_bytes(situation: Situation, failure: Failure) -> float | None:
    """Return what the pool gives up for the graphs: 0 where vLLM sets nothing aside, None where it did not say."""
    said = situation.host.environ.get(ESTIMATE)
    estimating = at_least(situation.version, _SET_ASIDE_SINCE) if said is None else said.strip() == "1"
    if not estimating or pool_is_fixed(situation, failure):
        return 0.0
    estimate = failure.numbers.get("graphs_bytes")
    return None if estimate is None else max(0.0, estimate)


def graphs_bytes(failure: Failure) -> float | None:
    """Return what the graphs took, or else what vLLM thought that they would; None if it printed neither."""
    found = failure.numbers.get("captured_bytes", failure.numbers.get("graphs_bytes"))
    return found if found is not None and found > 0 else None


def smaller_capture(situation: Situation) -> int | None:
    """Return half the largest batch whose graph is captured, less after each like failure; None if it may not move."""
    if not at_least(situation.version, _CAPTURE_SIZE_SINCE) or not may_move(situation, CAPTURE_SIZE):
        return None
    listed = any(name in situation.flags for name in _LISTS) or any(
        _IN_CONFIG in str(value) for name, value in situation.flags.items() if name.startswith("compilation-config")
    )
    if listed or situation.flags.get(ENFORCE_EAGER) is True:
        return None
    sequences = situation.flags.number(MAX_NUM_SEQS) or situation.max_num_seqs or _CAPTURED
    present = situation.flags.number(CAPTURE_SIZE) or min(2 * sequences, _CAPTURED)
    target = int(present) >> (situation.repeats + 1)
    return target if target >= max(1.0, lowest(situation, CAPTURE_SIZE)) else None


def eager_after_capture(situation: Situation, failure: Failure) -> FewerGraphs | None:
    """Give the graphs up because they could not be captured; what they no longer take is the pool's."""
    if not without_graphs(situation):
        return None
    kept, graphs = set_aside_bytes(situation, failure), graphs_bytes(failure)
    if kept is None or graphs is None:
        return FewerGraphs({ENFORCE_EAGER: True}, _GO)
    whose = f"{show_bytes(kept)} set aside for them are the pool's" if kept else f"their {show_bytes(graphs)} stay free"
    present = utilization(situation, failure)
    target = _asked_for(situation, failure, kept, graphs)
    if target is None:
        return FewerGraphs({ENFORCE_EAGER: True}, f"{_GO}: {whose}, so {UTILIZATION} {show(present)} stays")
    text = f"{_GO}: {whose}; {UTILIZATION} {show(present)} -> {show(target)}, the pool that was asked for"
    return FewerGraphs({ENFORCE_EAGER: True, UTILIZATION: show(target)}, text)


def _asked_for(situation: Situation, failure: Failure, kept: float, graphs: float) -> float | None:
    """Return the utilization that makes the pool as large as the operator's flags did before vllmd lowered it.

    None where vllmd did not lower it for the graphs, or where that is more than the graphs take.
    """
    asked = situation.baseline.number(UTILIZATION) or default_utilization(situation.version)
    present, total = utilization(situation, failure), total_bytes(situation, failure)
    if not total or situation.repeats == 0 or not may_move(situation, UTILIZATION) or pool_is_fixed(situation, failure):
        return None
    top = highest_utilization(situation, failure)
    target = round_down(min(asked - kept / total, top), situation.thresholds.rise_step)
    return target if present < target <= present + graphs / total else None


def fewer_for_room(situation: Situation, failure: Failure, lacking: float | None) -> FewerGraphs | None:
    """Take from the graphs what an allocation outside the pool lacked, in bytes; None if that brings nothing."""
    kept, graphs = set_aside_bytes(situation, failure), graphs_bytes(failure)
    if kept is None or graphs is None or lacking is None:
        return FewerGraphs({ENFORCE_EAGER: True}, _GO) if without_graphs(situation) else None
    outside = max(0.0, graphs - kept)
    size = smaller_capture(situation)
    if size is not None and situation.thresholds.fewer_graphs_part * outside >= lacking:
        return FewerGraphs(
            {CAPTURE_SIZE: str(size)}, f"{CAPTURE_SIZE} -> {size} frees the {show_bytes(lacking)} lacking"
        )
    if not without_graphs(situation):
        return None
    present = utilization(situation, failure)
    if kept == 0 or outside >= lacking:
        text = f"{_GO}: {show_bytes(outside)} of theirs become free, so {UTILIZATION} {show(present)} stays"
        return FewerGraphs({ENFORCE_EAGER: True}, text)
    total = total_bytes(situation, failure)
    if not total or not may_move(situation, UTILIZATION):
        return None
    target = round_down(present - (lacking - outside) / total, situation.thresholds.rise_step)
    if target < max(lowest(situation, UTILIZATION), present - kept / total):
        return None
    text = f"{_GO}: the pool is given {show_bytes(kept)} set aside for them, and gives up what was lacking"
    text = f"{text} ({UTILIZATION} {show(present)} -> {show(target)})"
    return FewerGraphs({ENFORCE_EAGER: True, UTILIZATION: show(target)}, text)


def fewer_for_pool(situation: Situation, failure: Failure, missing: float | None) -> FewerGraphs | None:
    """Give the pool what is set aside for the graphs where it lacks no more than that, in bytes; None elsewhere.

    What utilization may still rise by comes on top, where that alone was too little.
    """
    kept, total = set_aside_bytes(situation, failure), total_bytes(situation, failure)
    if not kept or not total or missing is None:
        return None
    present, wanted = utilization(situation, failure), missing + situation.thresholds.margin_bytes
    free = max(0.0, highest_utilization(situation, failure) - present) if may_move(situation, UTILIZATION) else 0.0
    part = situation.thresholds.fewer_graphs_part
    changes: dict[str, FlagValue | None]
    if (size := smaller_capture(situation)) is not None and part * kept >= wanted:
        given, changes, text = part * kept, {CAPTURE_SIZE: str(size)}, f"{CAPTURE_SIZE} -> {size}"
    elif without_graphs(situation) and kept + free * total >= wanted:
        given, changes, text = kept, {ENFORCE_EAGER: True}, _GO
    else:
        return None
    text = f"{text}: of {show_bytes(kept)} set aside for the graphs the pool gets {show_bytes(given)}"
    if given >= wanted:
        return FewerGraphs(changes, f"{text}, so {UTILIZATION} {show(present)} stays")
    target = present + free
    return FewerGraphs(
        {**changes, UTILIZATION: show(target)}, f"{text}; {UTILIZATION} {show(present)} -> {show(target)}"
    )
