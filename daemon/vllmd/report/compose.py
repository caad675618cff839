"""From what the loop knows to one Status."""

import socket
from dataclasses import dataclass

from vllmd import __version__
from vllmd.decide.memory_budget import budget_of
from vllmd.model.decision import Assessment
from vllmd.model.flags import Flags
from vllmd.model.instance import Instance
from vllmd.model.life import ALIVE, Life
from vllmd.model.orders import Pause
from vllmd.model.settings import Bounds
from vllmd.model.snapshot import Snapshot
from vllmd.model.status import BudgetStatus, FlagStatus, LiveStatus, StartFacts, StartProgress, Status
from vllmd.report.journal import Journal


@dataclass(frozen=True, slots=True)
class View:
    """What the loop knows at one moment."""

    at_s: float
    life: Life
    flags: Flags
    snapshot: Snapshot | None
    assessment: Assessment | None
    start: StartFacts
    budget: BudgetStatus
    data_at_s: float | None
    start_times: StartProgress
    errors: int
    failure_log: str | None
    pause: Pause | None = None
    live: LiveStatus | None = None
    pending: tuple[str, ...] = ()
    reload_problem: str | None = None


def compose(instance: Instance, view: View, journal: Journal) -> Status:
    """Return the status. Every text in it is masked."""
    mask, life, snapshot = instance.masker, view.life, view.snapshot
    metrics = snapshot.metrics if snapshot else None
    return Status(
        name=instance.settings.name,
        at_s=view.at_s,
        vllmd_version=__version__,
        state=life.state,
        since_s=life.since_s,
        message=mask.mask(life.message),
        modes=instance.settings.modes,
        generation=life.launch.generation if life.launch else None,
        pid=life.launch.leader.pid if life.launch and life.launch.leader and life.state in ALIVE else None,
        url=instance.url,
        model=mask.mask(instance.command.model) if instance.command.model else None,
        vllm_version=_running_version(instance, life),
        simulated=instance.simulated,
        assessment=view.assessment,
        gpus=snapshot.gpus if snapshot else None,
        host_free_bytes=snapshot.host_free_bytes if snapshot else None,
        host_total_bytes=snapshot.host_total_bytes if snapshot else None,
        start=view.start if life.launch else None,
        flags=_flags(instance, view.flags, journal),
        argv=mask.mask_argv(instance.argv(view.flags)),
        budget=view.budget,
        last_decision=journal.last,
        decisions=journal.decisions,
        last_failure=journal.last_failure,
        data_at_s=view.data_at_s,
        missing_metrics=metrics.missing if metrics else (),
        log_path=life.launch.log_path if life.launch and life.launch.leader else None,
        failure_log=view.failure_log,
        start_times=view.start_times,
        suppressed=dict(journal.suppressed),
        launches=dict(journal.launches),
        outage_s=dict(journal.outage_s),
        canaries=dict(journal.canaries),
        handovers=journal.handovers,
        errors=view.errors,
        problem="; ".join(filter(None, (journal.problem, view.reload_problem))) or None,
        host=socket.gethostname(),
        pause=view.pause,
        live=view.live,
        pending=view.pending,
        memory=budget_of(view.start, snapshot, life.launch) if life.state in ALIVE else None,
    )


def _running_version(instance: Instance, life: Life) -> str | None:
    """Return the version of the server that runs, which may have been launched before vLLM was upgraded."""
    launched = life.launch.vllm if life.launch and life.state in ALIVE else None
    return launched or instance.catalogue.version


def _flags(instance: Instance, flags: Flags, journal: Journal) -> tuple[FlagStatus, ...]:
    """Return the flags that may be moved or that differ from the baseline."""
    guard = instance.settings.guard
    names = dict.fromkeys((*guard.bounds, *flags.differences(instance.baseline)))
    return tuple(_flag(name, instance.baseline, flags, guard.bounds.get(name, Bounds()), journal) for name in names)


def _flag(name: str, baseline: Flags, flags: Flags, bounds: Bounds, journal: Journal) -> FlagStatus:
    setter = journal.setter_of(name) if flags.get(name) != baseline.get(name) else None
    return FlagStatus(
        name=name,
        value=flags.get(name),
        baseline=baseline.get(name),
        low=bounds.low,
        high=bounds.high,
        change_id=setter.id if setter else None,
        since_s=setter.at_s if setter else None,
    )
