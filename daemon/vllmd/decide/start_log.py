"""What the server's log tells of a start: memory, sizes, and how far it has come.

Templates: vLLM 0.8.5 to 0.33 (gpu_worker.py, gpu_model_runner.py, kv_cache_utils.py, config/scheduler.py); a line is
read once, when it appears.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from vllmd.decide.log_phase import later, phase_of
from vllmd.model.server import Phase
from vllmd.model.status import StartFacts

_GIB = 2**30
_SIZES = (
    ("weights_bytes", re.compile(r"Model loading took ([\d.]+) GiB")),
    ("kv_cache_bytes", re.compile(r"Available KV cache memory: (-?[\d.]+) GiB")),
    ("activation_bytes", re.compile(r"([\d.]+) GiB for peak activation")),
    ("graphs_bytes", re.compile(r"Graph capturing finished in .* took (-?[\d.]+) GiB")),
)
_COUNTS = (
    ("kv_cache_tokens", re.compile(r"KV cache size: ([\d,]+) tokens")),
    ("batched_tokens", re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")),
)


def read_start(facts: StartFacts, lines: Iterable[str]) -> StartFacts:
    """Return the facts with what these new lines of the log add. The first value of a size counts."""
    for line in lines:
        read: dict[str, Any] = {}
        for field, pattern in _SIZES:
            if getattr(facts, field) is None and (match := pattern.search(line)):
                read[field] = float(match.group(1)) * _GIB
        for field, pattern in _COUNTS:
            if getattr(facts, field) is None and (match := pattern.search(line)):
                read[field] = int(match.group(1).replace(",", ""))
        reached = later(phase_reached(facts), phase_of((line,)))
        if reached is not phase_reached(facts):
            read["phase"] = reached
        if read:
            facts = replace(facts, **read)
    return facts


def phase_reached(facts: StartFacts) -> Phase:
    """Return how far a start has come."""
    return Phase(facts.phase) if facts.phase else Phase.CONFIG
