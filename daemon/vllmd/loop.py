"""START HERE. The loop: what was seen goes in, one decision comes out, and what it brought is looked at.

    tick:   snapshot ─▶ window ─▶ assessment ─▶ decision ─▶ plan ─▶ drained restart ─▶ outcome ─▶ verification
    event:  the child's end ─▶ failure ─▶ decision ─▶ launch, or held

The loop alone holds what is remembered between ticks. It never waits: a launch or a drain runs as a task of
`ports.Server`, and its end comes back as an event. Everything in `decide` and in the policies is pure.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from vllmd.decide.assess import assess
from vllmd.decide.diagnose import diagnose
from vllmd.decide.gates import GateFacts, budget_status
from vllmd.decide.latency import decide_latency
from vllmd.decide.plan import plan_of
from vllmd.decide.propose import Policy
from vllmd.decide.recover import GOOD_RUN_S, CrashRecord, decide_recovery
from vllmd.decide.situation import end_of, situation_of
from vllmd.decide.verify import Trial, verify
from vllmd.model.decision import (
    Action,
    Assessment,
    Change,
    Domain,
    Effect,
    Hold,
    HoldReason,
    Outcome,
    Proposal,
    Situation,
    Verification,
    Wish,
)
from vllmd.model.failure import OF_FLAGS, Failure, FailureClass
from vllmd.model.flags import UTILIZATION, Flags, FlagValue
from vllmd.model.instance import Instance
from vllmd.model.server import Exited, LaunchRefused, Ready, ServerEvent, ServerState, Spawned, StartStalled
from vllmd.model.snapshot import Snapshot, Window
from vllmd.model.status import Status
from vllmd.ports import Clock
from vllmd.report.compose import View, compose
from vllmd.report.journal import Journal
from vllmd.report.wording import change_text
from vllmd.supervisor import Next, Supervisor

_DAY_S = 86400.0
_POOL_TOO_SMALL = frozenset({FailureClass.UTILIZATION_TOO_LOW, FailureClass.MAX_MODEL_LEN_TOO_LONG})
# What a launch that was not begun failed with, by LaunchRefused's kind.
_REFUSALS = {
    "port-taken": (FailureClass.PORT_IN_USE, ""),
    "stop-failed": (FailureClass.GPU_MEMORY_TAKEN, "own-leftover"),
}


@dataclass(slots=True)
class Past:
    """What the loop remembers; times in unix seconds."""

    voluntary_s: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    crashes: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=100))
    in_a_row: int = 0  # failures since the last good run
    visited: set[Flags] = field(default_factory=set)  # flags that were run
    barred: set[Flags] = field(default_factory=set)  # flags that a launch failed with, for reasons of theirs
    harmful: set[tuple[str, FlagValue | None]] = field(default_factory=set)  # values that latency changes took back
    served: Flags | None = None  # the last flags that served
    too_low: float | None = None  # a utilization at which the KV pool was too small
    failure_log: str | None = None  # of the launch that failed last, None if it had no process
    frozen_until_s: float = 0.0  # no latency change before: the last one could not be verified


class Loop:
    """Keeps one server serving, inside its memory and its targets."""

    def __init__(
        self,
        supervisor: Supervisor,
        journal: Journal,
        clock: Clock,
        policies: Sequence[Policy],
        publish: Callable[[Status], None],
    ) -> None:
        self.supervisor = supervisor
        self._journal = journal
        self._clock = clock
        self._policies = policies
        self._publish = publish
        self._window = Window(2.2 * supervisor.instance.settings.slo.judge_window_s)
        self._snapshot: Snapshot | None = None
        self._assessment: Assessment | None = None
        self._trial: Trial | None = None
        self._stop_asked = False
        self.errors = 0  # readings that a bug spoilt
        self._past = Past(
            voluntary_s=deque(journal.voluntary_since(clock.now_s() - _DAY_S), maxlen=100), harmful=journal.harmful()
        )

    @property
    def _instance(self) -> Instance:
        return self.supervisor.instance

    def begin(self) -> None:
        """Make the first launch."""
        self.supervisor.launch(Next(self._instance.baseline, "first"))
        self.tell()

    def tick(self, snapshot: Snapshot) -> None:
        """Take one reading through the whole flow."""
        self._snapshot = snapshot
        self.supervisor.read_new_lines()
        self.supervisor.launch_when_due()
        if self.supervisor.life.state is ServerState.SERVING:
            self._window = self._window.with_snapshot(snapshot)
            self._assessment = assess(self._window, self._instance.settings.slo)
            if not self._verified():
                self._act_on(self._assessment if snapshot.metrics is not None else None)
            if self._clock.now_s() - self.supervisor.life.since_s > GOOD_RUN_S:
                self._past.in_a_row = 0
                self._past.crashes.clear()
        self.tell()

    def look(self) -> None:
        """Look at a server that is not serving: what its start printed, and whether a waiting launch is due."""
        self.supervisor.read_new_lines()
        self.supervisor.launch_when_due()
        self.tell()

    def on_event(self, event: ServerEvent) -> None:
        """Take in what became of the launch. Events of an earlier one say nothing about this one."""
        launch = self.supervisor.life.launch
        if launch is None or event.generation != launch.generation:
            return
        self.supervisor.read_new_lines()
        draining = self.supervisor.life.state is ServerState.DRAINING
        match event:
            case Spawned():
                self.supervisor.spawned(event.leader)
            case Ready() if not draining:
                self._on_ready(self.supervisor.ready())
            case Ready():
                pass  # it is already being stopped
            case Exited() | StartStalled() | LaunchRefused() if draining:
                self.supervisor.stopped()
            case Exited() | StartStalled() | LaunchRefused():
                self._on_failure(self._failure_of(event))
            case _:
                assert_never(event)
        self.tell()

    # Latency: assessment → decision → plan

    def _act_on(self, assessment: Assessment | None) -> None:
        if self._trial is not None:
            until_s = self._trial.serving_since_s + self._instance.settings.budget.soak_s
            text = f"{self._trial.change.id} is being verified"
            self._journal.hold(Hold(HoldReason.VERIFYING, text, until_s), self._clock.now_s())
            return
        if self._clock.now_s() < self._past.frozen_until_s:
            text = "the last change could not be verified, so no other is made on top of it"
            self._journal.hold(Hold(HoldReason.COOLDOWN, text, self._past.frozen_until_s), self._clock.now_s())
            return
        settings, barred = self._instance.settings, self._past.visited | self._past.barred
        decision = decide_latency(
            self._situation(assessment=assessment),
            self._policies,
            self._gate_facts(frozenset(barred), latency=True),
            settings.modes.latency,
            self._journal.advised(),
        )
        if isinstance(decision, Hold):
            self._journal.hold(decision, self._clock.now_s())
            return
        change = self._journal.change(decision)
        if change.action is Action.RESTART and assessment is not None:
            self._past.voluntary_s.append(change.at_s)
            self._trial = Trial(change, assessment, serving_since_s=float("inf"))
            self._carry_out(change, "change")

    def _carry_out(self, change: Change, cause: str) -> None:
        plan = plan_of(change)
        message = f"{change.id}: draining, then a launch with {change_text(change)}"
        self.supervisor.restart(Next(plan.target, cause, change, plan.fallback), message)

    # Verification: what the change brought, and the way back

    def _on_ready(self, outcome: Outcome | None) -> None:
        self._past.visited.add(self.supervisor.flags)
        self._past.served = self.supervisor.flags
        self._window, self._assessment = Window(self._window.span_s), None
        now_s = self._clock.now_s()
        if self._trial is not None:
            self._trial = replace(self._trial, serving_since_s=now_s)
        elif outcome is not None and outcome.change.action in {Action.RECOVER, Action.ROLLBACK, Action.RETRY}:
            text = f"serving again as generation {outcome.generation}"
            self._journal.verification(Verification(outcome.change.id, now_s, Effect.SERVING, text))

    def _verified(self) -> bool:
        """Look at the change under verification; return whether it is being taken back."""
        if self._trial is None:
            return False
        slo, budget = self._instance.settings.slo, self._instance.settings.budget
        verification = verify(self._trial, self._window, slo, budget.soak_s, self._clock.now_s())
        if verification is None:
            return False
        change, self._trial = self._trial.change, None
        self._journal.verification(verification)
        if verification.effect is Effect.UNKNOWN:
            self._past.frozen_until_s = verification.at_s + _DAY_S
        if verification.effect is not Effect.WORSE:
            return False
        self._past.harmful.update(change.proposal.changes.items())
        self._carry_out(self._rollback_of(change, verification.message), "rollback")
        return True

    def _rollback_of(self, change: Change, why: str) -> Change:
        undo = {name: old for name, (old, _) in change.flags_after.differences(change.flags_before).items()}
        proposal = Proposal(
            "rollback",
            change.proposal.domain,
            Wish.CHANGE_FLAGS,
            f"{change.id} did harm: {why}",
            undo,
            trigger=change.proposal.trigger,
        )
        now_s = self._clock.now_s()
        rollback = Change("", now_s, Action.ROLLBACK, proposal, self.supervisor.flags, change.flags_before)
        return self._journal.change(rollback)

    # Failures: failure → decision → launch, or held

    def _failure_of(self, event: Exited | StartStalled | LaunchRefused) -> Failure:
        generation, phase = event.generation, self.supervisor.phase
        match event:
            case LaunchRefused():
                kind, cause = _REFUSALS.get(event.kind, (FailureClass.INFRA_FAULT, event.kind))
                return Failure(kind, phase, generation, event.reason, cause=cause)
            case StartStalled():
                found = self._diagnosed(event)
                if found.kind not in {FailureClass.NONE, FailureClass.HANG}:
                    return found
                text = f"the start showed no progress for {event.silent_s:.0f} s and was ended ({phase})"
                return Failure(FailureClass.HANG, phase, generation, text)
            case Exited():
                return self._diagnosed(event)

    def _diagnosed(self, event: Exited | StartStalled) -> Failure:
        supervisor = self.supervisor
        end = end_of(event, supervisor.phase, supervisor.flags, self._instance, self._snapshot)
        return diagnose(supervisor.whole_log(), end, self._instance.masker)

    def _on_failure(self, failure: Failure) -> None:
        now_s, flags = self._clock.now_s(), self.supervisor.flags
        self._journal.failure(failure, now_s)
        launch = self.supervisor.life.launch
        self._past.failure_log = launch.log_path if launch and launch.leader else None
        self._past.crashes.append((now_s, failure.kind))
        self._past.in_a_row += 1
        if failure.kind in OF_FLAGS:
            self._past.barred.add(flags)
        if failure.kind in _POOL_TOO_SMALL and "available_bytes" in failure.numbers:
            self._past.too_low = flags.number(UTILIZATION) or failure.numbers.get("utilization")
        outcome = self.supervisor.failed()
        if outcome is not None:
            self._journal.verification(Verification(outcome.change.id, now_s, Effect.FAILED, failure.summary))
        if self._taken_back(failure):
            return
        decision = decide_recovery(
            self._situation(failure=failure),
            failure,
            self._policies,
            self._gate_facts(frozenset(self._past.barred)),
            self._instance.settings.modes.memory,
            CrashRecord(self._past.in_a_row, tuple(self._past.crashes)),
        )
        if isinstance(decision, Hold):
            self._journal.hold(decision, now_s)
            self.supervisor.hold(decision.message)
            return
        change = self._journal.change(decision)
        following = Next(change.flags_after, "crash", change, due_s=self._clock.monotonic_s() + change.wait_s)
        self.supervisor.wait(following, f"{change.id}: {change.proposal.reason}")

    def _taken_back(self, failure: Failure) -> bool:
        """Return to the flags before a latency change that did not come to serve, or that failed while it soaked."""
        if self._trial is None:
            return False
        never_served = self._trial.serving_since_s == float("inf")
        if not never_served and failure.kind not in OF_FLAGS:
            return False  # the host's fault: the same flags again, and the soak begins anew
        change, self._trial = self._trial.change, None
        self._past.harmful.update(change.proposal.changes.items())
        if not never_served:
            verification = Verification(change.id, self._clock.now_s(), Effect.FAILED, failure.summary)
            self._journal.verification(verification)
        rollback = self._rollback_of(change, failure.summary)
        self.supervisor.wait(Next(rollback.flags_after, "rollback", rollback), f"{rollback.id}: {failure.summary}")
        return True

    # The operator

    def stop(self) -> None:
        """Stop the server for good: drained the first time it is asked for, at once the second time."""
        metrics = self._snapshot.metrics if self._snapshot else None
        running = metrics.gauges.get("requests_running") if metrics else None
        self._journal.stopping(running, self._instance.settings.engine.drain_timeout_s, hurried=self._stop_asked)
        if self._stop_asked:
            self.supervisor.kill()
        self._stop_asked = True
        self.supervisor.stop()
        self.tell()

    def restart(self) -> str:
        """Restart the server because the operator asks; return in one line what is done."""
        state = self.supervisor.life.state
        if state in {ServerState.DRAINING, ServerState.STOPPED}:
            return f"nothing to do: the server is {state}"
        self._past.in_a_row = 0
        self._past.crashes.clear()
        if self._trial is not None:
            self._trial = replace(self._trial, serving_since_s=float("inf"))  # the soak begins anew
        flags = self.supervisor.flags
        proposal = Proposal("admin", Domain.ADMIN, Wish.RETRY_UNCHANGED, "asked for by the operator", trigger="admin")
        change = self._journal.change(Change("", self._clock.now_s(), Action.RESTART, proposal, flags, flags))
        if state in {ServerState.SERVING, ServerState.STARTING}:
            self._carry_out(change, "admin")
        else:
            self.supervisor.launch(Next(flags, "admin", change))
        self.tell()
        return self.supervisor.life.message

    # What the stages are told

    def _situation(self, failure: Failure | None = None, assessment: Assessment | None = None) -> Situation:
        same = [kind for _, kind in self._past.crashes if failure is not None and kind == failure.kind]
        return situation_of(
            self._instance,
            self.supervisor.flags,
            self.supervisor.facts,
            self._snapshot,
            failure=failure,
            assessment=assessment,
            repeats=max(0, len(same) - 1),
            too_low=self._past.too_low,
        )

    def _gate_facts(self, barred: frozenset[Flags], *, latency: bool = False) -> GateFacts:
        settings = self._instance.settings
        return GateFacts(
            self.supervisor.flags,
            settings.guard,
            settings.budget,
            self._instance.catalogue,
            self._clock.now_s(),
            tuple(self._past.voluntary_s),
            barred,
            frozenset(self._past.harmful) if latency else frozenset(),
            self._past.served,
        )

    def tell(self) -> None:
        """Publish the present status."""
        readings, supervisor = self._window.snapshots, self.supervisor
        crashes_s = [t for t, _ in self._past.crashes]
        last = self._journal.last
        held = (
            supervisor.life.state is ServerState.HELD and isinstance(last, Hold) and last.reason is HoldReason.BREAKER
        )
        view = View(
            at_s=self._clock.now_s(),
            life=supervisor.life,
            flags=supervisor.flags,
            snapshot=self._snapshot,
            assessment=self._assessment,
            start=supervisor.facts,
            budget=budget_status(self._gate_facts(frozenset()), crashes_s, breaker_open=held),
            data_at_s=readings[-1].at_s if readings else None,
            expected_start_s=supervisor.start_s,
            errors=self.errors,
            failure_log=self._past.failure_log,
        )
        self._publish(compose(self._instance, view, self._journal))
