"""Assessment, proposal, decision, plan, outcome, verification: the stages of a change as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vllmd.model.failure import Failure
from vllmd.model.flags import Flags, FlagValue
from vllmd.model.handover import Handover
from vllmd.model.host_facts import HostFacts
from vllmd.model.thresholds import Thresholds


class Verdict(StrEnum):
    """What a window says of a target."""

    MET = "met"
    SLIPPING = "slipping"
    UNSURE = "unsure"  # too few observations, or the target lies inside a bucket that decides it


@dataclass(frozen=True, slots=True)
class Target:
    """A latency objective: `quantile` of the observations of `metric` lie within `limit_s` seconds."""

    name: str  # itl_p99, ttft_p95, …
    metric: str  # itl or ttft
    quantile: float  # 0..1
    limit_s: float


@dataclass(frozen=True, slots=True)
class TargetAssessment:
    """One target over one span: bounds of the share within the limit, and of the quantile itself, in seconds.

    Between bucket edges only bounds are known; on an edge both bounds are equal. None: nothing observed, and for
    `quantile_high_s` also: above the last edge.
    """

    target: Target
    verdict: Verdict
    observations: int
    share_low: float | None
    share_high: float | None
    quantile_low_s: float | None
    quantile_high_s: float | None


@dataclass(frozen=True, slots=True)
class Load:
    """What was asked of the server over a span: requests, prompt and generated tokens, each per second."""

    requests_per_s: float
    prompt_tokens_per_s: float
    generation_tokens_per_s: float
    running: float | None
    waiting: float | None
    kv_cache_usage: float | None  # 0..1


@dataclass(frozen=True, slots=True)
class Assessment:
    """What the window says against the targets: the last span, the span before it, and the verdict of both."""

    at_s: float
    generation: int
    now: tuple[TargetAssessment, ...]
    before: tuple[TargetAssessment, ...]
    load: Load | None

    def of(self, name: str) -> TargetAssessment | None:
        """Return the last span's assessment of a target by name."""
        return next((t for t in self.now if t.target.name == name), None)

    def slipping(self) -> tuple[TargetAssessment, ...]:
        """Return the targets that slip in both spans."""
        earlier = {t.target.name for t in self.before if t.verdict is Verdict.SLIPPING}
        return tuple(t for t in self.now if t.verdict is Verdict.SLIPPING and t.target.name in earlier)


class Domain(StrEnum):
    """Which of the operator's modes governs a proposal."""

    MEMORY = "memory"
    LATENCY = "latency"
    ADMIN = "admin"


class Wish(StrEnum):
    """What a policy asks for."""

    CHANGE_FLAGS = "change-flags"
    RETRY_UNCHANGED = "retry-unchanged"
    WAIT_THEN_RETRY = "wait-then-retry"
    STOP = "stop"  # no flag helps: the operator must act
    SET_ENV = "set-env"  # a variable of the server's environment helps
    RESTART = "restart"  # the same flags again, after the server had served or because it hangs
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A policy's wish: the changes, the reason in one sentence, and the numbers it rests on.

    `env` are variables of the server's environment, None to unset one.
    """

    policy: str
    domain: Domain
    wish: Wish
    reason: str
    changes: Mapping[str, FlagValue | None] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    trigger: str = ""  # the failure's class or the target's name
    env: Mapping[str, str | None] = field(default_factory=dict)


class HoldReason(StrEnum):
    """Why nothing is done. Each has a series in `vllmd_suppressed_total`."""

    TARGETS_MET = "targets_met"
    NO_TARGETS = "no_targets"
    THIN_EVIDENCE = "thin_evidence"
    NO_REMEDY = "no_remedy"
    FROZEN = "frozen"
    GUARD = "guard"
    UNKNOWN_OPTION = "unknown_option"
    MEMORY = "memory"  # it does not fit into the GPU's memory
    BUDGET = "budget"
    COOLDOWN = "cooldown"
    VERIFYING = "verifying"
    ALREADY_TRIED = "already_tried"
    ALREADY_ADVISED = "already_advised"
    PAUSED = "paused"  # the operator's order
    LIVE_SET = "live_set"  # a value that the operator set live holds, or has just ended
    OBSERVE_ONLY = "observe_only"
    BLIND = "blind"
    HANGS = "hangs"  # the server stands still, and a pause forbids to end it
    OPERATOR = "operator"  # the operator must act
    BREAKER = "breaker"  # too many failures of a kind, no remedy left


@dataclass(frozen=True, slots=True)
class Hold:
    """The decision to do nothing, with its reason; `until_s` (unix) when it is known to end."""

    reason: HoldReason
    message: str
    until_s: float | None = None


class Action(StrEnum):
    """What a change does."""

    ADVISE = "advise"  # decided and told, not done
    RESTART = "restart"  # drained restart with other flags
    RECOVER = "recover"  # launch after a failure, with other flags
    RETRY = "retry"  # launch after a failure, same flags
    ROLLBACK = "rollback"  # back to the flags before a change
    LIVE = "live"  # set in the running server: a decision, its taking back, or the operator's order
    REMEMBER = "remember"  # a first launch with the flags that were found good before


@dataclass(frozen=True, slots=True)
class Change:
    """The decision to act (or, for ADVISE, what would be done). `id` is unique in the instance ("D7")."""

    id: str
    at_s: float
    action: Action
    proposal: Proposal
    flags_before: Flags
    flags_after: Flags
    wait_s: float = 0.0  # before the launch (backoff)


Decision = Hold | Change


@dataclass(frozen=True, slots=True)
class Plan:
    """A change to carry out, with the way back."""

    change: Change
    target: Flags
    fallback: Flags


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the actuator did: the generation that came of it, whether it serves, and the seconds without service.

    `handover` is how connections came over the restart that it ended; None where it ended none.
    `took_s` are the seconds that each phase of its start took, as far as it came.
    """

    change: Change
    generation: int
    served: bool
    outage_s: float | None
    handover: Handover | None = None
    took_s: Mapping[str, float] = field(default_factory=dict)


class Effect(StrEnum):
    """What a change brought."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    UNKNOWN = "unknown"  # the load was not alike, or the evidence thin
    SERVING = "serving"  # a recovery: it serves again
    FAILED = "failed"  # it did not come to serve
    CALLED_OFF = "called-off"  # the server was not even drained for it: what was in force is


@dataclass(frozen=True, slots=True)
class Verification:
    """The effect of a change, measured after its soak, beside the measurement before it (share within the limit)."""

    change_id: str
    at_s: float
    effect: Effect
    message: str
    before: float | None = None
    after: float | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a policy may read: never the clock, the gates or another policy's wish.

    `supervised` says that vllmd keeps the server: it moves only flags that the operator's guards name, and starts again
    what somebody else ended. Otherwise a log is explained, and whatever helps may be said.
    """

    baseline: Flags
    flags: Flags
    failure: Failure | None = None
    assessment: Assessment | None = None
    repeats: int = 0  # identical failures in a row before this one
    chunked_prefill_default: bool = True  # whether this vLLM turns chunked prefill on by itself
    batched_tokens: int | None = None  # the effective value, where it is known and the argv does not say
    max_num_seqs: int | None = None  # likewise
    bounds: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)  # operator's guards
    tried: frozenset[Flags] = frozenset()  # flags that were run before
    gpu_free_bytes: int | None = None
    gpu_total_bytes: int | None = None
    supervised: bool = True
    running: bool = False  # the server's process lives
    version: str | None = None  # vLLM's
    host: HostFacts = field(default_factory=HostFacts)
    quiet: bool = False  # nothing failed for so long that a step back towards the baseline may be tried
    recovered: Mapping[str, str] = field(default_factory=dict)  # flags that recoveries moved, and the failures' classes
    thresholds: Thresholds = field(default_factory=Thresholds)
