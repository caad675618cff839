"""Failure: a diagnosed end of a launch, or what a server that still runs suffers from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vllmd.model.server import Phase


class FailureClass(StrEnum):
    """What kind of failure it was. One word a cause; opposite causes never share one."""

    UTILIZATION_TOO_LOW = "utilization-too-low"  # nothing is left for the KV pool: up
    UTILIZATION_TOO_HIGH = "utilization-too-high"  # asks for more than the device can give: down
    MAX_MODEL_LEN_TOO_LONG = "max-model-len-too-long"  # the KV pool does not hold one request of this length
    GPU_MEMORY_TAKEN = "gpu-memory-taken-by-others"
    WEIGHTS_DO_NOT_FIT = "weights-do-not-fit"
    WARMUP_OOM = "warmup-oom"  # out of GPU memory in a run that measures or warms up
    GRAPH_CAPTURE_OOM = "graph-capture-oom"
    RUNTIME_OOM = "runtime-oom"  # out of GPU memory while serving
    HOST_OOM = "host-oom"
    PROFILING_RACE = "profiling-race"  # memory moved while vLLM measured it
    INVALID_FLAG = "invalid-flag"  # this vLLM does not know it, or not with this value
    INVALID_COMBINATION = "invalid-combination"  # flags that contradict each other or the model
    UNSUPPORTED_MODEL = "unsupported-model"
    MODEL_ACCESS = "model-access"
    PORT_IN_USE = "port-in-use"
    NO_DEVICE = "no-device"
    INFRA_FAULT = "infra-fault"  # the host, the driver or the program broke: no flag is to blame
    HANG = "hang"
    EXTERNAL_STOP = "external-stop"  # somebody else ended it
    CLEAN_EXIT = "clean-exit"
    NONE = "none"  # nothing failed


# Failures that speak against the flags of the launch, not against the host.
OF_FLAGS = frozenset(
    {
        FailureClass.UTILIZATION_TOO_LOW,
        FailureClass.UTILIZATION_TOO_HIGH,
        FailureClass.MAX_MODEL_LEN_TOO_LONG,
        FailureClass.WEIGHTS_DO_NOT_FIT,
        FailureClass.WARMUP_OOM,
        FailureClass.GRAPH_CAPTURE_OOM,
        FailureClass.RUNTIME_OOM,
        FailureClass.INVALID_FLAG,
        FailureClass.INVALID_COMBINATION,
    }
)


# The cause of a failure whose class is guessed from the kind of an error that nobody knows.
GUESSED = "guessed"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The line of the log that decided: its number (from 1) and its text, capped, escaped and masked."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """What failed, where in the launch's life, and the numbers and words that the remedy is computed from.

    `cause` is a finer word below the class where one text asks for a remedy of its own ("batched-below-seqs").
    `numbers` are in bytes (`_bytes`), tokens (`_tokens`), seconds (`_s`) or ratios of the device's memory, by name:
    free_bytes, total_bytes, requested_bytes, needed_bytes (KV for one request), available_bytes (KV pool; may be
    negative), tried_bytes, fitting_tokens (the longest length that vLLM says fits), utilization. Where the log or the
    caller says them: pool_bytes (a KV pool of fixed size), weights_bytes, others_bytes (held by other processes),
    reserved_bytes (held by torch, unused), graphs_bytes (vLLM's estimate of the CUDA graphs), captured_bytes (what they
    took), asked_tokens (the length asked for), batched_tokens, concurrency (requests of full length that the pool
    holds), and the counts seqs and dummy_requests (of the sampler's warm-up). `words` are texts that the log names:
    arguments, argument, model.
    """

    kind: FailureClass
    phase: Phase
    generation: int
    summary: str  # one sentence for the operator
    evidence: Evidence | None = None
    exit_code: int | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    cause: str = ""
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def forbids(self) -> bool:
        """Whether it speaks against running the flags of the launch again; a guess does not."""
        return self.kind in OF_FLAGS and self.cause != GUESSED
