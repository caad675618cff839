"""Governs one scheduler: before each step it sets what is asked for, after it says what was done."""

import logging
import os
import time
from collections.abc import Sized
from contextlib import suppress
from typing import Any, Protocol

from vllmd_shim.block import Block, Word
from vllmd_shim.clamp import budget_in_force, seqs_in_force

BUDGET_NAME = "max_num_scheduled_tokens"  # vLLM 0.8.5 to 0.33, read at the top of each schedule()
SEQS_NAMES = ("max_num_active_reqs", "max_num_running_reqs")  # from 0.31; before

log = logging.getLogger("vllm.vllmd_shim")  # below vLLM's own logger, whose handler writes to the server's log


class Scheduler(Protocol):
    """What is used of vLLM's scheduler."""

    running: Sized
    waiting: Sized
    scheduler_config: Any
    vllm_config: Any


class Governor:
    """One scheduler's knobs and its heartbeat, both through the block. Its first error ends it."""

    def __init__(self, scheduler: Scheduler, block: Block) -> None:
        self._scheduler = scheduler
        self._block = block
        self._seqs_name = next((name for name in SEQS_NAMES if hasattr(scheduler, name)), "")
        self._separate = self._seqs_name == SEQS_NAMES[0]
        self._off = capabilities(scheduler)
        self._launched_budget = 0 if self._off["budget"] else int(getattr(scheduler, BUDGET_NAME))
        self._launched_seqs = 0 if self._off["seqs"] else int(getattr(scheduler, self._seqs_name))
        self._budget, self._seqs = self._launched_budget, self._launched_seqs  # in force
        self._tokens_each = 1 + speculative_tokens(scheduler)
        self._step_ns = self._longest_ns = self._steps = self._tokens_total = self._own_ns = 0
        self._answer()

    def _answer(self) -> None:
        """Tell what can be asked for; the engine's pid comes last, when all else can be read."""
        self._block.write_report(self._off)
        words = self._block.words
        words[Word.LAUNCHED_BUDGET] = self._launched_budget
        words[Word.LAUNCHED_SEQS] = self._launched_seqs
        words[Word.BUDGET] = self._budget
        words[Word.SEQS] = self._seqs
        words[Word.ENGINE_PID] = os.getpid()

    def before(self) -> None:
        """Set what is asked for, and tell that a step begins."""
        begin_ns = time.monotonic_ns()
        words, running = self._block.words, len(self._scheduler.running)
        if running and self._step_ns:
            self._longest_ns = max(self._longest_ns, begin_ns - self._step_ns)
            words[Word.LONGEST_NS] = self._longest_ns
        self._step_ns = begin_ns
        words[Word.STEP_NS] = begin_ns
        if self._launched_budget:
            asked = words[Word.ASK_BUDGET]
            self._set_budget(budget_in_force(asked, self._launched_budget, running, self._tokens_each))
            words[Word.SEEN_BUDGET] = asked
        if self._launched_seqs:
            asked = words[Word.ASK_SEQS]
            self._set_seqs(seqs_in_force(asked, self._launched_seqs, running, separate=self._separate))
            words[Word.SEEN_SEQS] = asked
        self._own_ns += time.monotonic_ns() - begin_ns

    def after(self, output: Any) -> None:  # noqa: ANN401 - vLLM's SchedulerOutput, of any version
        """Tell what the step does."""
        begin_ns = time.monotonic_ns()
        words, tokens = self._block.words, int(output.total_num_scheduled_tokens)
        self._steps += 1
        self._tokens_total += tokens
        words[Word.RUNNING] = len(self._scheduler.running)
        words[Word.WAITING] = len(self._scheduler.waiting)
        words[Word.TOKENS] = tokens
        words[Word.TOKENS_TOTAL] = self._tokens_total
        words[Word.STEPS] = self._steps
        self._own_ns += time.monotonic_ns() - begin_ns
        words[Word.OWN_NS] = self._own_ns

    def give_up(self, error: Exception) -> None:
        """Leave the scheduler as it was launched, and say why, once. It never raises: the engine would end with it."""
        for name, launched in ((BUDGET_NAME, self._launched_budget), (self._seqs_name, self._launched_seqs)):
            if launched:
                with suppress(Exception):  # what cannot be set may be what was wrong; the other one still can
                    setattr(self._scheduler, name, launched)
        with suppress(Exception):  # the block itself, or the error's own text, may be what fails
            reason = f"given up: {type(error).__name__}: {error}"
            log.warning("vllmd_shim is off, the scheduler is as it was launched: %s", reason)
            self._block.write_report(dict.fromkeys(self._off, reason))

    def _set_budget(self, value: int) -> None:
        if value != self._budget:
            setattr(self._scheduler, BUDGET_NAME, value)
            self._budget = value
            self._block.words[Word.BUDGET] = value

    def _set_seqs(self, value: int) -> None:
        if value != self._seqs:
            setattr(self._scheduler, self._seqs_name, value)
            self._seqs = value
            self._block.words[Word.SEQS] = value


def capabilities(scheduler: Scheduler) -> "dict[str, str]":
    """Return for each knob and for the heartbeat why it is off; empty where it works."""
    seqs_name = next((name for name in SEQS_NAMES if hasattr(scheduler, name)), SEQS_NAMES[1])
    return {
        "budget": budget_off(scheduler),
        "seqs": unsettable(scheduler, seqs_name) or model_off(scheduler),
        "heartbeat": "",
    }


def unsettable(scheduler: Scheduler, name: str) -> str:
    """Return why a number of the scheduler cannot be set, tried with the value that it has; empty where it can."""
    if not isinstance(getattr(scheduler, name, None), int):
        return f"this vLLM's scheduler has no {name}"
    try:
        setattr(scheduler, name, getattr(scheduler, name))
    except Exception as error:  # noqa: BLE001 - a property's, of whatever vLLM
        return f"{name} of this vLLM's scheduler cannot be set: {type(error).__name__}"
    return ""


def budget_off(scheduler: Scheduler) -> str:
    """Return why the token budget is not live; empty where it is."""
    config = scheduler.scheduler_config
    if reason := unsettable(scheduler, BUDGET_NAME):
        return reason
    if not hasattr(config, "enable_chunked_prefill") and not hasattr(config, "chunked_prefill_enabled"):
        return "this vLLM does not say whether chunked prefill is on"
    if not getattr(config, "enable_chunked_prefill", getattr(config, "chunked_prefill_enabled", False)):
        return "chunked prefill is off: a prompt longer than the budget would wait for ever"
    if getattr(config, "disable_chunked_mm_input", False):
        return "multimodal inputs are not chunked: one larger than the budget would wait for ever"
    return model_off(scheduler)


def model_off(scheduler: Scheduler) -> str:
    """Return why nothing is live on the model, whose scheduling reads the same values otherwise; empty where it is."""
    model = scheduler.vllm_config.model_config
    # A model of Mamba layers alone is no hybrid one: that it has no attention tells, or its scheduler does (0.32).
    mamba = getattr(scheduler, "has_mamba_layers", False) or getattr(model, "is_attention_free", False)
    if mamba or getattr(model, "is_hybrid", False):
        return "the model has Mamba layers, on which this is not tried"
    return "the model is a diffusion one, on which this is not tried" if getattr(model, "is_diffusion", False) else ""


def speculative_tokens(scheduler: Scheduler) -> int:
    """Return the speculative tokens of a running request in one step, as the scheduler counts them if it does."""
    speculative = getattr(scheduler.vllm_config, "speculative_config", None)
    counted = getattr(scheduler, "num_spec_tokens", None)
    return max(int(counted or 0), int(getattr(speculative, "num_speculative_tokens", None) or 0))
