"""How long the phases of a start took, and what that lets expect of the next one. Times in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vllmd.model.server import Phase


@dataclass(frozen=True, slots=True)
class Started:
    """A start that came to serve: how long each of its phases took, in their order, by the monotonic clock."""

    generation: int
    took_s: Mapping[Phase, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StartTimes:
    """A start under way: its phase, when that began (monotonic), and what the phases before it took."""

    began_s: float
    phase: Phase = Phase.CONFIG
    since_s: float = 0.0
    took_s: Mapping[Phase, float] = field(default_factory=dict)

    def elapsed_s(self, now_s: float) -> float:
        """Return how long the start has been under way."""
        return max(0.0, now_s - self.began_s)
