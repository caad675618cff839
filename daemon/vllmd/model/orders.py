"""What is ordered, kept in the ledger: a pause, its end, a live value, and that the past be forgotten."""

from dataclasses import dataclass

PAUSE_LIMIT_S = 30 * 86400.0  # a longer pause is a decision against vllmd: stop it, or pause it without an end


@dataclass(frozen=True, slots=True)
class Pause:
    """No change and no restart until `until_s` (unix seconds; None: until it is ended).

    After a crash the server stays down, too, unless the pause `keeps_recovery`. `by` names who asked.
    """

    at_s: float
    until_s: float | None
    by: str
    reason: str = ""
    keeps_recovery: bool = False

    def holds(self, now_s: float) -> bool:
        """Whether it has not run out yet."""
        return self.until_s is None or now_s < self.until_s


@dataclass(frozen=True, slots=True)
class Resume:
    """The end of a pause before its time."""

    at_s: float
    by: str


@dataclass(frozen=True, slots=True)
class Forget:
    """What was tried before no longer counts: no ban and no last good flags are older than this."""

    at_s: float
    by: str


@dataclass(frozen=True, slots=True)
class SetLive:
    """A flag of a running generation is `value` live, None for what was launched, until `until_s` (unix seconds).

    `until_s` None: until it is set again. The operator's ends with its generation. One that is `decided` was set by
    vllmd's decision `by`, and the next generation gets it, too.
    """

    at_s: float
    by: str
    flag: str
    value: int | None
    until_s: float | None
    generation: int
    decided: bool = False

    def holds(self, now_s: float) -> bool:
        """Whether it has not run out yet."""
        return self.until_s is None or now_s < self.until_s
