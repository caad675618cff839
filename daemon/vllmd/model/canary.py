"""The canary: one tiny request to an idle server, which shows whether its engine still works."""

from dataclasses import dataclass
from enum import StrEnum


class CanaryResult(StrEnum):
    """What became of a canary."""

    ANSWERED = "answered"  # with a token
    SILENT = "silent"  # not in time
    REFUSED = "refused"  # with anything else than a token
    LOST = "lost"  # the connection broke, or could not be made
    PAUSED = "paused"  # not sent: the server said that somebody paused it


@dataclass(frozen=True, slots=True)
class CanaryOrder:
    """A canary that is to be under way: `number` tells it from any other, `limit_s` ends its wait."""

    number: int
    generation: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class CanaryReply:
    """What became of the canary of this number. `reason` is empty where there is nothing to say."""

    number: int
    result: CanaryResult
    reason: str = ""
