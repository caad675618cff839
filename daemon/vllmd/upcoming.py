"""What comes next: a launch that is decided, one that is made, and where their logs lie."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllmd.model.decision import Change
from vllmd.model.flags import Flags
from vllmd.model.instance import Instance
from vllmd.model.server import Launch


@dataclass(frozen=True, slots=True)
class Logs:
    """The server's logs: where a generation's lies, all of it for a diagnosis, and what was added to it."""

    path: Callable[[int], Path]
    whole: Callable[[Launch], Sequence[str]]
    new_lines: Callable[[Launch], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Next:
    """A launch that is decided: its flags, why, and the change behind it.

    Why: first, crash, change, rollback or admin; or adopted, if an earlier vllmd launched it.
    """

    flags: Flags
    cause: str
    change: Change | None = None
    fallback: Flags | None = None  # taken when these flags do not come to serve
    due_s: float = 0.0  # not before, by the monotonic clock: a wait must not depend on the time of day


@dataclass(frozen=True, slots=True)
class Beside:
    """A launch that is made: what was decided, the instance as it is with it, and from when on it is prepared."""

    following: Next
    instance: Instance
    launch: Launch
    message: str  # of the drain that makes room for it
    since_s: float  # by the monotonic clock

    @property
    def name(self) -> str:
        """What the operator knows it by."""
        change = self.following.change
        return change.id if change is not None else self.following.cause
