"""What the past forbids, and what it recommends: bans of configurations that crashed, and the last good one.

A configuration that crashed on a fingerprint is not tried again, nor one that dominates it: one that asks for at least
as much in every respect, where it ran out of memory, or that leaves the KV pool no more, where that was too small.
What only the neighbours on the GPU made impossible is forbidden for as long as they leave no more free.
"""

from collections.abc import Iterable, Mapping, Sequence

from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import (
    BATCHED_TOKENS,
    CAPTURE_SIZE,
    ENFORCE_EAGER,
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    UTILIZATION,
    Flags,
    FlagValue,
)
from vllmd.model.masking import MASK
from vllmd.model.tried import Ban, Tried

# What takes memory outside the KV pool: more of it never ends an OOM, and leaves the pool less.
_WORKING = (BATCHED_TOKENS, MAX_NUM_SEQS, CAPTURE_SIZE)
_BESIDE_NEIGHBOURS = frozenset({FailureClass.UTILIZATION_TOO_HIGH, FailureClass.GPU_MEMORY_TAKEN})
# By class of failure: the flags of which more is no help, and those of which less is none.
_ASKS_MORE = ((UTILIZATION, *_WORKING), (ENFORCE_EAGER,))
_LEAVES_LESS = ((MAX_MODEL_LEN, *_WORKING), (UTILIZATION, ENFORCE_EAGER))
_RESPECTS: Mapping[FailureClass, tuple[tuple[str, ...], tuple[str, ...]]] = {
    FailureClass.UTILIZATION_TOO_HIGH: _ASKS_MORE,
    FailureClass.WARMUP_OOM: _ASKS_MORE,
    FailureClass.GRAPH_CAPTURE_OOM: _ASKS_MORE,
    FailureClass.RUNTIME_OOM: _ASKS_MORE,
    FailureClass.UTILIZATION_TOO_LOW: _LEAVES_LESS,
    FailureClass.MAX_MODEL_LEN_TOO_LONG: _LEAVES_LESS,
}


def bans_of(past: Iterable[Tried]) -> tuple[Ban, ...]:
    """Return the bans of earlier launches of one fingerprint."""
    return tuple(
        Ban(tried.launch.flags, tried.failure) for tried in past if tried.failure is not None and tried.failure.forbids
    )


def last_good(
    past: Sequence[Tried], baseline: Flags, free_bytes: float | None
) -> tuple[Tried, Mapping[str, FlagValue | None]] | None:
    """Return the newest launch of this baseline that was found good and is not banned, and what it changes of it.

    `past` is newest first, and secrets are masked in it: `baseline` must be masked, too. A utilization that the
    baseline could not have beside neighbours is its own again once they have left as much as it asks for.
    What would change a flag to a masked value cannot be run again.
    """
    bans = bans_of(past)
    for tried in past:
        launch = tried.launch
        changes = {name: new for name, (_, new) in launch.flags.differences(baseline).items()}
        hidden = any(MASK in str(new) for new in changes.values())
        if tried.good_at_s is None or hidden or launch.baseline != baseline:
            continue
        if banned(launch.flags, bans, free_bytes):
            continue
        without = {name: value for name, value in changes.items() if name != UTILIZATION}
        if _have_left(past, baseline, free_bytes) and not banned(baseline.changed(without), bans, free_bytes):
            changes = without
        return tried, changes
    return None


def _have_left(past: Iterable[Tried], flags: Flags, free_bytes: float | None) -> bool:
    """Whether these flags once failed for what neighbours held, and find as much free now as they asked for."""
    failures = [tried.failure for tried in past if tried.failure is not None and tried.launch.flags == flags]
    return any(_passed(failure, free_bytes) for failure in failures)


def banned(flags: Flags, bans: Iterable[Ban], free_bytes: float | None = None) -> Ban | None:
    """Return the ban that these flags fall under; `free_bytes` is what the launch would find free on the GPU."""
    return next((ban for ban in bans if _falls_under(flags, ban, free_bytes)), None)


def _falls_under(flags: Flags, ban: Ban, free_bytes: float | None) -> bool:
    if _passed(ban.failure, free_bytes):
        return False
    return flags == ban.flags or _dominates(flags, ban)


def _passed(failure: Failure, free_bytes: float | None) -> bool:
    """Whether it failed only because of what others held on the GPU then, and now as much is free as it asked for."""
    asked = failure.numbers.get("requested_bytes")
    if failure.kind not in _BESIDE_NEIGHBOURS or asked is None or free_bytes is None:
        return False
    return free_bytes >= asked


def _dominates(flags: Flags, ban: Ban) -> bool:
    """Whether these flags ask for at least as much in every respect, and differ in nothing else.

    A flag that one side leaves to vLLM's default cannot be compared with a value, and then nothing is dominated.
    """
    differing = flags.differences(ban.flags)
    more, less = _RESPECTS.get(ban.failure.kind, ((), ()))
    return all(
        (name in more and _at_least(flags, ban.flags, name)) or (name in less and _at_least(ban.flags, flags, name))
        for name in differing
    )


def _at_least(left: Flags, right: Flags, name: str) -> bool:
    """Whether a flag's value on the left is not below that on the right; off is below on."""
    if name == ENFORCE_EAGER:
        return (left.get(name) is True) >= (right.get(name) is True)
    here, there = left.number(name), right.number(name)
    return here is not None and there is not None and here >= there
