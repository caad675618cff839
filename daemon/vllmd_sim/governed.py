"""The scheduler as vllmd_shim sees it: by vLLM's own names, so that it is governed, and its heart beats, as there."""

import os
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from vllmd_shim.block import VARIABLE
from vllmd_shim.plugin import governed
from vllmd_sim.scheduler import Request, Scheduler, Step


@dataclass(frozen=True, slots=True)
class Scheduled:
    """What one call of the scheduler planned; `step` is None where there was nothing to do."""

    step: Step | None

    @property
    def total_num_scheduled_tokens(self) -> int:
        """How many tokens the step computes."""
        return self.step.tokens if self.step is not None else 0


class VllmScheduler:
    """What the shim uses of vLLM's scheduler (0.31 and later), over the simulated one."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.scheduler_config = SimpleNamespace(enable_chunked_prefill=scheduler.limits.chunked)
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(is_hybrid=False),
            parallel_config=SimpleNamespace(data_parallel_size=1),
        )

    @property
    def running(self) -> list[Request]:
        """The requests that run."""
        return self._scheduler.running

    @property
    def waiting(self) -> "list[Request]":
        """The requests that wait."""
        return list(self._scheduler.waiting)

    @property
    def max_num_scheduled_tokens(self) -> int:
        """The token budget of a step."""
        return self._scheduler.limits.budget

    @max_num_scheduled_tokens.setter
    def max_num_scheduled_tokens(self, value: int) -> None:
        self._scheduler.limits = replace(self._scheduler.limits, budget=value)

    @property
    def max_num_active_reqs(self) -> int:
        """How many requests may run."""
        return self._scheduler.limits.sequences

    @max_num_active_reqs.setter
    def max_num_active_reqs(self, value: int) -> None:
        self._scheduler.limits = replace(self._scheduler.limits, sequences=value)

    def schedule(self, now_s: float) -> Scheduled:
        """Plan the next step."""
        return Scheduled(self._scheduler.plan(now_s))


def scheduler_of_launch(scheduler: Scheduler, *, plugins: bool) -> VllmScheduler:
    """Return the scheduler by vLLM's names, governed where a control block was given and this version has plugins."""
    path = os.environ.get(VARIABLE)
    chosen: Any = governed(VllmScheduler, path) if path and plugins else VllmScheduler
    built: VllmScheduler = chosen(scheduler)
    return built
