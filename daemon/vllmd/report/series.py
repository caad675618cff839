"""From a published status to Prometheus metric families. Pure; everything is labelled with the instance's name.

Unknown is absent, never 0. Names and units follow Prometheus's conventions; texts in labels are data: escaped, capped.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum

from prometheus_client.core import Metric

from vllmd.model.canary import CanaryResult
from vllmd.model.decision import Effect, HoldReason, TargetAssessment
from vllmd.model.flags import BATCHED_TOKENS, FlagValue, parse_number, show_value
from vllmd.model.status import BudgetStatus, FlagStatus, Status
from vllmd.report.gpu_memory import sizes
from vllmd.report.live_series import live_series
from vllmd.report.publication import Published
from vllmd.report.restart_series import restart_series
from vllmd.report.samples import Sample, counter, gauge
from vllmd.report.wording import change_text

DECISION_AGE_S = 86400.0
DECISION_COUNT = 20
CAUSES = ("first", "crash", "change", "rollback", "admin")


def families(published: Published, now_s: float) -> Iterator[Metric]:
    """Yield every family of one instance; `now_s` is unix time."""
    status = published.status
    yield from _about(status, now_s)
    yield from _decisions(published, now_s)
    yield from _flags(status)
    yield from _memory(status)
    yield from _slo(status)
    yield from _budget(status.name, status.budget)
    yield from restart_series(status.name, status.handovers)
    yield from live_series(status.name, status.live)


def _about(status: Status, now_s: float) -> Iterator[Metric]:
    """Yield what and how the instance is."""
    name = status.name
    build = {
        "version": status.vllmd_version,
        "vllm_version": status.vllm_version or "",
        "model": status.model or "",
        "simulated": str(status.simulated).lower(),
    }
    modes = {"memory": status.modes.memory, "latency": status.modes.latency}
    age_s = None if status.data_at_s is None else max(0.0, now_s - status.data_at_s)
    yield gauge("build_info", "Versions and model of the instance; always 1.", name, [(build, 1)])
    yield gauge(
        "mode",
        "Mode of each domain; 1 for the one that holds.",
        name,
        [({"domain": d, **s}, v) for d, mode in modes.items() for s, v in _one_hot("mode", mode)],
    )
    yield gauge("engine_state", "State of the server; 1 for the one that holds.", name, _one_hot("state", status.state))
    yield gauge("engine_state_seconds", "Time in the present state.", name, [({}, max(0.0, now_s - status.since_s))])
    yield gauge("generation", "Number of the present launch.", name, [({}, status.generation)])
    yield gauge(
        "start_expected_seconds", "Time that a start usually takes.", name, [({}, status.start_times.expected_s)]
    )
    yield gauge("data_age_seconds", "Age of the newest metrics of the server.", name, [({}, age_s)])
    yield counter("reading_errors", "Readings that a bug in vllmd spoilt.", name, [({}, status.errors)])
    pause = status.pause
    yield gauge(
        "paused", "Whether the operator paused it: no change, no restart.", name, [({}, int(pause is not None))]
    )
    since_s = None if pause is None else pause.at_s
    yield gauge("paused_since_timestamp_seconds", "Unix time when the pause began.", name, [({}, since_s)])
    missing = "Metrics that vllmd reads and the server does not export."
    yield gauge("expected_metrics_missing", missing, name, [({}, len(status.missing_metrics))])


def _decisions(published: Published, now_s: float) -> Iterator[Metric]:
    """Yield what was decided, what came of it, and why nothing was done."""
    status = published.status
    name = status.name
    recent = [r for r in status.decisions[-DECISION_COUNT:] if now_s - r.change.at_s <= DECISION_AGE_S]
    counted = [({"trigger": t, "action": a}, n) for (t, a), n in sorted(published.decisions.items())]
    yield counter("decisions", "Decisions to act or to advise.", name, counted)
    yield gauge(
        "decision_timestamp_seconds",
        "Unix time of each decision of the last 24 hours, 20 at most.",
        name,
        [
            (
                {
                    "id": r.change.id,
                    "trigger": r.change.proposal.trigger,
                    "action": r.change.action.value,
                    "change": change_text(r.change),
                    "reason": r.change.proposal.reason,
                },
                r.change.at_s,
            )
            for r in recent
        ],
    )
    verified = [({"id": r.change.id, "effect": v.effect.value}, 1) for r in recent if (v := r.verification) is not None]
    yield gauge("decision_verification", "Effect of each decision that was verified; always 1.", name, verified)
    effects = [({"effect": effect.value}, published.verifications[effect]) for effect in Effect]
    yield counter("verifications", "Verified decisions by their effect.", name, effects)
    holds = [({"by": reason.value}, status.suppressed.get(reason.value, 0)) for reason in HoldReason]
    yield counter("suppressed", "Decisions to do nothing, by their reason.", name, holds)
    canaries = [({"result": result.value}, status.canaries.get(result.value, 0)) for result in CanaryResult]
    yield counter("canary", "Canaries sent to an idle server, by what became of them.", name, canaries)
    yield counter("launches", "Launches of the server by their cause.", name, _by_cause(status.launches))
    yield counter("outage_seconds", "Time without service by its cause.", name, _by_cause(status.outage_s))


def _flags(status: Status) -> Iterator[Metric]:
    """Yield the flags that may move or have moved; switches as 0 and 1, texts only in the info series."""
    name, flags = status.name, status.flags
    info = [
        (
            {
                "flag": f.name,
                "value": show_value(f.value),
                "baseline": show_value(f.baseline),
                "decision": f.change_id or "",
            },
            1,
        )
        for f in flags
    ]
    off = sum(1 for f in flags if f.value != f.baseline)
    yield gauge("flag_info", "Each flag as text: present and operator's value; always 1.", name, info)
    yield gauge("flags_off_baseline", "Flags that differ from the operator's command.", name, [({}, off)])
    values = [({"flag": f.name}, _effective(f, status)) for f in flags]
    yield gauge("flag_value", "Present value of a flag; absent where neither command nor log say it.", name, values)
    baselines = [({"flag": f.name}, _number(f.baseline)) for f in flags]
    yield gauge("flag_baseline", "Value of a flag in the operator's command; absent where unset.", name, baselines)
    yield gauge("flag_min", "Lower guard of a flag.", name, [({"flag": f.name}, f.low) for f in flags])
    yield gauge("flag_max", "Upper guard of a flag.", name, [({"flag": f.name}, f.high) for f in flags])


def _effective(flag: FlagStatus, status: Status) -> float | None:
    """Return a flag's value as a number: as set, else as the start log told it."""
    if flag.value is None and flag.name == BATCHED_TOKENS and status.start is not None:
        return status.start.batched_tokens
    return _number(flag.value)


def _number(value: FlagValue | None) -> float | None:
    """Return a flag's value as a number; None for a text."""
    match value:
        case bool():
            return float(value)
        case str():
            return parse_number(value)
        case _:
            return None


def _memory(status: Status) -> Iterator[Metric]:
    """Yield the memory of the GPUs and the host, and what the start log said of it."""
    name = status.name
    held: list[Sample] = [
        ({"gpu": str(gpu.index), "kind": kind}, size)
        for gpu in status.gpus or ()
        for kind, size in sizes(gpu, status).items()
    ]
    text = "GPU memory: total, used, free, of ours and of others; parts of the launch on its fullest GPU."
    yield gauge("gpu_memory_bytes", text, name, held)
    host = [({"kind": "total"}, status.host_total_bytes), ({"kind": "free"}, status.host_free_bytes)]
    yield gauge("host_memory_bytes", "Memory of the host.", name, host)
    start = status.start
    if start is None:
        return
    said = {
        "weights": start.weights_bytes,
        "kv_cache": start.kv_cache_bytes,
        "activation": start.activation_bytes,
        "non_torch": start.non_torch_bytes,
        "graphs": start.graphs_bytes,
    }
    parts: list[Sample] = [({"kind": kind}, size) for kind, size in said.items()]
    yield gauge("start_memory_bytes", "Memory of the present launch as its start log told it.", name, parts)


def _slo(status: Status) -> Iterator[Metric]:
    """Yield the targets and what the last window says of them; between bucket edges only bounds are known."""
    targets = () if status.assessment is None else status.assessment.now
    name = status.name
    yield gauge("slo_limit_seconds", "Limit of a target.", name, _each(targets, lambda t: t.target.limit_s))
    objective = "Share of the observations that a target wants within its limit."
    yield gauge("slo_objective_ratio", objective, name, _each(targets, lambda t: t.target.quantile))
    yield gauge(
        "slo_share_ratio",
        "Share of the observations within the limit: bounds.",
        name,
        _bounds((t.target.name, t.share_low, t.share_high) for t in targets),
    )
    yield gauge(
        "slo_quantile_seconds",
        "The target's quantile: bounds.",
        name,
        _bounds((t.target.name, t.quantile_low_s, t.quantile_high_s) for t in targets),
    )
    yield gauge("slo_observations", "Observations in the window.", name, _each(targets, lambda t: t.observations))
    verdicts = [({"slo": t.target.name, **s}, v) for t in targets for s, v in _one_hot("verdict", t.verdict)]
    yield gauge("slo_verdict", "What the window says of a target; 1 for what holds.", name, verdicts)


def _budget(name: str, budget: BudgetStatus) -> Iterator[Metric]:
    """Yield what is left of the budget."""
    left = {
        "restarts_per_hour": (budget.restarts_hour, budget.restarts_hour_limit),
        "restarts_per_day": (budget.restarts_day, budget.restarts_day_limit),
        "crashes": (budget.crashes, budget.crashes_limit),
    }
    samples = [({"budget": kind}, _left(used, limit)) for kind, (used, limit) in left.items()]
    yield gauge("budget_remaining_ratio", "Share of a budget that is left.", name, samples)
    open_ = "Whether the crash breaker is open: no more launches."
    yield gauge("breaker_open", open_, name, [({}, int(budget.breaker_open))])


def _left(used: int, limit: int) -> float:
    """Return the share of a limit that is left; nothing is left of a limit of 0."""
    return max(0.0, 1 - used / limit) if limit > 0 else 0.0


def _by_cause(found: Mapping[str, float]) -> list[Sample]:
    """Return a sample for every cause, those that never came included."""
    causes = dict.fromkeys((*CAUSES, *found))
    return [({"cause": cause}, found.get(cause, 0)) for cause in causes]


def _one_hot(label: str, holds: StrEnum) -> list[Sample]:
    """Return 1 for the member that holds and 0 for every other of its enum."""
    return [({label: member.value}, int(member is holds)) for member in type(holds)]


def _each(targets: Iterable[TargetAssessment], value: Callable[[TargetAssessment], float]) -> list[Sample]:
    """Return one sample a target."""
    return [({"slo": target.target.name}, value(target)) for target in targets]


def _bounds(found: Iterable[tuple[str, float | None, float | None]]) -> list[Sample]:
    """Return the low and the high bound of each target."""
    return [({"slo": n, "bound": b}, v) for n, low, high in found for b, v in (("low", low), ("high", high))]
