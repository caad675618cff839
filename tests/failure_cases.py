"""The failures that vllmd is shown: the command and the host that bring one about, and what is to come of it."""

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from e2e.vllmd_process import Instance, VllmdProcess
from simulated import NAME
from vllmd.model.failure import FailureClass

ASK_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """One failure: the command and the host that bring it about, and what is to come of it.

    `changed` holds the flags that must differ at the end from the operator's, each with its least and greatest value;
    no other may. `held` is what a held server must say, None where it is to serve. `provoke` is done to the first
    launch once it serves (`while_down` False) or has failed.
    """

    name: str
    kind: FailureClass
    argv: tuple[str, ...] = ()
    host: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    once: bool = False  # the fault strikes the first launch alone
    provoke: Callable[[VllmdProcess, Instance], None] | None = None
    while_down: bool = False
    changed: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    held: str | None = None
    action: str = "recover"
    launches: int = 2
    exit_code: int | None = 1


def ask_long(daemon: VllmdProcess, instance: Instance) -> None:
    """Send a request with a prompt of 2,000 tokens, which is the end of the server."""
    del daemon
    body = {"model": NAME, "prompt": [1] * 2000, "max_tokens": 4}
    assert httpx.post(f"{instance['url']}/v1/completions", json=body, timeout=ASK_LIMIT_S).status_code >= 500


def end_from_outside(daemon: VllmdProcess, instance: Instance) -> None:
    """End the server as an operator's `kill` does."""
    del daemon
    os.kill(instance["pid"], signal.SIGTERM)


def free_memory(daemon: VllmdProcess, instance: Instance) -> None:
    """Let the neighbour go whose memory the host reads in a file."""
    del instance
    (daemon.log_path.parent / "others").write_text("0")


def again(case: Case) -> Case:
    """Return the case whose fault strikes once, so that the same flags serve."""
    return replace(case, action="retry", once=True)


def operators(case: Case) -> Case:
    """Return the case that one launch shows to be the operator's."""
    return replace(case, action="hold", launches=1)


CASES = (
    Case(
        "nothing left for the pool: up",
        FailureClass.UTILIZATION_TOO_LOW,
        ("--gpu-memory-utilization", "0.2"),
        changed={"gpu-memory-utilization": (0.21, 0.4)},
    ),
    Case(
        "more than is free: down",
        FailureClass.UTILIZATION_TOO_HIGH,
        ("--gpu-memory-utilization", "0.95"),
        {"other_used_gib": 10, "vocabulary": 32_000},
        changed={"gpu-memory-utilization": (0.8, 0.87)},
    ),
    Case(
        "one request does not fit: up",
        FailureClass.MAX_MODEL_LEN_TOO_LONG,
        ("--gpu-memory-utilization", "0.25"),
        changed={"gpu-memory-utilization": (0.26, 0.35)},
    ),
    Case(
        "memory that others hold: waited for",
        FailureClass.GPU_MEMORY_TAKEN,
        host={"other_used_gib": 70, "other_used_file": "others"},
        provoke=free_memory,
        while_down=True,
        action="retry",
    ),
    operators(
        Case(
            "weights that do not fit: held",
            FailureClass.WEIGHTS_DO_NOT_FIT,
            ("--gpu-memory-utilization", "0.5"),
            {"weights_gib": 90},
            held="the weights do not fit, whatever the utilization",
        ),
    ),
    Case(
        "the sampler's buffers: fewer sequences",
        FailureClass.WARMUP_OOM,
        ("--gpu-memory-utilization", "0.97"),
        {"sampler_copies": 6},
        settings={"guard": {"max-num-seqs": {"min": 64}}},
        changed={"max-num-seqs": (64, 512)},
    ),
    Case(
        "graphs beyond their estimate: less utilization",
        FailureClass.GRAPH_CAPTURE_OOM,
        ("--gpu-memory-utilization", "0.97"),
        {"graphs_gib": 4, "graphs_estimate_gib": 0, "vocabulary": 32_000},
        changed={"gpu-memory-utilization": (0.9, 0.96)},
    ),
    Case(
        "a long prompt while serving: less utilization",
        FailureClass.RUNTIME_OOM,
        host={"runtime_bytes_per_token": 4_000_000},
        provoke=ask_long,
        changed={"gpu-memory-utilization": (0.8, 0.91)},
        exit_code=0,
    ),
    Case(
        "a tier beyond the host's memory: half of it",
        FailureClass.HOST_OOM,
        ("--kv-offloading-size", "600"),
        settings={"guard": {"kv-offloading-size": {"min": 10}}},
        changed={"kv-offloading-size": (300, 300)},
    ),
    again(
        Case(
            "memory that moved while it was measured: again",
            FailureClass.PROFILING_RACE,
            ("--gpu-memory-utilization", "0.45"),
            {"other_used_gib": 40, "fault": "neighbour-leaves"},
        ),
    ),
    Case(
        "a percentage: its part",
        FailureClass.INVALID_FLAG,
        ("--gpu-memory-utilization", "92"),
        changed={"gpu-memory-utilization": (0.92, 0.92)},
    ),
    Case(
        "more sequences than tokens, which may move: as many",
        FailureClass.INVALID_COMBINATION,
        ("--max-num-batched-tokens", "512", "--max-num-seqs", "600"),
        settings={"guard": {"max-num-seqs": {"min": 64}}},
        changed={"max-num-seqs": (512, 512)},
    ),
    operators(
        Case(
            "an unknown architecture: held",
            FailureClass.UNSUPPORTED_MODEL,
            host={"fault": "architecture"},
            held="UnheardOfForCausalLM",
        ),
    ),
    operators(
        Case(
            "a gated model: held",
            FailureClass.MODEL_ACCESS,
            host={"fault": "model-gated"},
            held="HF_TOKEN",
        ),
    ),
    operators(
        Case(
            "no GPU: held",
            FailureClass.NO_DEVICE,
            host={"gpu_count": 0},
            held="Failed to infer device type",
        ),
    ),
    again(
        Case(
            "an illegal access while serving: again",
            FailureClass.INFRA_FAULT,
            host={"fault": "illegal-access"},
            provoke=ask_long,
            exit_code=0,
        ),
    ),
    again(
        Case(
            "a start that stands still: ended, and again",
            FailureClass.HANG,
            host={"fault": "hang", "fault_at": "start"},
            settings={"engine": {"start_timeout": "2s"}},
            exit_code=None,
        ),
    ),
    Case(
        "a SIGTERM from outside: again",
        FailureClass.EXTERNAL_STOP,
        provoke=end_from_outside,
        exit_code=0,
        action="retry",
    ),
)
