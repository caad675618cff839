"""The operator's settings: what `config` reads and every stage is given. Durations in seconds, sizes in bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vllmd.model.decision import Target


class Mode(StrEnum):
    """How far vllmd may go."""

    OBSERVE = "observe"  # measure only
    ADVISORY = "advisory"  # decide and say, never act
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class Modes:
    """The mode of each domain. A crashed server is always started again, whatever the mode."""

    memory: Mode = Mode.ACTIVE
    latency: Mode = Mode.ADVISORY


@dataclass(frozen=True, slots=True)
class Engine:
    """[engine]: the operator's command and the limits of its waits."""

    argv: tuple[str, ...] = ()
    url: str | None = None  # None: from the argv's host and port
    env_file: str | None = None
    start_timeout_s: float = 1200.0  # since the last sign of progress
    drain_timeout_s: float = 60.0
    hold_timeout_s: float = 120.0  # of a planned restart, from when connections begin to wait
    gate: bool = True  # of a restart: the next server is prepared beside the serving one, up to its device
    # For that. It took 42.8 s on an H200 (8B model), and on two cores 226 s beside other work, and did not end within
    # 325 s beside a server that kept both of them busy.
    park_timeout_s: float = 300.0
    # With work to do and nothing moving. The longest honest silence seen is 3 s (an 8,000-token prefill on an H200).
    stall_timeout_s: float = 120.0
    canary_s: float | None = None  # how long it rests before it is sent a canary; None: never
    scrape_interval_s: float = 5.0
    shim: bool = True  # live values and the engine's heartbeat, through vllmd_shim


@dataclass(frozen=True, slots=True)
class Slo:
    """[slo]: the targets, and what counts as evidence. Two `judge_window_s` in a row must agree."""

    targets: tuple[Target, ...] = ()
    judge_window_s: float = 300.0
    min_requests: int = 200  # fewer observations than this in a window decide nothing


@dataclass(frozen=True, slots=True)
class Bounds:
    """The operator's bounds of one flag; None: open. `step` rounds a computed value."""

    low: float | None = None
    high: float | None = None
    step: float | None = None


# Without a [guard] the memory flags may move, max-model-len and everything else may not. 0.97: above it NVIDIA's
# own context and torch's workspace no longer fit on an 80 GiB device (vLLM reports of graph capture OOM at 0.98).
DEFAULT_GUARDS: Mapping[str, Bounds] = {
    "gpu-memory-utilization": Bounds(0.05, 0.97),
    "max-num-batched-tokens": Bounds(256, None),
    "enable-chunked-prefill": Bounds(),
    "max-cudagraph-capture-size": Bounds(1, None),
    "enforce-eager": Bounds(),
}


@dataclass(frozen=True, slots=True)
class Guard:
    """[guard]: the box that flags may move in; a flag without an entry is never touched."""

    bounds: Mapping[str, Bounds] = field(default_factory=lambda: dict(DEFAULT_GUARDS))
    frozen: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Budget:
    """[budget]: what voluntary changes may cost, and when a crash loop is held."""

    restarts_per_hour: int = 2
    restarts_per_day: int = 6
    breaker_crashes: int = 5
    breaker_window_s: float = 900.0
    soak_s: float = 900.0
    step_back_after_s: float = 86400.0  # without a failure, before a step back towards the baseline


@dataclass(frozen=True, slots=True)
class Policies:
    """[policies]: the profile that says which policies are heard and by which numbers they judge.

    `profile` is the name of one that comes with vllmd, or the absolute path of a file.
    """

    profile: str = "default"


@dataclass(frozen=True, slots=True)
class Listen:
    """[listen]: where vllmd answers. `control` None: control.sock in the runtime folder."""

    metrics: str = "127.0.0.1:9842"
    control: str | None = None
    group: str | None = None  # group that may read the control socket


@dataclass(frozen=True, slots=True)
class Logging:
    """[log]: format of vllmd's own log (logfmt or json), and how much of the server's logs is kept."""

    format: str = "logfmt"
    engine_keep: int = 20
    engine_max_bytes: int = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything an instance runs with. `origins` says for each "section.key" where it was set ("FILE:LINE")."""

    name: str = "default"
    modes: Modes = field(default_factory=Modes)
    engine: Engine = field(default_factory=Engine)
    slo: Slo = field(default_factory=Slo)
    guard: Guard = field(default_factory=Guard)
    budget: Budget = field(default_factory=Budget)
    policies: Policies = field(default_factory=Policies)
    listen: Listen = field(default_factory=Listen)
    log: Logging = field(default_factory=Logging)
    state_dir: str | None = None  # None: /var/lib/vllmd for root, else $XDG_STATE_HOME/vllmd; NAME is added
    origins: Mapping[str, str] = field(default_factory=dict)
