"""Status: everything vllmd tells about itself at one moment. The loop makes it; every report is drawn from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vllmd.model.decision import Assessment, Change, Hold, Outcome, Verification
from vllmd.model.failure import Failure
from vllmd.model.flags import FlagValue
from vllmd.model.handover import Handovers
from vllmd.model.live import Live
from vllmd.model.memory_budget import MemoryBudget
from vllmd.model.orders import Pause, SetLive
from vllmd.model.server import Phase, ServerState
from vllmd.model.settings import Modes
from vllmd.model.snapshot import Gpu


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A change with what became of it; None: not yet."""

    change: Change
    outcome: Outcome | None = None
    verification: Verification | None = None


@dataclass(frozen=True, slots=True)
class FlagStatus:
    """One flag that differs from the baseline or may be moved. `change_id` names the change that set it."""

    name: str
    value: FlagValue | None
    baseline: FlagValue | None
    low: float | None = None
    high: float | None = None
    change_id: str | None = None
    since_s: float | None = None  # unix time of that change


@dataclass(frozen=True, slots=True)
class StartFacts:
    """What the start log of this launch said; bytes and tokens, None where it did not say.

    Lines and versions: decide/start_log.py. Under tensor parallelism every rank prints its own share, and the first
    one counts (they are alike), of the pool the smallest.
    """

    weights_bytes: float | None = None
    kv_cache_bytes: float | None = None
    kv_cache_tokens: int | None = None
    activation_bytes: float | None = None
    graphs_bytes: float | None = None
    batched_tokens: int | None = None
    phase: str | None = None  # how far the start has come
    non_torch_bytes: float | None = None
    consumed_bytes: float | None = None  # weights and non-torch, where the log has them only together
    torch_peak_bytes: float | None = None  # weights and activation peak, likewise
    graphs_estimate_bytes: float | None = None  # what was set aside for graphs before the pool was sized
    device_bytes: float | None = None  # the device's memory as the server counts it
    utilization: float | None = None
    concurrency: float | None = None  # requests of full length that the pool holds
    request_tokens: int | None = None  # that length


@dataclass(frozen=True, slots=True)
class StartProgress:
    """How long the phases of this launch's start took so far, and how long they are expected to take; seconds."""

    took_s: Mapping[Phase, float] = field(default_factory=dict)
    expected_by_phase_s: Mapping[Phase, float] = field(default_factory=dict)
    expected_s: float | None = None  # of the whole, by earlier starts of this fingerprint


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """What is used of the budget."""

    restarts_hour: int
    restarts_hour_limit: int
    restarts_day: int
    restarts_day_limit: int
    crashes: int  # in the breaker's window
    crashes_limit: int
    breaker_open: bool


@dataclass(frozen=True, slots=True)
class LiveStatus:
    """What the running server offers to be changed at once, and what the operator set.

    `silent_s`: since the engine's last step began; None where it tells of none. `plain_restart`: why its restart would
    refuse connections; None where they would wait.
    """

    live: Live
    orders: tuple[SetLive, ...] = ()
    silent_s: float | None = None
    plain_restart: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """The instance at one moment. Times are unix seconds; None is unknown."""

    name: str
    at_s: float
    vllmd_version: str
    state: ServerState
    since_s: float
    message: str  # what goes on, or why nothing does; one line
    modes: Modes
    generation: int | None
    pid: int | None
    url: str
    model: str | None
    vllm_version: str | None
    simulated: bool  # the server is vllmd_sim
    assessment: Assessment | None
    gpus: tuple[Gpu, ...] | None
    host_free_bytes: int | None
    host_total_bytes: int | None
    start: StartFacts | None
    flags: tuple[FlagStatus, ...]
    argv: tuple[str, ...]
    budget: BudgetStatus
    last_decision: Change | Hold | None
    decisions: tuple[DecisionRecord, ...]  # newest last, 20 at most
    last_failure: Failure | None
    data_at_s: float | None  # last successful scrape
    missing_metrics: tuple[str, ...]
    log_path: str | None
    start_times: StartProgress = StartProgress()
    suppressed: Mapping[str, int] = field(default_factory=dict)  # HoldReason value to count
    launches: Mapping[str, int] = field(default_factory=dict)  # cause to count: first, crash, change, rollback, admin
    outage_s: Mapping[str, float] = field(default_factory=dict)  # same causes
    failure_log: str | None = None  # the log of the launch that failed last
    canaries: Mapping[str, int] = field(default_factory=dict)  # CanaryResult value to count
    errors: int = 0  # readings that a bug spoilt since the daemon began
    problem: str | None = None  # what vllmd itself cannot do now
    host: str = ""
    pause: Pause | None = None
    memory: MemoryBudget | None = None  # of the living launch
    live: LiveStatus | None = None  # None: no server serves
    pending: tuple[str, ...] = ()  # what the next launch will have otherwise than the server that runs
    handovers: Handovers = field(default_factory=Handovers)
