"""Live values: which flags of a running server can be changed without a restart, and what its engine tells."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vllmd.model.flags import BATCHED_TOKENS, MAX_NUM_SEQS

LIVE_FLAGS = (BATCHED_TOKENS, MAX_NUM_SEQS)


@dataclass(frozen=True, slots=True)
class Knob:
    """One flag of the running generation: `off` says why it is not live, empty where it is.

    `asked` None is what was launched. `in_force` is that of the last step, which looked at `seen`.
    """

    off: str
    launched: int | None = None
    asked: int | None = None
    seen: int | None = None
    in_force: int | None = None

    @property
    def settled(self) -> bool:
        """Whether the last step has looked at what is asked for."""
        return self.asked == self.seen


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What the engine told of its last step: `step_s` is when it began, by the monotonic clock."""

    steps: int
    step_s: float
    longest_s: float  # from one step to the next, with requests running throughout
    running: int
    waiting: int
    tokens: int
    own_s: float  # spent in the shim, in all
    pid: int = 0  # the engine's, as it knows itself


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the API server tells of its requests: how many are in flight, and whether its port can be shared.

    `kept_s`: when the last answer ended whose connection was kept, by the monotonic clock; 0 if none was.
    """

    in_flight: int
    kept_s: float
    shared_port: bool


@dataclass(frozen=True, slots=True)
class Gate:
    """What the workers of a launch tell of the gate before their device: how many wait there, how many have passed it.

    `off` says why there is none; empty where that is not known, too.
    """

    waiting: int = 0
    passed: int = 0
    off: str = ""


@dataclass(frozen=True, slots=True)
class Live:
    """What the running generation offers.

    `heartbeat` None: none can be had, or no step was made yet. `traffic` None: its requests are not counted.
    """

    knobs: Mapping[str, Knob] = field(default_factory=dict)
    heartbeat: Heartbeat | None = None
    traffic: Traffic | None = None

    @classmethod
    def nothing(cls, reason: str) -> "Live":
        """Return that of a server that offers nothing, for this reason."""
        return cls(dict.fromkeys(LIVE_FLAGS, Knob(reason)))
