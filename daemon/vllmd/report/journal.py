"""The journal of an instance: what was decided and what came of it, recorded in the ledger, told in the log, counted.

Nothing enters it unmasked: flags and argv may hold keys.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace

import structlog

from vllmd.model.canary import CanaryResult
from vllmd.model.decision import Action, Change, Domain, Effect, Hold, HoldReason, Outcome, Verification
from vllmd.model.failure import Failure
from vllmd.model.flags import Flags, FlagValue
from vllmd.model.handover import Handover, Handovers
from vllmd.model.masking import Masker
from vllmd.model.orders import Forget, Pause, Resume, SetLive
from vllmd.model.server import Launch
from vllmd.model.start_times import Started
from vllmd.model.status import DecisionRecord
from vllmd.model.tried import Good, Tried
from vllmd.ports import Ledger
from vllmd.report.wording import change_text

_KEPT = 20
# Nothing is done, what was moved before is kept, or it ends with the generation.
_NOT_MOVING = frozenset({Action.ADVISE, Action.REMEMBER, Action.LIVE})
_TELL_AGAIN_S = 300.0  # reasons that alternate (a metrics page that answers now and then) are told this often


class Journal:
    """Records every step, and counts since the daemon began.

    `launches`, `outage_s`, `suppressed`, `canaries`, `handovers`.
    """

    def __init__(self, ledger: Ledger, masker: Masker) -> None:
        self._ledger = ledger
        self._masker = masker
        self._log = structlog.get_logger()
        self._records: deque[DecisionRecord] = deque(ledger.recent(_KEPT), maxlen=_KEPT)
        self._idle = {record.change.id for record in self._records if _moved_nothing(record)}  # ids
        self._movers: defaultdict[str, deque[Change]] = defaultdict(lambda: deque(maxlen=_KEPT))  # by flag
        for change in ledger.moves():
            self._note_move(change)
        self._told_s: dict[HoldReason, float] = {}
        self._advised: set[tuple[Flags, Flags]] = set()
        self.last: Change | Hold | None = None
        self.last_failure: Failure | None = None
        self.launches: Counter[str] = Counter()
        self.outage_s: dict[str, float] = {}
        self.suppressed: Counter[str] = Counter()
        self.canaries: Counter[str] = Counter()
        self.handovers = Handovers()

    @property
    def decisions(self) -> tuple[DecisionRecord, ...]:
        """The last changes with what became of them, newest last."""
        return tuple(self._records)

    @property
    def problem(self) -> str | None:
        """Why nothing can be stored now, None while it can."""
        return self._ledger.problem

    def generation(self) -> int:
        """Return an unused generation number."""
        return self._ledger.next_generation()

    def launch(self, launch: Launch, cause: str) -> None:
        """Record a launch and why it is made (first, crash, change, rollback, admin)."""
        self.launches[cause] += 1
        masked = self._record_launch(launch)
        self._log.info("launch", generation=launch.generation, cause=cause, argv=" ".join(masked.argv))

    def found(self, launch: Launch) -> None:
        """Record a launch of an earlier vllmd that the ledger does not hold: it was lost."""
        masked = self._record_launch(launch)
        self._log.warning(
            "not in the ledger, read from the process", generation=launch.generation, argv=" ".join(masked.argv)
        )

    def _record_launch(self, launch: Launch) -> Launch:
        """Record a launch; return it as it was stored, secrets masked."""
        masked = replace(
            launch,
            argv=self._masker.mask_argv(launch.argv),
            flags=self.masked(launch.flags),
            baseline=self.masked(launch.baseline),
            model=self._masker.mask(launch.model) if launch.model else None,
        )
        self._ledger.record(masked, launch.started_at_s)
        return masked

    def adopted(self, launch: Launch, installed: str | None, pending: Sequence[str]) -> None:
        """Log that a server of an earlier vllmd is gone on with, and what its next launch will have otherwise."""
        told = {"vllm": launch.vllm, "installed": installed, "pending": ", ".join(pending) or None}
        self._log.info("adopted", generation=launch.generation, **told)

    def not_adopted(self, problem: str) -> None:
        """Log why what an earlier vllmd left is ended and not gone on with."""
        self._log.warning("the server that was left is not taken over", reason=problem)

    def no_gate(self, reason: str) -> None:
        """Log why a restart holds the whole of the next start."""
        self._log.info("the next server is not prepared beside this one", reason=reason)

    def serving(self, launch: Launch, cause: str, outage_s: float | None, start_s: float | None) -> None:
        """Record that a launch serves, the outage that it ends, and how long its start took; None is unknown."""
        self.outage_s[cause] = self.outage_s.get(cause, 0.0) + (outage_s or 0.0)
        times = {
            name: round(seconds, 2)
            for name, seconds in (("outage_s", outage_s), ("start_s", start_s))
            if seconds is not None
        }
        self._log.info("serving", generation=launch.generation, **times, cause=cause)

    def started(self, started: Started, at_s: float) -> None:
        """Record how long the phases of a start took that came to serve."""
        self._ledger.record(started, at_s)

    def starts(self, fingerprint: str, limit: int) -> Sequence[Started]:
        """Return the last starts with this fingerprint, by earlier daemons too, newest first."""
        return self._ledger.starts(fingerprint, limit)

    def stopping(self, running: float | None, drain_s: float, *, hurried: bool) -> None:
        """Log that the server is stopped for good, and what it still has to do."""
        self._log.info("stopping", requests_running=running, drain_s=0 if hurried else drain_s)

    def failure(self, failure: Failure, at_s: float) -> None:
        """Record a failure."""
        self.last_failure = failure
        self._ledger.record(failure, at_s)
        line = {"line": failure.evidence.line, "text": failure.evidence.text} if failure.evidence else {}
        self._log.warning(
            "failure",
            kind=failure.kind,
            phase=failure.phase,
            generation=failure.generation,
            exit_code=failure.exit_code,
            summary=failure.summary,
            **line,
        )

    def hold(self, hold: Hold, at_s: float) -> None:
        """Count a hold; record and log it when its reason is a new one, or was not told for a while."""
        self.suppressed[hold.reason] += 1
        same = isinstance(self.last, Hold) and self.last.reason is hold.reason
        self.last = hold
        told_s = self._told_s.get(hold.reason, float("-inf"))
        if same or 0 <= at_s - told_s < _TELL_AGAIN_S:
            return
        self._told_s[hold.reason] = at_s
        self._ledger.record(hold, at_s)
        self._log.info("hold", reason=hold.reason, message=hold.message)

    def canary(self, result: CanaryResult, reason: str) -> None:
        """Count what became of a canary; log where it did not come back as it should have."""
        self.canaries[result] += 1
        if result not in {CanaryResult.ANSWERED, CanaryResult.PAUSED}:
            self._log.warning("canary", result=result, reason=reason or None)

    def canary_off(self, generation: int, reason: str) -> None:
        """Log that a launch is sent no canary any more."""
        self._log.warning("no canary until the next launch", generation=generation, reason=reason)

    def change(self, change: Change) -> Change:
        """Give a change its id and record it; return it with the id."""
        numbered = replace(change, id=self._ledger.next_decision_id())
        shown = self._masked(numbered)
        self.last = shown
        self._records.append(DecisionRecord(shown))
        if change.action not in _NOT_MOVING:
            self._note_move(shown)
        if change.action is Action.ADVISE:
            self._advised.add((change.flags_before, change.flags_after))
        self._ledger.record(shown, change.at_s)
        self._log.info(
            "decision",
            id=numbered.id,
            action=change.action,
            change=change_text(change),
            trigger=change.proposal.trigger,
            policy=change.proposal.policy,
            reason=shown.proposal.reason,
            wait_s=change.wait_s,
            **{name: round(value, 4) for name, value in change.proposal.numbers.items()},
        )
        return numbered

    def outcome(self, outcome: Outcome, at_s: float) -> None:
        """Record what the actuator did."""
        masked = replace(outcome, change=self._masked(outcome.change))
        self._amend(outcome.change.id, outcome=masked)
        self._ledger.record(masked, at_s)
        if outcome.handover is not None:
            self.handovers = self.handovers.with_one(outcome.handover)
        self._log.info("outcome", id=outcome.change.id, served=outcome.served, outage_s=outcome.outage_s)

    def handover(self, handover: Handover, at_s: float) -> None:
        """Record how a restart went that no server came of: with the last outcome, of the launch that failed."""
        last = next((r.outcome for r in reversed(self._records) if r.outcome is not None), None)
        if last is not None:
            self.outcome(replace(last, handover=handover), at_s)

    def verification(self, verification: Verification) -> None:
        """Record what a change brought."""
        self._amend(verification.change_id, verification=verification)
        self._ledger.record(verification, verification.at_s)
        self._log.info(
            "verification",
            id=verification.change_id,
            effect=verification.effect,
            message=verification.message,
            before=verification.before,
            after=verification.after,
        )

    def good(self, generation: int, at_s: float) -> None:
        """Record that a launch's flags may be used again."""
        self._ledger.record(Good(generation, at_s), at_s)
        self._log.info("good", generation=generation)

    def order(self, order: Pause | Resume | Forget | SetLive) -> None:
        """Record what the operator orders."""
        self._ledger.record(order, order.at_s)
        told = {key: value for key, value in asdict(order).items() if key != "at_s"}
        self._log.info("order", kind=type(order).__name__.lower(), **told)

    def tried(self, fingerprint: str) -> Sequence[Tried]:
        """Return the launches with this fingerprint, by earlier daemons too, newest first."""
        return self._ledger.tried(fingerprint)

    def launch_of(self, generation: int) -> Launch | None:
        """Return a launch, also by an earlier daemon, as the ledger holds it."""
        return self._ledger.launch_of(generation)

    def unfinished(self, flags: Flags) -> DecisionRecord | None:
        """Return the last change with its outcome, if it led to these flags and its effect was never told."""
        moves = (r for r in reversed(self._records) if r.change.action not in _NOT_MOVING)
        record = next((r for r in moves if r.change.id not in self._idle), None)
        if record is None or record.verification is not None or record.change.flags_after != self.masked(flags):
            return None
        return record

    def last_move(self) -> DecisionRecord | None:
        """Return the last change that was to move flags, or to restart the server."""
        return next((r for r in reversed(self._records) if r.change.action not in _NOT_MOVING), None)

    def pause(self) -> Pause | None:
        """Return the last pause that was not ended; it may have run out."""
        return self._ledger.pause()

    def live_orders(self, generation: int) -> Sequence[SetLive]:
        """Return what was set live in a generation, or decided in any, by earlier daemons too, oldest first."""
        return self._ledger.live_orders(generation)

    def masked(self, flags: Flags) -> Flags:
        """Return flags as the ledger holds them."""
        return masked_flags(flags, self._masker)

    def advised(self) -> frozenset[tuple[Flags, Flags]]:
        """Return (flags before, flags after) of the advice given."""
        return frozenset(self._advised)

    def voluntary_since(self, since_s: float) -> list[float]:
        """Return when restarts were decided unasked, also by earlier daemons: the budget outlives them."""
        restarts = [c for c in self._ledger.changes(since_s) if c.action is Action.RESTART]
        return [c.at_s for c in restarts if c.proposal.domain is not Domain.ADMIN]

    def crashes_between(self, since_s: float, until_s: float) -> list[tuple[float, str]]:
        """Return when launches failed and with which class, by earlier daemons too, since the last `vllmd restart`."""
        changes = self._ledger.changes(since_s)
        admin_s = [
            c.at_s
            for c in changes
            if c.proposal.domain is Domain.ADMIN and c.action is Action.RESTART and c.at_s <= until_s
        ]
        since_s = max((since_s, *admin_s))
        found = self._ledger.failures_since(since_s)
        return [(at_s, failure.kind.value) for at_s, failure in found if at_s <= until_s]  # the clock may have been set

    def harmful(self) -> set[tuple[str, FlagValue | None]]:
        """Return the values that latency changes set and that did harm or did not serve, by earlier daemons too."""
        latency = (c for c in self._ledger.harmed() if c.proposal.domain is Domain.LATENCY)
        return {item for c in latency for item in c.proposal.changes.items()}

    def setter_of(self, name: str) -> Change | None:
        """Return the last change that set a flag and is in force."""
        for record in reversed(self._records):
            change = record.change
            done = change.action not in {Action.ADVISE, Action.LIVE} and change.id not in self._idle
            if done and change.flags_before.get(name) != change.flags_after.get(name):
                return change
        return None

    def mover_of(self, name: str) -> Change | None:
        """Return the decision for which a flag is where it is; None if none that is remembered moved it."""
        movers = (change for change in reversed(self._movers.get(name, ())) if change.id not in self._idle)
        return next(movers, None)

    def _note_move(self, change: Change) -> None:
        for name in change.proposal.changes:
            self._movers[name].append(change)

    def _amend(
        self, change_id: str, *, outcome: Outcome | None = None, verification: Verification | None = None
    ) -> None:
        for index, record in enumerate(self._records):
            if record.change.id == change_id:
                amended = DecisionRecord(record.change, outcome or record.outcome, verification or record.verification)
                self._records[index] = amended
                if _moved_nothing(amended):
                    self._idle.add(change_id)

    def _masked(self, change: Change) -> Change:
        proposal = replace(change.proposal, reason=self._masker.mask(change.proposal.reason))
        return replace(
            change,
            proposal=proposal,
            flags_before=self.masked(change.flags_before),
            flags_after=self.masked(change.flags_after),
        )


def _moved_nothing(record: DecisionRecord) -> bool:
    """Whether a change never was in force: it was called off, or its launch did not come to serve."""
    verified, outcome = record.verification, record.outcome
    called_off = verified is not None and verified.effect is Effect.CALLED_OFF
    return called_off or (record.change.action is Action.RESTART and outcome is not None and not outcome.served)


def masked_flags(flags: Mapping[str, FlagValue], masker: Masker) -> Flags:
    """Return the flags with every secret value masked."""
    return Flags(tuple((name, _masked_value(name, value, masker)) for name, value in flags.items()))


def _masked_value(name: str, value: FlagValue, masker: Masker) -> FlagValue:
    match value:
        case bool():
            return value
        case str():
            return masker.mask_argv((f"--{name}", value))[1]
        case tuple():
            return tuple(_masked_all(name, value, masker))


def _masked_all(name: str, values: Iterable[str], masker: Masker) -> Iterable[str]:
    return (masker.mask_argv((f"--{name}", value))[1] for value in values)
