"""The simulated host: GPUs, a model, the speed of both, and what breaks; described by the variable VLLMD_SIM."""

import json
import re
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from vllmd_sim._version import __version__

GIB = 2**30
MIB = 2**20
_VERSION = re.compile(r"\d+\.\d+(\.\w+)*")


class HostError(Exception):
    """VLLMD_SIM does not describe a host; the message says why."""


class Fault(StrEnum):
    """What breaks though no number says so. The first group ends the API server, the others the engine."""

    MODEL_GATED = "model-gated"
    MODEL_UNKNOWN = "model-unknown"
    MODEL_NOT_CACHED = "model-not-cached"
    MODEL_WITHOUT_CONFIG = "model-without-config"
    HUB_SILENT = "hub-silent"
    ARCHITECTURE = "architecture"
    CLEAN_EXIT = "clean-exit"

    WEIGHTS_DAMAGED = "weights-damaged"
    DRIVER_TOO_OLD = "driver-too-old"
    NEIGHBOUR_LEAVES = "neighbour-leaves"  # what others hold is free again when memory has been measured

    PROCESS_DIES = "process-dies"  # by fault_code: the engine's, or with tensor parallelism a worker's
    RPC_TIMEOUT = "rpc-timeout"
    NCCL_TIMEOUT = "nccl-timeout"
    ILLEGAL_ACCESS = "illegal-access"
    DEVICE_ASSERT = "device-assert"
    LAUNCH_FAILURE = "launch-failure"
    ECC = "ecc"
    OFF_THE_BUS = "off-the-bus"
    HANG = "hang"
    HANG_WITH_HINTS = "hang-with-hints"


# Faults that strike in their own place of a start; the others where fault_at says.
_AT_START_ONLY = frozenset(tuple(Fault)[: tuple(Fault).index(Fault.PROCESS_DIES)])


@dataclass(frozen=True, slots=True)
class Host:
    """What the simulation pretends to run on. README.md explains every field.

    Memory of an 8B Llama on an H200 under vLLM 0.26: 0.22 GiB non-torch, 0.98 GiB of graphs, activation peaks of 0.30,
    0.93 and 1.78 GiB at 2048, 8192 and 16384 batched tokens, 0.51 GiB taken before anything was loaded. Its steps took
    6 ms and 26-31 us a token; `k` is the reading of 131,072 bytes of KV a token at 0.8 of 4.8 TB/s, `q` attention of
    524,288 FLOP for each pair of tokens at 0.87 of 989 TFLOP/s. Llama 3's vocabulary; the sampler keeps 3.5 float32
    copies of the logits, 32 attention heads.
    """

    gpu: str = "NVIDIA H100 80GB HBM3"
    version: str = __version__
    gpu_total_gib: float = 80.0
    gpu_count: int = 8
    compute_capability: float = 9.0
    gpu_dir: str | None = None
    other_used_gib: float = 0.0
    other_used_file: str | None = None
    context_gib: float = 0.51
    weights_gib: float = 16.0
    max_position: int = 32768
    attention_heads: int = 32
    vocabulary: int = 128_256
    kv_bytes_per_token: int = 131072
    non_torch_gib: float = 0.22
    activation_base_gib: float = 0.08
    activation_bytes_per_token: int = 110_000
    graphs_gib: float = 0.98
    graphs_estimate_gib: float | None = None
    sampler_copies: float = 3.5
    pooler_bytes_per_seq: int = 16_384
    runtime_bytes_per_token: int = 0
    runtime_peak_gib: float = 0.0
    runtime_oom_after_requests: int = 1
    host_memory_gib: float = 512.0
    host_limit_gib: float | None = None
    shm_mib: float = 65_536.0
    start_s: float = 1.0
    c0_s: float = 0.006
    a_s_per_token: float = 28e-6
    k_s_per_kv_token: float = 34e-9
    q_s_per_pair: float = 0.6e-9
    noise: float = 0.0
    seed: int = 0
    answer_tokens: int = 128
    orphan_s: float = 120.0
    teardown_s: float = 0.0
    fault: str | None = None
    fault_at: str = "serving"
    fault_after_requests: int = 1
    fault_code: int = -9
    fault_launches: int | None = None
    fault_file: str | None = None
    fault_unless: str | None = None
    silence_s: float = 300.0

    @property
    def strikes_at_start(self) -> bool:
        """Whether the fault strikes while memory is measured."""
        return self.fault is not None and self.fault_at == "start" and self.fault not in _AT_START_ONLY

    @property
    def strikes_while_serving(self) -> bool:
        """Whether the fault strikes a serving engine, after so many requests."""
        return self.fault is not None and self.fault_at == "serving" and self.fault not in _AT_START_ONLY


def parse_host(text: str | None) -> Host:
    """Return the host that a JSON object describes, the default host for None or ""; raises HostError."""
    if not text:
        return Host()
    try:
        given = json.loads(text)
    except ValueError as error:
        raise HostError(f"VLLMD_SIM is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise HostError("VLLMD_SIM must be a JSON object")
    known = {field.name: getattr(field.type, "__name__", str(field.type)) for field in fields(Host)}
    for name, value in given.items():
        if name not in known:
            raise HostError(f"VLLMD_SIM: unknown key {name!r}; known: {', '.join(known)}")
        if not _fits(value, known[name]):
            raise HostError(f"VLLMD_SIM: {name} must be {known[name]}, found {value!r}")
    host = Host(**given)
    if not _VERSION.fullmatch(host.version):
        raise HostError(f"VLLMD_SIM: version must be like 0.26.0, found {host.version!r}")
    _check_fault(host)
    return host


def _check_fault(host: Host) -> None:
    """Raise HostError where the description of the fault cannot be meant."""
    if host.fault is not None and host.fault not in tuple(Fault):
        raise HostError(f"VLLMD_SIM: unknown fault {host.fault!r}; known: {', '.join(Fault)}")
    if host.fault_at not in {"start", "serving"}:
        raise HostError(f"VLLMD_SIM: fault_at must be start or serving, found {host.fault_at!r}")
    if host.fault_launches is not None and host.fault_file is None:
        raise HostError("VLLMD_SIM: fault_launches needs fault_file, in which launches are counted")
    if host.fault_code == 0:
        raise HostError("VLLMD_SIM: fault_code must be an exit code or the negative of a signal")


def _fits(value: Any, wanted: str) -> bool:  # noqa: ANN401 - whatever JSON holds
    """Whether a JSON value fits a field of `str`, `int`, `float`, or one of them with None."""
    match value:
        case None:
            return "None" in wanted
        case bool():
            return False
        case str():
            return "str" in wanted
        case int():
            return "int" in wanted or "float" in wanted
        case float():
            return "float" in wanted
        case _:
            return False
