"""One GPU's memory as every report tells it: the driver's numbers, and what the launch and others take of it. Pure."""

from collections.abc import Mapping
from typing import Any

from vllmd.decide.memory_budget import foreign_on, held_by
from vllmd.model.life import ALIVE
from vllmd.model.memory_budget import MemoryBudget
from vllmd.model.snapshot import Gpu, GpuProcess
from vllmd.model.status import StartFacts, Status


def sizes(gpu: Gpu, status: Status) -> Mapping[str, float | None]:
    """Return the bytes of each kind; None where nobody says, and the launch's parts on the GPU of its budget only."""
    of_gpu = status.memory is not None and status.memory.gpu == gpu.index
    budget = status.memory if status.memory is not None and of_gpu else MemoryBudget()
    foreign = strangers(gpu, status)
    return {
        "total": gpu.total_bytes,
        "used": gpu.used_bytes,
        "free": gpu.free_bytes,
        "ours": None if foreign is None else held_by([p for p in gpu.processes if p.ours]),
        "foreign": held_by(foreign),
        "weights": budget.weights_bytes,
        "kv_cache": budget.kv_cache_bytes,
        "activation": budget.activation_bytes,
        "non_torch": budget.non_torch_bytes,
        "graphs": budget.graphs_bytes,
        "unexplained": budget.unexplained_bytes,
    }


def strangers(gpu: Gpu, status: Status) -> tuple[GpuProcess, ...] | None:
    """Return the processes on a GPU that are not ours; None where one of them may be ours."""
    alive = status.start if status.state in ALIVE else None
    return foreign_on(gpu, status.gpus or (gpu,), alive or StartFacts())


def gpu_document(gpu: Gpu, status: Status) -> dict[str, Any]:
    """Return one GPU of the status document.

    `other_bytes` is what is used and is none of the parts; `foreign` is null where one of them may be ours.
    """
    found, foreign = sizes(gpu, status), strangers(gpu, status)
    named = {f"{kind}_bytes": size for kind, size in found.items() if kind not in ("foreign", "unexplained")}
    listed = None if foreign is None else [{"pid": p.pid, "command": p.name, "bytes": p.used_bytes} for p in foreign]
    return {
        "gpu": gpu.uuid,
        "index": gpu.index,
        "name": gpu.name,
        **named,
        "other_bytes": found["unexplained"],
        "foreign": listed,
    }
