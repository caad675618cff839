"""The server's states, its launches, and the events of its life."""

from dataclasses import dataclass, field
from enum import StrEnum

from vllmd.model.flags import Flags
from vllmd.model.handover import Handover


class ServerState(StrEnum):
    """What the supervised server is doing."""

    STOPPED = "stopped"
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    BACKOFF = "backoff"
    HELD = "held"


class Phase(StrEnum):
    """How far a launch has come; later members come later in a start."""

    CONFIG = "config"  # arguments and imports
    LOADING = "loading"  # weights
    PROFILING = "profiling"  # memory profile, KV cache
    CAPTURE = "capture"  # compile and graphs
    WARMUP = "warmup"  # after graphs, before serving
    SERVING = "serving"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, told apart from a later one with the same pid.

    `start_ticks` is field 22 of /proc/PID/stat (clock ticks since boot).
    """

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of the server. `generation` numbers the launches of an instance from 1.

    `baseline` are the operator's flags at that time, `fingerprint` what the launch's fate depends on besides its flags.
    `model` and `vllm` (its version) are what was launched, None where unknown.
    """

    generation: int
    argv: tuple[str, ...]
    flags: Flags
    started_at_s: float  # unix time
    log_path: str
    leader: ProcessId | None = None  # None: not spawned
    baseline: Flags = field(default_factory=Flags)
    fingerprint: str = ""
    model: str | None = None
    vllm: str | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """What an earlier vllmd left: `generation` if its server can be taken over, else `problem` says why it cannot.

    Both None: no process of it lives. `words` are what followed the program on its command line, secrets and all; None
    where that is not known for sure.
    """

    generation: int | None = None
    problem: str | None = None
    words: tuple[str, ...] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Spawned:
    """The launch has a process."""

    generation: int
    leader: ProcessId


@dataclass(frozen=True, slots=True)
class Ready:
    """The launch answers its health check, and the answering socket is its own.

    `handover` is how connections came over the restart that it ends; None where it ends none.
    """

    generation: int
    handover: Handover | None = None


@dataclass(frozen=True, slots=True)
class Exited:
    """The leader of a launch ended. `exit_code` is negative for a signal, None if it cannot be known.

    `oom_kills` are processes that the kernel killed for want of memory while it lived, in the cgroup that it shares
    with vllmd; None where the kernel does not count.
    """

    generation: int
    exit_code: int | None
    asked: bool  # we asked for this end
    oom_kills: int | None = field(default=None, compare=False)  # of the cgroup, which others may share


@dataclass(frozen=True, slots=True)
class StartStalled:
    """A start showed no sign of progress for `silent_s` seconds, and was ended by us."""

    generation: int
    silent_s: float


@dataclass(frozen=True, slots=True)
class Hung:
    """A serving server stood still for `silent_s` seconds with work to do, and was ended by us."""

    generation: int
    silent_s: float
    reason: str  # one sentence for the operator


@dataclass(frozen=True, slots=True)
class LaunchRefused:
    """A launch was not begun: `reason` says what stands in the way, `holder` who (may be empty)."""

    generation: int
    kind: str  # port-taken, gpu-held, spawn-failed, stop-failed
    reason: str
    holder: str = ""


@dataclass(frozen=True, slots=True)
class AtGate:
    """A launch that is prepared beside the serving server waits at its gate: all that needs no device is done."""

    generation: int


@dataclass(frozen=True, slots=True)
class GateMissed:
    """A launch that was prepared beside the serving server did not come to its gate, or not in time: it was ended."""

    generation: int
    reason: str  # one sentence for the operator


LaunchEvent = Spawned | Ready | Exited | StartStalled | Hung | LaunchRefused
ServerEvent = LaunchEvent | AtGate | GateMissed
