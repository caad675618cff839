"""What the server's log tells of a start: memory, sizes, and how far it has come.

Templates: vLLM 0.6 to 0.33 (worker.py and executor_base.py of V0; gpu_worker.py, gpu_model_runner.py,
kv_cache_utils.py, config/scheduler.py of V1); a line is read once, when it appears. Before 0.8.5 "GB" is written where
GiB are meant.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from vllmd.decide.log_lines import is_echo
from vllmd.decide.log_phase import later, phase_of
from vllmd.decide.numbers import GIB, NUMBER
from vllmd.model.server import Phase
from vllmd.model.status import StartFacts

_OVER = (Phase.SERVING, Phase.SHUTDOWN)  # nothing of a start is printed there, but users' texts may be
_TELLING = ("GiB", " GB", "tokens")  # one of them is in every line below
_SIZE = f"({NUMBER}) ?GiB"
_POOL = "kv_cache_bytes"
_COUNT = r"(\d[\d,]{0,15})"
_SIZES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (field, re.compile(pattern))
    for field, pattern in (
        ("weights_bytes", f"Model loading took ({NUMBER}) Gi?B"),  # from 0.7.3 on
        ("weights_bytes", f"Loading model weights took ({NUMBER}) GB"),
        ("weights_bytes", f"model weights take {_SIZE}"),  # V0
        ("kv_cache_bytes", f"Available KV cache memory: {_SIZE}"),
        ("kv_cache_bytes", f"reserved {_SIZE} memory for KV Cache"),  # a pool of fixed size, 0.10.2 on
        ("kv_cache_bytes", f"the rest of the memory reserved for KV Cache is {_SIZE}"),  # V0
        ("kv_cache_bytes", f"kv_cache_size={_SIZE}"),  # V0 up to 0.6.5
        ("activation_bytes", f"{_SIZE} for peak activation"),  # 0.10.2 on
        ("activation_bytes", f"PyTorch activation peak memory takes {_SIZE}"),  # V0
        ("torch_peak_bytes", f"peak_torch_memory={_SIZE}"),  # V0 up to 0.6.5
        ("non_torch_bytes", f"{_SIZE} for non-torch memory"),  # 0.10.2 on
        ("non_torch_bytes", f"non_torch_memory takes {_SIZE}"),  # V0
        ("non_torch_bytes", f"non_torch_memory={_SIZE}"),  # V0 up to 0.6.5
        ("consumed_bytes", rf"{_SIZE} for consumed memory \(weights \+ non-torch\)"),  # the newest wording, in 0.33
        ("graphs_estimate_bytes", f"Estimated CUDA graph memory: {_SIZE}"),  # 0.18 on
        ("graphs_bytes", f"Graph capturing finished in .{{1,40}} took {_SIZE}"),
        ("graphs_bytes", f"CUDA graph pool memory: {_SIZE}"),
        ("graphs_bytes", f"{_SIZE} for CUDAGraph memory"),  # 0.10.2 on
        ("device_bytes", rf"Free memory on device [^()]{{0,40}}\({NUMBER}/{_SIZE}\)"),
        ("device_bytes", rf"total_gpu_memory[ =]\(?{_SIZE}"),  # V0
    )
)
_RATIOS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("utilization", re.compile(rf"esired GPU memory utilization (?:is )?\(({NUMBER}),")),
    ("utilization", re.compile(rf"x gpu_memory_utilization \(({NUMBER})\)")),  # V0
    ("utilization", re.compile(rf"GiB gpu_memory_utilization=({NUMBER})")),  # V0 up to 0.6.5
    ("concurrency", re.compile(rf"Maximum concurrency for {_COUNT[1:-1]} tokens per request: ({NUMBER})x")),
)
_COUNTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("kv_cache_tokens", re.compile(f"KV cache size: {_COUNT} tokens")),
    ("request_tokens", re.compile(f"Maximum concurrency for {_COUNT} tokens per request")),
    ("batched_tokens", re.compile(f"Chunked prefill is enabled with max_num_batched_tokens={_COUNT}")),
)


def read_start(facts: StartFacts, lines: Iterable[str]) -> StartFacts:
    """Return the facts with what these new lines of the log add.

    The first value of a size counts; of the pools of several ranks the smallest, which decides how many tokens fit.
    """
    for line in lines:
        read = {} if phase_reached(facts) in _OVER or is_echo(line) else _read(facts, line)
        reached = later(phase_reached(facts), phase_of((line,)))
        if reached is not phase_reached(facts):
            read["phase"] = reached
        if read:
            facts = replace(facts, **read)
    return facts


def phase_reached(facts: StartFacts) -> Phase:
    """Return how far a start has come."""
    return Phase(facts.phase) if facts.phase else Phase.CONFIG


def _read(facts: StartFacts, line: str) -> dict[str, Any]:
    """Return what a line says that is not known yet."""
    read: dict[str, Any] = {}
    if not any(word in line for word in _TELLING):
        return read
    for patterns, converted in ((_SIZES, _bytes), (_RATIOS, float), (_COUNTS, _count)):
        for field, pattern in patterns:
            known = read.get(field, getattr(facts, field))
            if (known is None or field == _POOL) and (match := pattern.search(line)):
                value = converted(match.group(1))
                read[field] = value if known is None else min(known, value)
    return read


def _bytes(gib: str) -> float:
    return float(gib) * GIB


def _count(text: str) -> int:
    return int(text.replace(",", ""))
