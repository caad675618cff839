"""Trials: a voluntary change is watched for its soak, found good, or taken back."""

from dataclasses import replace

from vllmd.decide.plan import plan_of
from vllmd.decide.verify import Trial, verify
from vllmd.knobs import Knobs
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
    Verification,
    Wish,
)
from vllmd.model.failure import OF_FLAGS, Failure, FailureClass
from vllmd.model.server import ServerState
from vllmd.model.snapshot import Window
from vllmd.past import Past
from vllmd.ports import Clock
from vllmd.report.journal import Journal
from vllmd.report.wording import change_text
from vllmd.supervisor import Next, Supervisor
from vllmd.way_back import WayBack

_ROLLBACK = "rollback"  # who wishes that a change is taken back, where a policy's name stands

_NEVER_S = float("inf")
_FREEZE_S = 86400.0  # no latency change on top of one that could not be verified
_RECOVERIES = frozenset({Action.RECOVER, Action.ROLLBACK, Action.RETRY, Action.REMEMBER})
# How a server ends whose scheduler cannot live with a value. Of what speaks against the flags of the launch, or for
# somebody else's doing, a value below the launched one is innocent.
_OF_A_LIVE_VALUE = frozenset({FailureClass.HANG, FailureClass.INFRA_FAULT, FailureClass.CLEAN_EXIT})
_HARM = frozenset({Effect.WORSE, Effect.FAILED})


class Trials:
    """Carries a voluntary change out, verifies it, and goes back where it did harm. One at a time."""

    def __init__(self, supervisor: Supervisor, journal: Journal, clock: Clock, past: Past, knobs: Knobs) -> None:
        self._supervisor = supervisor
        self._journal = journal
        self._clock = clock
        self._past = past
        self._knobs = knobs
        self._trial: Trial | None = None
        self.way_back = WayBack(supervisor, journal, clock)
        self._frozen_until_s = 0.0

    def hold(self) -> Hold | None:
        """Return why no other change may be made now; None if one may."""
        if self._trial is not None:
            until_s = self._trial.serving_since_s + self._supervisor.instance.settings.budget.soak_s
            return Hold(HoldReason.VERIFYING, f"{self._trial.change.id} is being verified", until_s)
        if self._clock.now_s() < self._frozen_until_s:
            text = "the last change could not be verified, so no other is made on top of it"
            return Hold(HoldReason.COOLDOWN, text, self._frozen_until_s)
        return None

    def begin(self, change: Change, assessment: Assessment) -> None:
        """Carry a change out, in the running server or with a restart, and watch what it brings."""
        if change.action is Action.LIVE:
            self._set_live(change)
            self._trial = Trial(change, assessment, self._clock.now_s(), cold=False)
            return
        self._past.voluntary_s.append(change.at_s)
        self._trial = Trial(change, assessment, serving_since_s=_NEVER_S)
        self.carry_out(change, "change")
        if self._supervisor.candidate is None:
            self.makes_room(change)

    def makes_room(self, change: Change) -> None:
        """Take note that the server is drained for a change: its launch has what it moves, instead of a live value."""
        if change.action is Action.RESTART and change.proposal.domain is Domain.LATENCY:
            self._knobs.hand_over(change)

    def _set_live(self, change: Change) -> None:
        """Set what a change moves in the server that serves: nobody waits for it."""
        launch, now_s = self._supervisor.life.launch, self._clock.now_s()
        self._knobs.take(change)
        if launch is not None:
            self._journal.outcome(Outcome(change, launch.generation, served=True, outage_s=0.0), now_s)

    def carry_out(self, change: Change, cause: str) -> None:
        """Drain the server, then launch it with the flags of a change."""
        plan = plan_of(change)
        message = f"{change.id}: draining, then a launch with {change_text(change)}"
        self._supervisor.restart(Next(plan.target, cause, change, plan.fallback), message)

    def begin_anew(self) -> None:
        """Let the soak begin anew, since the server is restarted for another reason."""
        if self._trial is not None:
            self._trial = replace(self._trial, serving_since_s=_NEVER_S)

    def called_off(self, change: Change, *, failed: bool) -> None:
        """Take note that a change was not carried out: its flags `failed` beside the server, or it was given up.

        The soak of another one, which was to be restarted, begins now. A way back that was given up is gone
        as soon as it can be.
        """
        if change.action is Action.ROLLBACK and not failed:
            self.way_back.owe(change)
        if self._trial is not None and self._trial.change.id != change.id:
            self._trial = replace(self._trial, serving_since_s=self._clock.now_s())
            return
        self._trial = None
        if failed and change.action is Action.RESTART and change.proposal.domain is Domain.LATENCY:
            self._past.harmful.update(change.proposal.changes.items())

    def clock_was_set(self, by_s: float) -> None:
        """Let a soak begin anew, since spans across that moment mean nothing; a freeze lasts as long as it was to."""
        self._frozen_until_s += by_s
        self.soak_anew()

    def soak_anew(self) -> None:
        """Let a soak that is under way begin now: what was served before is no evidence about the change."""
        self._give_up_what_fell()
        if self._trial is not None and self._trial.serving_since_s != _NEVER_S:
            self._trial = replace(self._trial, serving_since_s=self._clock.now_s())

    def command_changed(self) -> None:
        """Give a trial up: the flags before it were moved from a command that is the operator's no more."""
        if self._trial is None:
            return
        self._give_up(self._trial, "the operator's command changed meanwhile")

    def _give_up(self, trial: Trial, why: str) -> None:
        self._trial = None
        self._journal.verification(Verification(trial.change.id, self._clock.now_s(), Effect.UNKNOWN, why))

    def _give_up_what_fell(self) -> None:
        """Give up a live change that stands no more: the operator ended it, or it cannot be reached."""
        trial = self._trial
        if trial is not None and trial.change.action is Action.LIVE and not self._knobs.stands(trial.change):
            self._give_up(trial, "what it set stands no more")

    def lost_live(self, *, adopted: bool) -> None:
        """Take note of live changes that an earlier vllmd did not come to verify, or did not come to take back.

        The server that was taken over keeps what was not verified, as it keeps such flags; a new one does not get it.
        """
        for record in self._journal.decisions:
            change, found = record.change, record.verification
            if not _tries_live(change):
                continue
            now_s, stands, text = self._clock.now_s(), self._knobs.stands(change), "vllmd ended while it was verified"
            if found is None:
                self._journal.verification(Verification(change.id, now_s, Effect.UNKNOWN, text))
                self._frozen_until_s = now_s + _FREEZE_S if stands and adopted else self._frozen_until_s
            if stands and ((found is None and not adopted) or (found is not None and found.effect in _HARM)):
                why = f"did harm: {found.message}" if found is not None else "was not verified"
                self._take_back_live(change, why)

    def lost(self) -> None:
        """Take note of what an earlier vllmd did not live to see, while the server served on."""
        self.way_back.lost()
        record = self._journal.unfinished(self._supervisor.flags)
        if record is None or record.change.action is not Action.RESTART:
            return
        domain, now_s = record.change.proposal.domain, self._clock.now_s()
        if domain is Domain.ADMIN:
            return
        text = "vllmd ended while it was being verified"
        self._journal.verification(Verification(record.change.id, now_s, Effect.UNKNOWN, text))
        if domain is Domain.LATENCY:
            self._frozen_until_s = now_s + _FREEZE_S

    def ready(self, outcome: Outcome | None, generation: int) -> None:
        """Take note that a launch serves: its soak begins, or its flags are good."""
        now_s = self._clock.now_s()
        if self._trial is not None:
            self._trial = replace(self._trial, serving_since_s=now_s, cold=True)
            if self._trial.change.action is not Action.LIVE:
                return
        self._journal.good(generation, now_s)
        if outcome is not None and outcome.change.action in _RECOVERIES:
            text = f"serving again as generation {outcome.generation}"
            self._journal.verification(Verification(outcome.change.id, now_s, Effect.SERVING, text))

    def look(self, window: Window, generation: int) -> bool:
        """Look at the change under verification; return whether it is being taken back."""
        if (owed := self.way_back.due()) is not None:
            self.carry_out(owed, "rollback")
            return True
        self._give_up_what_fell()
        trial = self._trial
        if trial is None:
            return False
        change, live = trial.change, trial.change.action is Action.LIVE
        verification = self._verification(trial, window)
        if verification is None:
            return False
        self._trial = None
        self._journal.verification(verification)
        if verification.effect is Effect.UNKNOWN:
            self._frozen_until_s = verification.at_s + _FREEZE_S
        if verification.effect is not Effect.WORSE:
            if not live:
                self._journal.good(generation, verification.at_s)
            return False
        self._past.harmful.update(change.proposal.changes.items())
        if live:
            self._take_back_live(change, f"did harm: {verification.message}")
        else:
            self.carry_out(self._rollback_of(change, f"did harm: {verification.message}"), "rollback")
        return True

    def taken_back(self, failure: Failure) -> bool:
        """Return to the flags before a change that did not come to serve, or that failed while it soaked."""
        if self._trial is None:
            return False
        if self._trial.change.action is Action.LIVE:
            self._blame(self._trial, failure)
            return False  # the launch is as it was: what follows is the recovery's to say
        never_served = self._trial.serving_since_s == _NEVER_S
        if not never_served and failure.kind not in OF_FLAGS:
            return False  # the host's fault: the same flags again, and the soak begins anew
        change, self._trial = self._trial.change, None
        if change.proposal.domain is Domain.LATENCY:
            self._past.harmful.update(change.proposal.changes.items())
        if not never_served:
            verification = Verification(change.id, self._clock.now_s(), Effect.FAILED, failure.summary)
            self._journal.verification(verification)
        rollback = self._rollback_of(change, f"did harm: {failure.summary}")
        message = f"{rollback.id}: {failure.summary}"
        self._supervisor.wait(Next(rollback.flags_after, "rollback", rollback), message)
        return True

    def _blame(self, trial: Trial, failure: Failure) -> None:
        """Give up a live value under which the server failed, where the value may be why; else it soaks anew."""
        if failure.kind not in _OF_A_LIVE_VALUE or trial.serving_since_s == _NEVER_S:
            self.begin_anew()
            return
        change, self._trial = trial.change, None
        self._past.harmful.update(change.proposal.changes.items())
        self._journal.verification(Verification(change.id, self._clock.now_s(), Effect.FAILED, failure.summary))
        self._take_back_live(change, f"did harm: {failure.summary}")

    def _take_back_live(self, change: Change, why: str) -> None:
        """Set what was in force before a live change: in the server that serves, or in the next that does."""
        rollback, serves = self._rollback_of(change, why), self._supervisor.life.state is ServerState.SERVING
        if serves:
            self._set_live(rollback)
        else:
            self._knobs.take(rollback)
        text = "in force again" if serves else "in force again once the server serves"
        self._journal.verification(Verification(rollback.id, self._clock.now_s(), Effect.SERVING, text))

    def _verification(self, trial: Trial, window: Window) -> Verification | None:
        settings, now_s = self._supervisor.instance.settings, self._clock.now_s()
        soak_s = settings.budget.soak_s
        if trial.change.proposal.domain is Domain.LATENCY:
            return verify(trial, window, settings.slo, soak_s, now_s)
        if now_s - trial.serving_since_s < soak_s:
            return None
        text = f"served {soak_s / 60:g} min without a failure"
        return Verification(trial.change.id, now_s, Effect.SERVING, text)

    def _rollback_of(self, change: Change, why: str) -> Change:
        """Decide to go back: live from what was set live, else with a launch."""
        undo = {name: old for name, (old, _) in change.flags_after.differences(change.flags_before).items()}
        proposal = Proposal(
            _ROLLBACK,
            change.proposal.domain,
            Wish.CHANGE_FLAGS,
            f"{change.id} {why}",
            undo,
            trigger=change.proposal.trigger,
        )
        live = change.action is Action.LIVE
        action, flags = (Action.LIVE, change.flags_after) if live else (Action.ROLLBACK, self._supervisor.flags)
        return self._journal.change(Change("", self._clock.now_s(), action, proposal, flags, change.flags_before))


def _tries_live(change: Change) -> bool:
    """Whether a change is a live one that is to be verified: no order of the operator's, and no way back."""
    proposal = change.proposal
    return change.action is Action.LIVE and proposal.domain is Domain.LATENCY and proposal.policy != _ROLLBACK
