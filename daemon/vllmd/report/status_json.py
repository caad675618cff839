"""The status document: `vllmd.status/v1`, which the control socket, status.json and `vllmd status` all carry.

Fields are only ever added. Times are RFC 3339 in UTC, units are in the names, ratios 0..1, null is unknown.
"""

import math
from collections.abc import Mapping
from typing import Any

from vllmd.model.decision import Assessment, Change, Hold, Outcome, TargetAssessment, Verdict, Verification
from vllmd.model.failure import Failure
from vllmd.model.flags import show_value
from vllmd.model.handover import Handover
from vllmd.model.orders import Pause
from vllmd.model.server import Phase, ServerState
from vllmd.model.status import BudgetStatus, DecisionRecord, FlagStatus, StartFacts, StartProgress, Status
from vllmd.report.gpu_memory import gpu_document
from vllmd.report.live_json import live_document
from vllmd.report.status_file import SCHEMA
from vllmd.report.wording import moves, rfc3339

Document = dict[str, Any]

# Metrics older than this are not called present: eighteen scrapes of the default interval.
STALE_AFTER_S = 90.0


def status_document(status: Status) -> Document:
    """Return the document of one instance."""
    return {
        "schema": SCHEMA,
        "time": rfc3339(status.at_s),
        "host": status.host or None,
        "vllmd": status.vllmd_version,
        "instances": [_instance(status)],
    }


def health(status: Status) -> str:
    """Return ok, attention, failed or stopped: what the first glyph of the page says."""
    match status.state:
        case ServerState.STOPPED:
            return "stopped"
        case ServerState.HELD:
            return "failed"
        case ServerState.SERVING:
            return "attention" if degraded(status) else "ok"
        case _:
            return "attention"


def degraded(status: Status) -> bool:
    """Whether something is wrong with a server that may well serve: a target, the breaker, blindness, or a pause."""
    slipping = status.assessment is not None and any(t.verdict is Verdict.SLIPPING for t in status.assessment.now)
    age_s = _age_s(status)
    if age_s is None and status.state is ServerState.SERVING:
        age_s = status.at_s - status.since_s  # never read since it serves
    stale = age_s is not None and age_s > STALE_AFTER_S
    hindered = status.budget.breaker_open or status.pause is not None or status.problem is not None
    return slipping or stale or hindered or bool(status.missing_metrics)


def _instance(status: Status) -> Document:
    """Return one element of `instances`."""
    return {
        "name": status.name,
        "state": status.state.value,
        "health": health(status),
        "degraded": degraded(status),
        "mode": {"memory": status.modes.memory.value, "latency": status.modes.latency.value},
        "message": status.message,
        "paused": None if status.pause is None else pause_document(status.pause),
        "live": None if status.live is None else live_document(status.live),
        "problem": status.problem,
        "pending": list(status.pending),
        "generation": status.generation,
        "pid": status.pid,
        "since": rfc3339(status.since_s),
        "url": status.url,
        "model": status.model,
        "vllm": status.vllm_version,
        "simulated": status.simulated,
        "slo": _slo(status.assessment),
        "load": _load(status.assessment),
        "memory": None if status.gpus is None else [gpu_document(gpu, status) for gpu in status.gpus],
        "host_memory": {"total_bytes": status.host_total_bytes, "free_bytes": status.host_free_bytes},
        "start": _start(status.start, status.start_times),
        "flags": [_flag(flag) for flag in status.flags],
        "argv": list(status.argv),
        "budget": _budget(status.budget),
        "data": {"age_seconds": _age_s(status), "missing_metrics": list(status.missing_metrics)},
        "last_decision": _last_decision(status),
        "decisions": [decision_document(status.name, record) for record in status.decisions],
        "last_failure": failure_document(status.last_failure, status.failure_log),
        "log": status.log_path,
        "outage_seconds": dict(status.outage_s),
        "launches": dict(status.launches),
        "holds": dict(status.suppressed),
    }


def pause_document(pause: Pause) -> Document:
    """Return a pause; a null end is that of `vllmd resume`."""
    return {
        "since": rfc3339(pause.at_s),
        "until": None if pause.until_s is None else rfc3339(pause.until_s),
        "by": pause.by,
        "reason": pause.reason or None,
        "keep_recovery": pause.keeps_recovery,
    }


def _slo(assessment: Assessment | None) -> list[Document]:
    """Return the targets; none before the first assessment."""
    return [] if assessment is None else [_target(target) for target in assessment.now]


def _target(found: TargetAssessment) -> Document:
    """Return one target. Between bucket edges only bounds are known; a null high bound is beyond the last edge."""
    return {
        "name": found.target.name,
        "objective": found.target.quantile,
        "threshold_seconds": found.target.limit_s,
        "now_low_seconds": _finite(found.quantile_low_s),
        "now_high_seconds": _finite(found.quantile_high_s),
        "attained_low": _finite(found.share_low),
        "attained_high": _finite(found.share_high),
        "observations": found.observations,
        "verdict": found.verdict.value,
    }


def _load(assessment: Assessment | None) -> Document | None:
    """Return what is asked of the server; null before it is known."""
    load = None if assessment is None else assessment.load
    if load is None:
        return None
    return {
        "running": load.running,
        "waiting": load.waiting,
        "requests_per_second": load.requests_per_s,
        "prompt_tokens_per_second": load.prompt_tokens_per_s,
        "generation_tokens_per_second": load.generation_tokens_per_s,
        "kv_cache_usage": load.kv_cache_usage,
    }


def _start(start: StartFacts | None, times: StartProgress) -> Document:
    """Return what the start log said, and how long its phases took."""
    facts = StartFacts() if start is None else start
    return {
        "phase": facts.phase,
        "expected_seconds": times.expected_s,
        "phases": [
            {
                "phase": phase,
                "seconds": times.took_s.get(phase),
                "expected_seconds": times.expected_by_phase_s.get(phase),
            }
            for phase in Phase
            if phase in times.took_s or phase in times.expected_by_phase_s
        ],
        "weights_bytes": facts.weights_bytes,
        "kv_cache_bytes": facts.kv_cache_bytes,
        "kv_cache_tokens": facts.kv_cache_tokens,
        "activation_bytes": facts.activation_bytes,
        "non_torch_bytes": facts.non_torch_bytes,
        "graphs_bytes": facts.graphs_bytes,
        "batched_tokens": facts.batched_tokens,
    }


def _flag(flag: FlagStatus) -> Document:
    """Return one flag; values as an operator writes them, null where the command does not set it."""
    return {
        "name": flag.name,
        "value": None if flag.value is None else show_value(flag.value),
        "baseline": None if flag.baseline is None else show_value(flag.baseline),
        "min": flag.low,
        "max": flag.high,
        "decision": flag.change_id,
        "since": None if flag.since_s is None else rfc3339(flag.since_s),
    }


def _budget(budget: BudgetStatus) -> Document:
    """Return what is used of the budget."""
    return {
        "restarts_hour": {"used": budget.restarts_hour, "limit": budget.restarts_hour_limit},
        "restarts_day": {"used": budget.restarts_day, "limit": budget.restarts_day_limit},
        "crashes": {"used": budget.crashes, "limit": budget.crashes_limit},
        "breaker": "open" if budget.breaker_open else "closed",
    }


def _age_s(status: Status) -> float | None:
    """Return how old the newest metrics are."""
    return None if status.data_at_s is None else max(0.0, status.at_s - status.data_at_s)


def _last_decision(status: Status) -> Document | None:
    """Return the last decision: a hold, or a change with what came of it."""
    match status.last_decision:
        case None:
            return None
        case Hold() as hold:
            return hold_document(status.name, hold)
        case Change() as change:
            known = (r for r in reversed(status.decisions) if r.change.id == change.id)
            return decision_document(status.name, next(known, DecisionRecord(change)))


def hold_document(instance: str, hold: Hold) -> Document:
    """Return the decision to do nothing."""
    return {
        "id": None,
        "time": None,
        "instance": instance,
        "action": "hold",
        "reason": hold.reason.value,
        "message": hold.message,
        "until": None if hold.until_s is None else rfc3339(hold.until_s),
        "trigger": None,
        "changes": [],
    }


def decision_document(instance: str, record: DecisionRecord) -> Document:
    """Return a change with its outcome and verification; null where there is none yet."""
    change, outcome = record.change, record.outcome
    return {
        "id": change.id,
        "time": rfc3339(change.at_s),
        "instance": instance,
        "action": change.action.value,
        "reason": change.proposal.policy,
        "message": change.proposal.reason,
        "trigger": change.proposal.trigger or None,
        "domain": change.proposal.domain.value,
        "changes": [{"flag": move.flag, "from": move.before, "to": move.after} for move in moves(change)],
        "numbers": _finite_all(change.proposal.numbers),
        "outage_seconds": None if outcome is None else outcome.outage_s,
        "outcome": _outcome(outcome),
        "verification": _verification(record.verification),
    }


def _outcome(outcome: Outcome | None) -> Document | None:
    """Return what the actuator did."""
    if outcome is None:
        return None
    return {
        "generation": outcome.generation,
        "served": outcome.served,
        "outage_seconds": outcome.outage_s,
        "start_seconds": dict(outcome.took_s),
        "restart": None if outcome.handover is None else handover_document(outcome.handover),
    }


def handover_document(handover: Handover) -> Document:
    """Return how connections came over a restart; null is unknown, `plain` why they could not wait."""
    return {
        "kind": handover.kind.value,
        "plain": handover.plain or None,
        "connections_held": handover.held,
        "most_held_at_once": handover.most_held,
        "longest_wait_seconds": handover.longest_wait_s,
        "requests_cut": handover.cut,
        "requests_refused": handover.refused,
    }


def _verification(found: Verification | None) -> Document | None:
    """Return what a change brought."""
    if found is None:
        return None
    return {
        "time": rfc3339(found.at_s),
        "effect": found.effect.value,
        "message": found.message,
        "before": _finite(found.before),
        "after": _finite(found.after),
    }


def failure_document(failure: Failure | None, log: str | None) -> Document | None:
    """Return the last diagnosed end of a launch, and its log."""
    if failure is None:
        return None
    evidence = failure.evidence
    return {
        "class": failure.kind.value,
        "phase": failure.phase.value,
        "generation": failure.generation,
        "summary": failure.summary,
        "evidence": None if evidence is None else {"line": evidence.line, "text": evidence.text},
        "exit_code": failure.exit_code,
        "numbers": _finite_all(failure.numbers),
        "log": log,
    }


def _finite(number: float | None) -> float | None:
    """Return a number that JSON can hold."""
    return number if number is not None and math.isfinite(number) else None


def _finite_all(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """Return numbers that JSON can hold."""
    return {name: _finite(value) for name, value in numbers.items()}
