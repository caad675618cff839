"""What vLLM takes when a flag is not set, where vllmd must know it.

Source: `get_batch_defaults` and `_set_default_max_num_seqs_and_batched_tokens_args` of vLLM 0.33
(engine/arg_utils.py), the OpenAI server's context; GpuMemoryUtilization of config/cache.py.
"""

from collections.abc import Sequence

from vllmd.model.flags import Flags
from vllmd.model.snapshot import Gpu

_GIB = 2**30
_HUGE_BYTES = 160 * _GIB
_LARGE_BYTES = 70 * _GIB


def batch_defaults(gpus: Sequence[Gpu] | None, flags: Flags, version: str | None) -> tuple[int, int]:
    """Return vLLM's default (max-num-batched-tokens, max-num-seqs) on this hardware."""
    if not gpus:  # CPU
        world = int((flags.number("tensor-parallel-size") or 1) * (flags.number("pipeline-parallel-size") or 1))
        return 2048 * world, 128 * world
    smallest = min(gpus, key=lambda g: g.total_bytes)
    if smallest.total_bytes >= _HUGE_BYTES and at_least(version, (0, 28)):
        return 16384, 1024
    if smallest.total_bytes >= _LARGE_BYTES and "a100" not in smallest.name.lower():
        return 8192, 1024
    return 2048, 256


def chunked_prefill_default(version: str | None) -> bool:
    """Return whether this vLLM turns chunked prefill on by itself: V1 does, the default engine from 0.8.0 on."""
    return at_least(version, (0, 8))


def counts_whole_device(version: str | None) -> bool:
    """Return whether this vLLM charges a neighbour's memory to its own utilization: so before 0.9 (worker.py)."""
    return version is not None and not at_least(version, (0, 9))


def default_utilization(version: str | None) -> float:
    """Return vLLM's default utilization: 0.9 up to 0.19, 0.92 since 0.20 (config/cache.py)."""
    return 0.92 if at_least(version, (0, 20)) else 0.9


def at_least(version: str | None, wanted: tuple[int, int]) -> bool:
    """Compare the first two parts; an unknown version counts as a recent one."""
    if version is None:
        return True
    parts = version.split(".")
    if len(parts) < len(wanted) or not all(p.isdigit() for p in parts[:2]):
        return True
    return (int(parts[0]), int(parts[1])) >= wanted
