"""The budget of a GPU's memory, from the start log, the metrics and the driver, and whether a change fits into it.

The identity behind it (vLLM 0.33, v1/worker/gpu_worker.py): KV pool = device * utilization - weights - non-torch -
activation peak - graphs as they were estimated. The first vLLM that estimates graphs is 0.18; before, and with a model
runner that does not (0.26 on an H200), they come on top of what the utilization asks for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vllmd.decide.numbers import GIB
from vllmd.decide.vllm_defaults import counts_whole_device, default_utilization
from vllmd.model.flags import UTILIZATION, parse_number
from vllmd.model.memory_budget import MemoryBudget
from vllmd.model.server import Launch
from vllmd.model.snapshot import Gpu, GpuProcess, Snapshot
from vllmd.model.status import StartFacts

# The CUDA context that a process takes before vLLM looks at what is free: 139.8 GiB, of which 139.29 are free, on an
# H200 (tests/data/logs). No more than that, so that nothing is refused which may fit.
CONTEXT_BYTES = 0.5 * GIB
# What the driver itself keeps: 140.4 GiB by NVML are 139.8 to the server on that H200.
_DRIVER_BYTES = GIB
_HALF_DIGIT = 0.005  # of a concurrency that is printed with two decimals


def budget_of(start: StartFacts, snapshot: Snapshot | None, launch: Launch | None) -> MemoryBudget | None:
    """Return the budget of a launch; metrics of another one say nothing about it."""
    same = snapshot is not None and launch is not None and snapshot.generation == launch.generation
    metrics = snapshot.metrics if snapshot is not None and same else None
    utilization = launch.flags.number(UTILIZATION) if launch is not None else None
    return memory_budget(start, snapshot.gpus if snapshot else None, metrics.info if metrics else {}, utilization)


def memory_budget(
    start: StartFacts, gpus: Sequence[Gpu] | None, info: Mapping[str, str], utilization: float | None = None
) -> MemoryBudget | None:
    """Return the budget of the GPU with the least free memory among ours; None if nobody said anything.

    `info` are the labels of vllm:cache_config_info, `utilization` what the flags say. Under tensor parallelism the log
    holds every rank's share, which are alike, so that the fullest GPU is where memory ends first.
    """
    weights = start.weights_bytes
    counted = start.graphs_estimate_bytes
    if counted is None and start.kv_cache_bytes is not None:
        counted = 0.0  # the estimate is printed before the pool
    budget = replace(
        _pool(start, info),
        weights_bytes=weights,
        activation_bytes=_or_rest(start.activation_bytes, start.torch_peak_bytes, weights),
        non_torch_bytes=_or_rest(start.non_torch_bytes, start.consumed_bytes, weights),
        graphs_bytes=_first(start.graphs_bytes, start.graphs_estimate_bytes),
        graphs_counted_bytes=counted,
        device_bytes=start.device_bytes,
        utilization=_first(utilization, _label(info, "gpu_memory_utilization"), start.utilization),
        batched_tokens=start.batched_tokens,
    )
    if gpus:
        return _on(gpus, start, budget)
    return None if budget == MemoryBudget() else budget


def foreign_on(gpu: Gpu, gpus: Sequence[Gpu], start: StartFacts) -> tuple[GpuProcess, ...] | None:
    """Return the processes on a GPU that are not ours; None where one of them may be ours, unrecognised.

    In a container the driver's pids are the host's, and none of them is known as ours. While a launch lives that holds
    GPU memory, somebody on the list, or missing from it, is ours; `start` is empty when none lives.
    """
    recognised = any(process.ours for each in gpus for process in each.processes)
    if not recognised and start.phase is not None and not _holds_less(gpu, start):
        return None
    if not gpu.processes and gpu.used_bytes > _DRIVER_BYTES:
        return None  # somebody holds memory and is not listed
    return tuple(process for process in gpu.processes if not process.ours)


def as_told(budget: MemoryBudget | None, numbers: Mapping[str, float], version: str | None) -> MemoryBudget:
    """Return the budget with what a failure's own numbers say instead, and vLLM's default where nobody says it."""
    budget = budget or MemoryBudget()
    names = {
        "weights_bytes": "weights_bytes",
        "available_bytes": "kv_cache_bytes",
        "others_bytes": "others_bytes",
        "total_bytes": "device_bytes",
        "utilization": "utilization",
        "asked_tokens": "request_tokens",
        "batched_tokens": "batched_tokens",
    }
    told: dict[str, Any] = {own: numbers[name] for name, own in names.items() if name in numbers}
    if {
        "free_bytes",
        "total_bytes",
        "requested_bytes",
    } <= numbers.keys():  # what was free when nothing of ours was held
        told["others_bytes"] = max(0.0, numbers["total_bytes"] - numbers["free_bytes"] - CONTEXT_BYTES)
    request = _request_bytes(numbers.get("available_bytes"), numbers.get("concurrency"), None, None)
    request = _first(numbers.get("needed_bytes"), request)
    if request is not None:
        told["request_bytes"] = request
    default = default_utilization(version)
    told["utilization"] = _first(told.get("utilization"), budget.utilization, default)
    return replace(budget, **told, utilization_default=default, counts_others=counts_whole_device(version))


def _pool(start: StartFacts, info: Mapping[str, str]) -> MemoryBudget:
    """Return the pool, and what one request of full length takes of it."""
    size = _first(start.kv_cache_bytes, _label(info, "kv_cache_memory_bytes"))
    blocks, block = _label(info, "num_gpu_blocks"), _label(info, "block_size")
    counted = blocks * block if blocks is not None and block is not None else None
    tokens = _first(_label(info, "kv_cache_size_tokens"), start.kv_cache_tokens, counted)
    concurrency = _first(start.concurrency, _label(info, "kv_cache_max_concurrency"))
    length = start.request_tokens
    return MemoryBudget(
        kv_cache_bytes=size,
        request_bytes=_request_bytes(size, concurrency, tokens, length),
        request_tokens=length,
    )


def _request_bytes(
    pool: float | None, concurrency: float | None, tokens: float | None, length: float | None
) -> float | None:
    """Return what one request needs at least: by the concurrency, which knows of sliding windows, else by tokens."""
    if pool is None or pool <= 0:
        return None
    if concurrency is not None and concurrency > 0:
        return pool / (concurrency + _HALF_DIGIT)
    return pool / tokens * length if tokens and length else None


def _on(gpus: Sequence[Gpu], start: StartFacts, budget: MemoryBudget) -> MemoryBudget:
    """Return the budget with what the driver says of the fullest GPU, of those that ours are recognised on."""
    ours = [gpu for gpu in gpus if any(process.ours for process in gpu.processes)]
    gpu = min(ours or gpus, key=lambda g: g.free_bytes)
    sure = bool(ours) or len(gpus) == 1  # else nobody knows on which of them the server runs
    foreign = foreign_on(gpu, gpus, start) if sure else None
    return replace(
        budget,
        gpu=gpu.index if sure else None,
        total_bytes=gpu.total_bytes,
        free_bytes=gpu.free_bytes if sure else None,
        others_bytes=held_by(foreign),
    )


def held_by(processes: Sequence[GpuProcess] | None) -> int | None:
    """Return what processes hold together; None if one of them, or who they are, is unknown."""
    sizes = [process.used_bytes for process in processes or ()]
    known = [size for size in sizes if size is not None]
    return sum(known) if processes is not None and len(known) == len(sizes) else None


def _holds_less(gpu: Gpu, start: StartFacts) -> bool:
    """Whether less is held on a GPU than the launch's weights alone take, so that it is not there."""
    return start.weights_bytes is not None and gpu.used_bytes < start.weights_bytes


def _or_rest(part: float | None, both: float | None, weights: float | None) -> float | None:
    """Return a part, or what is left of a sum that was printed with the weights in it."""
    if part is not None or both is None or weights is None:
        return part
    return max(0.0, both - weights)


def _label(info: Mapping[str, str], name: str) -> float | None:
    """Return a label as a number; vLLM writes None as "None"."""
    return parse_number(info.get(name, ""))


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
