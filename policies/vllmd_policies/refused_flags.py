"""vLLM refuses an argument or two together, and what is wrong with them names the remedy: drop it, or fit it.

Only what vLLM names is touched: a flag beside it is right. In a server that vllmd keeps, an operator's flag moves only
where the guard has an entry for it.
"""

import re
import shlex
from collections.abc import Callable, Mapping

from vllmd.decide.numbers import GIB
from vllmd.model.argv import canonical_name
from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import Failure
from vllmd.model.flags import BATCHED_TOKENS, MAX_NUM_SEQS, TENSOR_PARALLEL, UTILIZATION, FlagValue
from vllmd_policies.memory_arithmetic import may_move, proposal

# What a removed flag became (vLLM 0.8 to 0.33); dropping it is enough to start.
_SUCCESSORS: Mapping[str, str] = {
    "disable-log-requests": "requests are not logged by default (--enable-log-requests logs them)",
    "enable-reasoning": "--reasoning-parser alone switches reasoning on",
    "speculative-model": "--speculative-config takes model and num_speculative_tokens as JSON",
    "num-speculative-tokens": "--speculative-config takes model and num_speculative_tokens as JSON",
    "num-scheduler-steps": "the scheduler overlaps its steps by itself (--async-scheduling)",
    "guided-decoding-backend": "--structured-outputs-config takes the backend",
    "task": "--runner and --convert say it",
    "max-seq-len-to-capture": "--max-cudagraph-capture-size limits the graphs",
    "cuda-graph-sizes": "--cudagraph-capture-sizes lists them",
    "swap-space": "preempted requests are computed again",
    "preemption-mode": "preempted requests are computed again",
    "max-num-partial-prefills": "--long-prefill-token-threshold limits long prompts",
    "use-v2-block-manager": "it is the only one",
}
_SHORT: Mapping[str, str] = {"-tp": TENSOR_PARALLEL, "-pp": "pipeline-parallel-size", "-dp": "data-parallel-size"}
_NAMING = ("argument", "ambiguous", "field")  # the words that may hold the option's name
_PERCENT = 100.0
# Switches that vLLM refuses without the option (cli_args.py, 0.6 to 0.33): they go with it.
_SWITCHES: Mapping[str, str] = {"tool-call-parser": "enable-auto-tool-choice"}
# Of the host's memory: vLLM up to 0.17 warns above 0.4 and refuses above 0.7 (config/cache.py).
_SWAP_PART = 0.25
_SWAP = "swap-space"
Changes = dict[str, FlagValue | None]


def refused_flags(situation: Situation) -> Proposal | None:
    """Wish for what makes vLLM accept its arguments, where its own words say what that is."""
    failure = situation.failure
    if failure is None or (fit := _FITS.get(failure.cause)) is None:
        return None
    if not failure.numbers.keys() >= _NEEDED.get(failure.cause, frozenset()):
        return None  # it was no number of a computer
    found = fit(situation, failure)
    if found is None:
        return None
    changes, advice = found
    reason = f"{failure.summary}; {advice}" if advice else failure.summary
    wish = Wish.CHANGE_FLAGS if changes and all(may_move(situation, name) for name in changes) else Wish.STOP
    return proposal("refused_flags", failure, wish, reason, changes if wish is Wish.CHANGE_FLAGS else None)


def _without_unknown(_: Situation, failure: Failure) -> tuple[Changes, str] | None:
    """Drop the options that vLLM lists as unknown, with their values."""
    text = failure.words.get("arguments", "")
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    names = [_name(word) for word in words if re.match(r"-{1,2}[A-Za-z]", word)]
    became = dict.fromkeys(_SUCCESSORS[name] for name in names if name in _SUCCESSORS)
    return (dict.fromkeys(names), "; ".join(became)) if names else None


def _without_value(situation: Situation, failure: Failure) -> tuple[Changes, str] | None:
    """Drop an option whose value vLLM refuses: its default is one that it takes. A percentage becomes a part."""
    named = next((word for key in _NAMING for word in _spellings(failure.words.get(key, ""))), None)
    if named is None:
        return None
    given = situation.flags.number(named)
    if named == UTILIZATION and given is not None and situation.thresholds.least_percent <= given < _PERCENT:
        part = f"{given / _PERCENT:g}"
        return {UTILIZATION: part}, f"{part} is {given:g} %"
    changes: Changes = {named: None}
    if (switch := _SWITCHES.get(named)) in situation.flags and switch is not None:
        changes[switch] = None
        return changes, f"{switch} needs it, and goes with it"
    return changes, ""


def _spellings(text: str) -> list[str]:
    """Return the canonical names of an argument as argparse, pydantic or a sentence writes it, the long one first."""
    words = sorted(text.lower().split("/"), key=lambda word: not word.startswith("--")) if text else []
    return [_name(word if word.startswith("-") else "--" + word.replace(" ", "-")) for word in words]


def _fewer_sequences(situation: Situation, failure: Failure) -> tuple[Changes, str]:
    """Take as many sequences as a step has tokens: never more memory, and the step stays as short as was asked."""
    if "vllmd" in (situation.host.flag_origin or ""):
        return {BATCHED_TOKENS: None}, f"{BATCHED_TOKENS} was vllmd's own change: back"
    tokens = failure.numbers["batched_tokens"]
    return {MAX_NUM_SEQS: f"{tokens:.0f}"}, f"{MAX_NUM_SEQS} -> {tokens:.0f}"


def _whole_prompts(_: Situation, failure: Failure) -> tuple[Changes, str]:
    """Make a step hold a whole prompt, as it must without chunked prefill."""
    tokens = failure.numbers["asked_tokens"]
    return {BATCHED_TOKENS: f"{tokens:.0f}"}, f"{BATCHED_TOKENS} -> {tokens:.0f}, or switch chunked prefill on"


def _within_limit(_: Situation, failure: Failure) -> tuple[Changes, str] | None:
    """Lower an option to the other that limits it."""
    limit, name = failure.numbers.get("limit_tokens"), failure.words.get("argument")
    return None if limit is None or name is None else ({_name("--" + name): f"{limit:.0f}"}, f"at most {limit:.0f}")


def _dividing(situation: Situation, failure: Failure) -> tuple[Changes, str]:
    """Name the sizes that divide the heads: how many GPUs a model is spread over is the operator's to say."""
    heads, ranks = int(failure.numbers["heads"]), int(failure.numbers["ranks"])
    most = situation.host.gpu_count or ranks
    sizes = [size for size in range(2, min(most, heads) + 1) if heads % size == 0]
    named = " or ".join(str(size) for size in sizes) or "1"
    return {}, f"{TENSOR_PARALLEL} {named} divides them on {most} GPUs"


def _on_these_devices(_: Situation, failure: Failure) -> tuple[Changes, str]:
    """Name the devices that there are."""
    devices = failure.numbers.get("devices")
    there = f"{devices:.0f}" if devices else "fewer"
    return {}, f"lower {TENSOR_PARALLEL} to what is there ({there}), or give the server more GPUs"


def _less_swap(situation: Situation, failure: Failure) -> tuple[Changes, str]:
    """Take a part of the host's memory, dealt out to the ranks, in whole GiB; none at all is allowed."""
    ranks = situation.flags.number(TENSOR_PARALLEL) or 1.0
    size = int(_SWAP_PART * failure.numbers["host_bytes"] / GIB / max(1.0, ranks))
    return {_SWAP: str(size)}, f"{_SWAP} -> {size}"


def _as_ranked(_: Situation, failure: Failure) -> tuple[Changes, str]:
    """Allow the rank that the adapter has."""
    rank = f"{failure.numbers['rank_tokens']:.0f}"
    return {"max-lora-rank": rank}, f"max-lora-rank -> {rank}"


def _half(_: Situation, __: Failure) -> tuple[Changes, str]:
    """Take the type that older GPUs have."""
    return {"dtype": "half"}, "--dtype half runs on this GPU"


def _name(text: str) -> str:
    """Return an option's canonical name."""
    return _SHORT.get(text.partition("=")[0], canonical_name(text))


_NEEDED: Mapping[str, frozenset[str]] = {
    "batched-below-seqs": frozenset({"batched_tokens"}),
    "batched-below-length": frozenset({"asked_tokens"}),
    "heads": frozenset({"heads", "ranks"}),
    "lora-rank": frozenset({"rank_tokens"}),
    "swap-space": frozenset({"host_bytes"}),
}
_FITS: Mapping[str, Callable[[Situation, Failure], tuple[Changes, str] | None]] = {
    "unknown": _without_unknown,
    "value": _without_value,
    "batched-below-seqs": _fewer_sequences,
    "batched-below-length": _whole_prompts,
    "above-limit": _within_limit,
    "heads": _dividing,
    "devices": _on_these_devices,
    "bfloat16": _half,
    "lora-rank": _as_ranked,
    "swap-space": _less_swap,
}
