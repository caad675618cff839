"""The simulated host: one GPU, one model and the speed of both, described by the environment variable VLLMD_SIM."""

import json
from dataclasses import dataclass, fields
from typing import Any

from vllmd_sim._version import __version__

GIB = 2**30
MIB = 2**20


class HostError(Exception):
    """VLLMD_SIM does not describe a host; the message says why."""


@dataclass(frozen=True, slots=True)
class Host:
    """What the simulation pretends to run on. README.md explains every field.

    Memory of an 8B Llama on an H200 under vLLM 0.26: 0.22 GiB non-torch, 0.98 GiB of graphs, activation peaks of 0.30,
    0.93 and 1.78 GiB at 2048, 8192 and 16384 batched tokens, 0.51 GiB taken before anything was loaded. Its steps took
    6 ms and 26-31 us a token; `k` is the reading of 131,072 bytes of KV a token at 0.8 of 4.8 TB/s, `q` attention of
    524,288 FLOP for each pair of tokens at 0.87 of 989 TFLOP/s.
    """

    gpu: str = "NVIDIA H100 80GB HBM3"
    version: str = __version__
    gpu_total_gib: float = 80.0
    gpu_dir: str | None = None
    other_used_gib: float = 0.0
    other_used_file: str | None = None
    context_gib: float = 0.51
    weights_gib: float = 16.0
    max_position: int = 32768
    kv_bytes_per_token: int = 131072
    non_torch_gib: float = 0.22
    activation_base_gib: float = 0.08
    activation_bytes_per_token: int = 110_000
    graphs_gib: float = 0.98
    graphs_estimate_gib: float | None = None
    sampler_bytes_per_seq: int = 1_800_000
    runtime_peak_gib: float = 0.0
    runtime_oom_after_requests: int = 1
    start_s: float = 1.0
    c0_s: float = 0.006
    a_s_per_token: float = 28e-6
    k_s_per_kv_token: float = 34e-9
    q_s_per_pair: float = 0.6e-9
    noise: float = 0.0
    seed: int = 0
    answer_tokens: int = 128
    orphan_s: float = 120.0


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
    return Host(**given)


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
