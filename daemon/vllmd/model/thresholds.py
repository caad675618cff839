"""The policies' judgements in numbers. What a number is based on stands beside it in the default profile.

Facts of vLLM (a default, the size of a block) are no thresholds: they stay beside the policy that knows them.
"""

from dataclasses import dataclass
from typing import Annotated

_MIB = 2**20
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Limits:
    """What a threshold may be: more than `above`, at most `up_to`. `size`: in bytes, and may be written "256MiB"."""

    above: float
    up_to: float
    size: bool = False


Part = Annotated[float, Limits(0.0, 1.0)]  # of the device's memory, or of what the name says
Factor = Annotated[float, Limits(1.0, 10.0)]
Seconds = Annotated[float, Limits(0.0, 86_400.0)]
Gib = Annotated[float, Limits(0.0, 65_536.0)]
Percent = Annotated[float, Limits(1.0, 100.0)]
Size = Annotated[int, Limits(0, 2**44, size=True)]
Tokens = Annotated[int, Limits(0, 2**24)]
Count = Annotated[int, Limits(0, 1000)]
Ladder = Annotated[tuple[int, ...], Limits(0, 2**24)]  # rising


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The numbers that a profile may change; the defaults are those of the default profile, which explains each."""

    # What stays free
    margin_bytes: Size = 256 * _MIB
    context_bytes: Size = 640 * _MIB
    host_margin_part: Part = 0.05
    host_pool_part: Part = 0.9
    # Utilization, down and up
    least_step: Part = 0.01
    blind_step: Part = 0.02
    unified_step: Part = 0.15
    shared_step: Part = 0.1
    least_part: Part = 0.5
    open_ceiling: Part = 0.97
    beside_ceiling: Part = 0.98
    easy_ceiling: Part = 0.95
    rise_margin: Part = 0.01
    rise_step: Part = 0.005
    # The KV pool
    first_pool_part: Part = 0.05
    first_pool_bytes: Size = _GIB
    fixed_pool_factor: Factor = 1.1
    # Steps, sequences, length
    fewest_tokens: Tokens = 256
    small_step_tokens: Tokens = 1024
    longest_measured_tokens: Tokens = 32_768
    usable_part: Part = 0.8
    # CUDA graphs
    capture_margin_part: Part = 0.01
    fewer_graphs_part: Part = 0.25
    absurd_graphs_part: Part = 0.25
    # Out of memory while serving
    reserve_growth: Factor = 1.2
    least_repeated_bytes: Size = 512 * _MIB
    large_step_part: Part = 0.15
    # The host
    compile_jobs: Count = 4
    compile_job_gib: Gib = 8.0
    host_kept_gib: Gib = 16.0
    # vLLM's own deadline of a start
    after_weights_s: Seconds = 300.0
    deadline_factor: Factor = 1.5
    blind_deadline_factor: Factor = 3.0
    deadline_step_s: Seconds = 600.0
    # When to ask the operator
    patience: Count = 2
    least_percent: Percent = 30.0
    # Latency
    ladder_tokens: Ladder = (256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16_384)
