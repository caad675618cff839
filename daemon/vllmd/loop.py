"""START HERE. The loop: what was seen goes in, one decision comes out, and what it brought is looked at.

    begin:  the past ─▶ the server that was left is taken over, or the last good flags, or the operator's ─▶ launch
    tick:   snapshot ─▶ window ─▶ assessment ─▶ decision ─▶ plan ─▶ live, or a restart ─▶ outcome ─▶ verification
    event:  the child's end ─▶ failure ─▶ decision ─▶ launch, or held

The loop alone holds what is remembered between ticks. It never waits: a launch or a drain runs as a task of
`ports.Server`, and its end comes back as an event. Everything in `decide` and in the policies is pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import assert_never

from vllmd.decide.assess import assess
from vllmd.decide.diagnose import diagnose
from vllmd.decide.gates import GateFacts, allow, budget_status
from vllmd.decide.latency import decide_latency
from vllmd.decide.launch_failure import failure_of
from vllmd.decide.memory_budget import budget_of
from vllmd.decide.propose import Policy
from vllmd.decide.recover import GOOD_RUN_S, decide_recovery
from vllmd.decide.situation import end_of, situation_of
from vllmd.decide.step_back import decide_step_back
from vllmd.knobs import Knobs
from vllmd.model.decision import (
    Action,
    Assessment,
    Change,
    Domain,
    Effect,
    Hold,
    HoldReason,
    Proposal,
    Situation,
    Verification,
    Wish,
)
from vllmd.model.failure import Failure
from vllmd.model.instance import Instance
from vllmd.model.orders import Forget, Pause
from vllmd.model.server import Exited, Hung, LaunchRefused, Ready, ServerEvent, ServerState, Spawned, StartStalled
from vllmd.model.snapshot import Snapshot, Window
from vllmd.model.status import Status
from vllmd.past import Past, good_before, moved_by_recoveries
from vllmd.pauses import Pauses
from vllmd.ports import Clock
from vllmd.preparing import Preparing
from vllmd.report.compose import View, compose
from vllmd.report.journal import Journal
from vllmd.stall import Stall
from vllmd.supervisor import Next, Refresh, Supervisor
from vllmd.trials import Trials

_WINDOWS = 2.2  # of judge_window are kept: two that must agree, and the readings at their edges
# Holds of the latency targets in which a step back may be tried: nothing is wrong now.
_CALM = frozenset({HoldReason.TARGETS_MET, HoldReason.NO_TARGETS, HoldReason.THIN_EVIDENCE})


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
        self._window = Window(_WINDOWS * supervisor.instance.settings.slo.judge_window_s)
        self._snapshot: Snapshot | None = None
        self._assessment: Assessment | None = None
        self._past = Past()
        self.knobs = Knobs(supervisor, journal, clock)
        self._trials = Trials(supervisor, journal, clock, self._past, self.knobs)
        self._preparing = Preparing(supervisor, journal, clock, self._past, self._trials)
        self.stall = Stall(supervisor, journal, clock)
        self.pauses = Pauses(supervisor, journal, clock)
        self._stop_asked = False
        self.errors = 0  # readings that a bug spoilt
        self.reload_problem: str | None = None  # why the configuration on disk is not the one in force

    @property
    def _instance(self) -> Instance:
        return self.supervisor.instance

    def begin(self, snapshot: Snapshot | None = None) -> None:
        """Go on with the server that an earlier vllmd left, or make the first launch."""
        if snapshot is not None:
            self._snapshot = snapshot
            self.supervisor.note(snapshot)
        window_s = self._instance.settings.budget.breaker_window_s
        self._past.recall(self._journal, self.supervisor.fingerprint, self._instance.baseline, self._now_s, window_s)
        if adopted := self.supervisor.take_over():
            self._trials.lost()
        else:
            change = self._remembered_change()
            self.supervisor.launch(Next(change.flags_after if change else self._instance.baseline, "first", change))
        self._trials.lost_live(adopted=adopted)
        self.tell()

    def tick(self, snapshot: Snapshot) -> None:
        """Take one reading through the whole flow."""
        self._snapshot = snapshot
        self.supervisor.note(snapshot)
        self.supervisor.read_new_lines()
        self.knobs.look()
        self._answer_what_waited(self.pauses.end_in_time())
        self.supervisor.launch_when_due()
        if self.supervisor.life.state is ServerState.SERVING:
            self._window = self._window.with_snapshot(snapshot)
            self._assessment = assess(self._window, self._instance.settings.slo)
            if not self.stall.look(snapshot, hands_off=self.pauses.hands_off, paused=self.pauses.pause is not None):
                self._act_on(self._assessment if snapshot.metrics is not None else None, snapshot.generation)
            if self.supervisor.served_s > GOOD_RUN_S:
                self._past.calmed()
        self.tell()

    def look(self) -> None:
        """Look at a server that is not serving: what its start printed, and whether a waiting launch is due."""
        self.supervisor.read_new_lines()
        self._answer_what_waited(self.pauses.end_in_time())
        self.supervisor.launch_when_due()
        self.tell()

    def on_event(self, told: ServerEvent) -> None:
        """Take in what became of the launch, or of the one beside it. Events of an earlier one say nothing about it."""
        event, launch = self._preparing.sift(told, self._snapshot), self.supervisor.life.launch
        if event is None or launch is None or event.generation != launch.generation:
            self.tell()
            return
        self.supervisor.read_new_lines()
        draining = self.supervisor.life.state is ServerState.DRAINING
        match event:
            case Spawned():
                self.supervisor.spawned(event.leader)
            case Ready() if not draining:
                self._on_ready(event)
            case Ready():
                pass  # it is already being stopped
            case Exited() | StartStalled() | Hung() | LaunchRefused() if draining:
                self.supervisor.stopped()
            case Exited() | StartStalled() | Hung() | LaunchRefused():
                self._on_failure(self.supervisor.own_port(failure_of(event, self.supervisor.phase, self._diagnosed)))
            case _:
                assert_never(event)
        self.tell()

    # The first launch: the past → decision

    def _remembered_change(self) -> Change | None:
        """Return the change from the baseline to the last good flags, None where the baseline is to be launched."""
        baseline, modes = self._instance.baseline, self._instance.settings.modes
        wish = good_before(self._journal, self.supervisor.fingerprint, baseline, modes, self._free_bytes())
        allowed = allow(wish, self._gate_facts()) if wish is not None else None
        if not isinstance(allowed, Proposal):
            return None
        after = baseline.changed(allowed.changes)
        return self._journal.change(Change("", self._now_s, Action.REMEMBER, allowed, baseline, after))

    # Serving: assessment → decision → plan

    def _act_on(self, assessment: Assessment | None, generation: int) -> None:
        if self._preparing.under_way:
            return
        live = self.knobs.hold(self._window.span_s)
        if live is not None:
            self._trials.soak_anew()
        if (ordered := self.pauses.hold() or live) is not None:
            self._journal.hold(ordered, self._now_s)
            return
        if self._trials.look(self._window, generation):
            self._judge_anew()
            return
        decision = self._trials.hold() or self._decided(assessment)
        if isinstance(decision, Hold):
            self._journal.hold(decision, self._now_s)
            return
        change = self._journal.change(decision)
        if change.action is not Action.ADVISE and self._assessment is not None:
            self._trials.begin(change, self._assessment)
            self._judge_anew()

    def _decided(self, assessment: Assessment | None) -> Hold | Change:
        """Return what the latency targets ask for; where they ask for nothing, whether a step back is tried."""
        modes, facts = self._instance.settings.modes, self._gate_facts()
        tuning = replace(facts, barred=frozenset(self._past.visited), barred_values=frozenset(self._past.harmful))
        tuning = self.knobs.beside(tuning)
        situation = replace(self._situation(assessment=assessment), flags=tuning.flags)
        decision = decide_latency(situation, self._policies, tuning, modes.latency, self._journal.advised())
        if isinstance(decision, Hold) and decision.reason in _CALM:
            return decide_step_back(self._situation(), self._policies, facts, modes.memory) or decision
        return decision

    def _on_ready(self, event: Ready) -> None:
        outcome = self.supervisor.ready(event.handover)
        self._settle()
        self._past.visited.add(self.supervisor.flags)
        self._past.served = self.supervisor.flags
        self._judge_anew()
        self._trials.ready(outcome, event.generation)
        self.knobs.look()

    def _judge_anew(self) -> None:
        """Forget the readings of what was in force before."""
        self._window, self._assessment = Window(self._window.span_s), None

    def _settle(self) -> None:
        if self._past.settle(self._journal, self.supervisor.fingerprint, self._instance.baseline):
            self._trials.command_changed()

    # Failures: failure → decision → launch, or held

    def _diagnosed(self, event: Exited | StartStalled) -> Failure:
        supervisor = self.supervisor
        end = end_of(event, supervisor.phase, supervisor.flags, self._instance, self._snapshot)
        return diagnose(supervisor.whole_log(), end, self._instance.masker)

    def _on_failure(self, failure: Failure) -> None:
        self._preparing.give_up(failure.summary)
        self._journal.failure(failure, self._now_s)
        launch = self.supervisor.life.launch
        self._settle()
        self._past.failed(failure, self.supervisor.flags, self._now_s)
        self._past.failure_log = launch.log_path if launch and launch.leader else None
        outcome = self.supervisor.failed()
        if outcome is not None:
            self._journal.verification(Verification(outcome.change.id, self._now_s, Effect.FAILED, failure.summary))
        if not self.pauses.keep_down(failure):
            self._answer(failure)

    def _answer_what_waited(self, failure: Failure | None) -> None:
        if failure is not None:
            self._answer(failure)

    def _answer(self, failure: Failure) -> None:
        """Take back the change that led to it, or decide what follows."""
        if self._trials.taken_back(failure):
            return
        decision = decide_recovery(
            self._situation(failure=failure),
            failure,
            self._policies,
            self._gate_facts(),
            self._instance.settings.modes.memory,
            self._past.record(),
        )
        if isinstance(decision, Hold):
            self._journal.hold(decision, self._now_s)
            self.supervisor.hold(decision.message)
            return
        change = self._journal.change(decision)
        following = Next(change.flags_after, "crash", change, due_s=self._clock.monotonic_s() + change.wait_s)
        self.supervisor.wait(following, f"{change.id}: {change.proposal.reason}")

    # The operator

    def configure(self, instance: Instance, policies: Sequence[Policy], refresh: Refresh) -> None:
        """Take another configuration: limits and targets count at once, the command with the next launch."""
        self.supervisor.configure(instance, refresh)
        self._policies, self.reload_problem = policies, None
        self._window = Window(_WINDOWS * instance.settings.slo.judge_window_s)
        self.tell()

    def not_configured(self, problem: str) -> None:
        """Take note that a configuration could not be taken, and why; all stays as it is."""
        self.reload_problem = problem
        self.tell()

    def stop(self) -> None:
        """Stop the server for good: drained the first time it is asked for, at once the second time."""
        self._preparing.give_up("vllmd is stopped")
        metrics = self._snapshot.metrics if self._snapshot else None
        running = metrics.gauges.get("requests_running") if metrics else None
        self._journal.stopping(running, self._instance.settings.engine.drain_timeout_s, hurried=self._stop_asked)
        if self._stop_asked:
            self.supervisor.kill()
        self._stop_asked = True
        self.supervisor.stop()
        self.tell()

    def restart(self) -> Change | None:
        """Restart the server because the operator asks; return the decision, None where there is nothing to do."""
        state = self.supervisor.life.state
        if state in {ServerState.DRAINING, ServerState.STOPPED}:
            return None
        self._past.calmed()
        self._preparing.give_up("the operator asks for a restart")
        self.pauses.begin_anew()
        self._trials.begin_anew()
        flags = self.supervisor.flags
        proposal = Proposal("admin", Domain.ADMIN, Wish.RETRY_UNCHANGED, "asked for by the operator", trigger="admin")
        change = self._journal.change(Change("", self._now_s, Action.RESTART, proposal, flags, flags))
        if state in {ServerState.SERVING, ServerState.STARTING}:
            self._trials.carry_out(change, "admin")
        else:
            self.supervisor.launch(Next(flags, "admin", change))
        self.tell()
        return change

    def pause(self, pause: Pause) -> None:
        """Change and restart nothing until the pause ends. A start or a drain that runs goes on."""
        self._preparing.give_up(f"paused by {pause.by}")
        self._answer_what_waited(self.pauses.begin(pause))
        self.tell()

    def resume(self, by: str) -> bool:
        """End the pause; return whether there was one. A server that it kept down is recovered."""
        if self.pauses.pause is None:
            return False
        self._answer_what_waited(self.pauses.end(by))
        self.tell()
        return True

    def forget(self, by: str) -> None:
        """Let what was tried before no longer count: the next launch of a new vllmd has the operator's flags."""
        self._journal.order(Forget(self._now_s, by))
        self._past.forget()
        self._trials.way_back.forget()
        self.knobs.unwanted.clear()
        self.tell()

    def clock_was_set(self, by_s: float) -> None:
        """Judge nothing across a moment at which somebody set the clock, by so many seconds."""
        self._window = Window(self._window.span_s)
        self._past.clock_was_set(by_s)
        self._trials.clock_was_set(by_s)
        self.knobs.clock_was_set()

    # What the stages are told

    @property
    def _now_s(self) -> float:
        return self._clock.now_s()

    def _free_bytes(self) -> float | None:
        return self._snapshot.free_bytes if self._snapshot else None

    def _situation(self, failure: Failure | None = None, assessment: Assessment | None = None) -> Situation:
        supervisor, budget = self.supervisor, self._instance.settings.budget
        return situation_of(
            self._instance,
            supervisor.flags,
            supervisor.facts,
            self._snapshot,
            failure=failure,
            assessment=assessment,
            repeats=self._past.repeats(failure) if failure is not None else 0,
            too_low=self._past.too_low,
            quiet=budget.step_back_after_s <= supervisor.served_s and failure is None,
            recovered=moved_by_recoveries(self._journal, supervisor.flags, self._instance.baseline),
        )

    def _gate_facts(self) -> GateFacts:
        settings = self._instance.settings
        return GateFacts(
            self.supervisor.flags,
            settings.guard,
            settings.budget,
            self._instance.catalogue,
            self._now_s,
            tuple(self._past.voluntary_s),
            bans=tuple(self._past.bans),
            served=self._past.served,
            free_bytes=self._free_bytes(),
            memory=budget_of(self.supervisor.facts, self._snapshot, self.supervisor.life.launch),
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
            at_s=self._now_s,
            life=supervisor.life,
            flags=supervisor.flags,
            snapshot=self._snapshot,
            assessment=self._assessment,
            start=supervisor.facts,
            budget=budget_status(self._gate_facts(), crashes_s, breaker_open=held),
            data_at_s=readings[-1].at_s if readings else None,
            start_times=supervisor.start.progress,
            errors=self.errors,
            failure_log=self._past.failure_log,
            pause=self.pauses.pause,
            live=self.knobs.status,
            pending=supervisor.pending,
            reload_problem=self.reload_problem,
        )
        self._publish(compose(self._instance, view, self._journal))
