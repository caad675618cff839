"""The short texts that several reports share: what a change moves, and when something was."""

from dataclasses import dataclass
from datetime import UTC, datetime

from vllmd.model.decision import Change
from vllmd.model.flags import show_value

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Move:
    """One flag of a change, as an operator reads it."""

    flag: str
    before: str
    after: str


def moves(change: Change) -> tuple[Move, ...]:
    """Return what a change moves; empty for a launch with the same flags."""
    differences = change.flags_after.differences(change.flags_before)
    return tuple(Move(flag, show_value(before), show_value(after)) for flag, (before, after) in differences.items())


def change_text(change: Change) -> str:
    """Return a change in one line: "max-num-seqs 256 -> 192"."""
    return ", ".join(f"{m.flag} {m.before} -> {m.after}" for m in moves(change)) or "same flags"


def rfc3339(at_s: float) -> str:
    """Return unix seconds as RFC 3339 in UTC, whole seconds."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def quantity(name: str, value: float) -> str:
    """Return a number of a decision behind its name; the name's end is its unit: "free 12.5 GiB"."""
    if name.endswith("_bytes"):
        return f"{name.removesuffix('_bytes')} {value / _GIB:.1f} GiB"
    if name.endswith("_s"):
        return f"{name.removesuffix('_s')} {value:g} s"
    return f"{name} {value:.6g}"
