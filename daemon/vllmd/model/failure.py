"""Failure: a diagnosed end of a launch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vllmd.model.server import Phase


class FailureClass(StrEnum):
    """What kind of end it was. One word a cause; opposite causes never share one."""

    KV_POOL_TOO_SMALL = "kv-pool-too-small"  # utilization leaves too little for one request: up, or a shorter length
    UTILIZATION_TOO_HIGH = "utilization-too-high"  # asks for more than is free or exists: down
    MEMORY_HELD_BY_PREDECESSOR = "memory-held-by-predecessor"  # our own leftover holds it: end it, retry
    MODEL_LEN_TOO_LONG = "max-model-len-too-long"  # longer than the model allows
    START_OOM = "start-oom"  # CUDA out of memory before serving
    RUNTIME_OOM = "runtime-oom"  # CUDA out of memory while serving
    UNKNOWN_FLAG = "unknown-flag"
    INVALID_FLAG = "invalid-flag"  # a value or combination that vLLM refuses
    MODEL_NOT_FOUND = "model-not-found"
    PORT_TAKEN = "port-taken"
    ENGINE_DIED = "engine-died"  # engine or worker ended without a cause in the log
    KILLED = "killed"  # the leader ended by a signal that we did not send
    START_STALLED = "start-stalled"
    SPAWN_FAILED = "spawn-failed"
    CLEAN_EXIT = "clean-exit"  # code 0 that we did not ask for, nothing in the log
    UNKNOWN = "unknown"


# Failures that speak against the flags of the launch, not against the host.
OF_FLAGS = frozenset(
    {
        FailureClass.KV_POOL_TOO_SMALL,
        FailureClass.UTILIZATION_TOO_HIGH,
        FailureClass.MODEL_LEN_TOO_LONG,
        FailureClass.START_OOM,
        FailureClass.RUNTIME_OOM,
        FailureClass.UNKNOWN_FLAG,
        FailureClass.INVALID_FLAG,
    }
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """The line of the log that decided: its number (from 1) and its text, capped, escaped and masked."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended a launch, where in its life, and the numbers that the remedy is computed from.

    `numbers` are in bytes (`_bytes`), tokens (`_tokens`) or ratios of the device's memory, by name:
    free_bytes, total_bytes, requested_bytes, needed_bytes (KV for one request), available_bytes (KV pool; may be
    negative), tried_bytes, fitting_tokens (the longest length that vLLM says fits), utilization. Where the log says
    them: pool_bytes (a KV pool of fixed size), weights_bytes, reserved_bytes (held by torch, unused), asked_tokens (the
    length asked for), batched_tokens, and the counts seqs and dummy_requests (of the sampler's warm-up).
    """

    kind: FailureClass
    phase: Phase
    generation: int
    summary: str  # one sentence for the operator
    evidence: Evidence | None = None
    exit_code: int | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
