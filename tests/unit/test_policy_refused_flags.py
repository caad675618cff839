"""The policy for arguments that vLLM refuses: what it names is dropped or fitted, what it does not name stays."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from captures import failure_of, situation
from vllmd.model.decision import Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import FlagValue
from vllmd.model.host_facts import HostFacts
from vllmd_policies.refused_flags import refused_flags


def refused(cause: str, numbers: Mapping[str, float] | None = None, **words: str) -> Failure:
    """Return a refusal with these numbers and words."""
    failure = failure_of(FailureClass.INVALID_FLAG, numbers=numbers, summary="vLLM refuses it")
    return replace(failure, cause=cause, words=words)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ("--enable-reasoning", {"enable-reasoning"}),
        ("--enable-reasoning --reasoning-parser deepseek_r1", {"enable-reasoning", "reasoning-parser"}),
        ("--speculative-model org/x --num-speculative-tokens 5", {"speculative-model", "num-speculative-tokens"}),
        ("--num_scheduler_steps=8", {"num-scheduler-steps"}),
        ("--rope-scaling '{\"a\": -1}' -tp 2", {"rope-scaling", "tensor-parallel-size"}),
        ("--open 'quote", {"open"}),
    ],
)
def test_only_what_is_unknown_is_dropped(arguments: str, names: set[str]) -> None:
    """The list holds flags and their values; a flag that is not in it is right."""
    wish = refused_flags(situation(refused("unknown", arguments=arguments), supervised=False))
    assert wish is not None
    assert wish.wish is Wish.CHANGE_FLAGS
    assert wish.changes == dict.fromkeys(names)


def test_the_successor_of_a_removed_flag_is_named() -> None:
    """Dropping it starts the server; what took its place is the operator's to choose."""
    wish = refused_flags(situation(refused("unknown", arguments="--num-scheduler-steps 8"), supervised=False))
    assert wish is not None
    assert "--async-scheduling" in wish.reason


def test_words_that_are_no_flags_are_no_remedy() -> None:
    """Nothing is dropped where no flag is named."""
    assert refused_flags(situation(refused("unknown", arguments="stray words"), supervised=False)) is None


@pytest.mark.parametrize(
    ("failure", "changes"),
    [
        (refused("value", argument="--kv-cache-dtype"), {"kv-cache-dtype": None}),
        (refused("value", argument="--tensor-parallel-size/-tp"), {"tensor-parallel-size": None}),
        (refused("value", ambiguous="--max-num"), {"max-num": None}),
        (refused("batched-below-seqs", {"batched_tokens": 256, "seqs": 1024}), {"max-num-seqs": "256"}),
        (
            refused("batched-below-length", {"batched_tokens": 2048, "asked_tokens": 8192}),
            {"max-num-batched-tokens": "8192"},
        ),
        (refused("above-limit", {"limit_tokens": 64}, argument="max_num_active_seqs"), {"max-num-active-seqs": "64"}),
        (refused("bfloat16"), {"dtype": "half"}),
        (refused("lora-rank", {"rank_tokens": 64}), {"max-lora-rank": "64"}),
    ],
)
def test_what_the_words_say_is_done(failure: Failure, changes: dict[str, FlagValue | None]) -> None:
    """The refusal names the flag and the limit; in a server with guards the operator is asked."""
    free, kept = (refused_flags(situation(failure, supervised=kept)) for kept in (False, True))
    assert free is not None
    assert kept is not None
    assert (free.wish, free.changes) == (Wish.CHANGE_FLAGS, changes)
    if "max-num-batched-tokens" not in changes:  # which the guards let move
        assert (kept.wish, dict(kept.changes)) == (Wish.STOP, {})


@pytest.mark.parametrize(("gpus", "named"), [(3, "2 divides"), (4, "2 or 4 divides"), (1, "1 divides")])
def test_the_sizes_that_divide_the_heads_are_named(gpus: int, named: str) -> None:
    """How many GPUs a model is spread over is the operator's to say."""
    failure = refused("heads", {"heads": 32, "ranks": 3})
    wish = refused_flags(situation(failure, supervised=False, host=HostFacts(gpu_count=gpus)))
    assert wish is not None
    assert wish.wish is Wish.STOP
    assert named in wish.reason


def test_more_ranks_than_devices_are_the_operators() -> None:
    """What is there is said."""
    wish = refused_flags(situation(refused("devices", {"ranks": 4, "devices": 2}), supervised=False))
    assert wish is not None
    assert "what is there (2)" in wish.reason


def test_other_failures_are_not_its_business() -> None:
    """A refusal without words to go by is left to another policy."""
    assert refused_flags(situation(refused(""))) is None
