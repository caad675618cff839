"""The texts that decide: what vLLM, torch and their libraries print, what it means, and what is said of it.

A text for a new failure is a new row in memory_texts, asking_texts, start_texts or fault_texts, and nothing else.
Groups of a pattern are numbers and words by their names (numbers.py).
"""

import re
from collections.abc import Mapping
from enum import StrEnum

from vllmd.decide.asking_texts import ARGUMENTS, MODEL
from vllmd.decide.fault_texts import DEVICE, FAULTS, FOLLOWING
from vllmd.decide.log_lines import OPEN_ECHOES
from vllmd.decide.log_phase import MARKS
from vllmd.decide.memory_texts import ALLOCATING, MEMORY_FACTS, PLANNING
from vllmd.decide.numbers import NUMBER
from vllmd.decide.start_texts import STARTS
from vllmd.decide.text_row import Fact, Row, fact

# The first row of a line that matches is the one that counts.
ROWS: tuple[Row, ...] = (*PLANNING, *ALLOCATING, *STARTS, *MODEL, *ARGUMENTS, *DEVICE, *FAULTS, *FOLLOWING)

FACTS: tuple[Fact, ...] = (
    fact("args: ", rf"['( ]gpu_memory_utilization'?[:=] ?(?P<utilization>{NUMBER})"),
    fact("args: ", r"['( ]port'?[:=] ?(?P<port>\d+)"),
    fact("args: ", r"['( ]model(?:_tag)?'?[:=] ?'(?P<model>[^']*)'"),
    fact("LLM engine (v", r"LLM engine \(v(?P<version>\d+\.\d+)"),
    fact("device_config=", r"device_config=(?P<device>\w+)"),
    fact("max_num_batched_tokens=", r"max_num_batched_tokens=(?P<batched_tokens>\d+)"),
    fact(
        "checkpoint shards",
        r"Completed \| (?P<shards_done>\d+)/(?P<shards>\d+) \[.*?, +(?P<shard_s>\d{1,6}\.\d+)s/it",
    ),
    *MEMORY_FACTS,
)

# The end of a traceback that no row knows.
ERROR_LINE = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)(?::|$)")
ERROR_KEYS = ("rror", "Exception", "Interrupt")
# Ends of tracebacks that only pass on what happened elsewhere.
CASCADES = ("Engine core initialization failed", "EngineDeadError", "Engine process failed", ": cancelled")
# vLLM writes it every ten seconds while it works: what came before it did not end the server.
HEALTHY = "Avg prompt throughput"
# A new attempt, in a log that goes on over restarts: how a start of the server begins.
NEW_ATTEMPT = ("API server version", "non-default args")


# From here to the next line of progress the ranks find each other.
NCCL_STARTS = "is using nccl=="


class Work(StrEnum):
    """What the program was doing, by the frames of its traceback."""

    WEIGHTS = "loading the weights"
    MEASURING = "measuring memory"
    POOL = "making the KV pool"
    GRAPHS = "capturing graphs"
    WARMUP = "warming up"


# Functions of vLLM that a traceback names, outer frames first; the innermost one counts (vLLM 0.5 to 0.33, worker and
# model runner).
FRAMES: Mapping[str, Work] = {
    "load_model": Work.WEIGHTS,
    "create_weights": Work.WEIGHTS,
    "load_weights": Work.WEIGHTS,
    "process_weights_after_loading": Work.WEIGHTS,
    "determine_available_memory": Work.MEASURING,
    "determine_num_available_blocks": Work.MEASURING,
    "profile_run": Work.MEASURING,
    "initialize_from_config": Work.POOL,
    "allocate_kv_cache": Work.POOL,
    "compile_or_warm_up_model": Work.WARMUP,
    "kernel_warmup": Work.WARMUP,
    "_dummy_sampler_run": Work.WARMUP,
    "_dummy_pooler_run": Work.WARMUP,
    "capture_model": Work.GRAPHS,
}

_ALL_KEYS = {
    *(row.key for row in ROWS),
    *(fact.key for fact in FACTS),
    *(mark for mark, _ in MARKS),
    *ERROR_KEYS,
    *FRAMES,
    *OPEN_ECHOES,
    HEALTHY,
    *NEW_ATTEMPT,
    "shared memory broadcast block",
    NCCL_STARTS,
    "_weights",
    "_dummy_",
}
# A line without any of these says nothing here. A key that holds another one need not be looked for itself.
KEYS = tuple(sorted(key for key in _ALL_KEYS if not any(other in key for other in _ALL_KEYS - {key})))
