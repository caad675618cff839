"""A stand-in for vLLM's scheduler: the attributes that the shim uses, and the assertions that vLLM makes."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass
class Output:
    """What a step schedules."""

    total_num_scheduled_tokens: int


@dataclass
class OldScheduler:
    """One of vLLM 0.12 to 0.30: one cap, compared by "==" and asserted."""

    chunked: bool = True
    hybrid: bool = False
    attention_free: bool = False
    diffusion: bool = False
    has_mamba_layers: bool = False
    speculative: int = 0
    num_spec_tokens: int = 0
    engines: int = 1
    whole_inputs: bool = False
    cached: bool = False  # all but one token of each prompt: the last one is padded to a step's, or has to wait
    max_num_scheduled_tokens: int = 2048
    max_num_running_reqs: int = 64
    running: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    arguments: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the configuration."""
        self.scheduler_config = SimpleNamespace(
            enable_chunked_prefill=self.chunked, disable_chunked_mm_input=self.whole_inputs
        )
        speculative = SimpleNamespace(num_speculative_tokens=self.speculative) if self.speculative else None
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(
                is_hybrid=self.hybrid, is_attention_free=self.attention_free, is_diffusion=self.diffusion
            ),
            parallel_config=SimpleNamespace(data_parallel_size=self.engines),
            speculative_config=speculative,
        )

    def schedule(self, throttle_prefills: bool = False) -> Output:  # noqa: FBT001, FBT002 - vLLM's signature
        """Give each running request its tokens and admit those that wait, as long as the budget and the cap allow."""
        self.arguments.append(throttle_prefills)
        each = 1 + max(self.speculative, self.num_spec_tokens)
        tokens = len(self.running) * each
        while self.waiting and len(self.running) != self._admitted():
            if self.cached and tokens + each > self.max_num_scheduled_tokens:
                break
            self.running.append(self.waiting.pop(0))
            tokens = tokens + each if self.cached else min(self.max_num_scheduled_tokens, tokens + 1000)
        assert tokens <= self.max_num_scheduled_tokens
        assert len(self.running) <= self.max_num_running_reqs
        return Output(tokens)

    def _admitted(self) -> int:
        return self.max_num_running_reqs


@dataclass
class NewScheduler(OldScheduler):
    """One of vLLM 0.31 and later: admission has a cap of its own."""

    max_num_active_reqs: int = 64

    def _admitted(self) -> int:
        return max(self.max_num_active_reqs, len(self.running))


@dataclass
class BareScheduler:
    """One of an unknown version, which has none of the names."""

    running: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)

    def schedule(self) -> Output:
        """Schedule nothing."""
        return Output(0)
