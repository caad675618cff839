"""A way back from what did harm, which was called off, or which an earlier vllmd did not live to go."""

from dataclasses import replace

from vllmd.model.decision import Action, Change, Domain, Effect, Verification
from vllmd.model.masking import MASK
from vllmd.model.settings import Mode
from vllmd.ports import Clock
from vllmd.report.journal import Journal
from vllmd.supervisor import Supervisor


class WayBack:
    """At most one is owed: the last."""

    def __init__(self, supervisor: Supervisor, journal: Journal, clock: Clock) -> None:
        self._supervisor = supervisor
        self._journal = journal
        self._clock = clock
        self._owed: Change | None = None

    def owe(self, rollback: Change) -> None:
        """Take note that a rollback was decided and not carried out."""
        self._owed = rollback

    def forget(self) -> None:
        """Owe nothing."""
        self._owed = None

    def lost(self) -> None:
        """Close a restart that an earlier vllmd decided last, and did not come to drain the server for.

        The server was taken over: one that is being drained is not. What was to be taken back is owed.
        """
        launch, record = self._supervisor.life.launch, self._journal.last_move()
        if launch is None or record is None or record.change.at_s <= launch.started_at_s or record.outcome is not None:
            return
        change, verified = record.change, record.verification
        if verified is None and change.action in {Action.RESTART, Action.ROLLBACK}:
            text = "not carried out: vllmd ended before the server was drained for it"
            verified = Verification(change.id, self._clock.now_s(), Effect.CALLED_OFF, text)
            self._journal.verification(verified)
        if change.action is Action.ROLLBACK and verified is not None and verified.effect is Effect.CALLED_OFF:
            self._owed = change

    def due(self) -> Change | None:
        """Return the decision to go back now; None where nothing is owed, or what did harm is not in force any more.

        Other flags may have moved meanwhile. Where the operator lets vllmd move these no longer, it is let be.
        """
        owed, self._owed = self._owed, None
        if owed is None or not self._may_move(owed):
            return None
        flags, undo = self._supervisor.flags, owed.proposal.changes
        if not undo or any(flags.get(name) != owed.flags_before.get(name) for name in undo):
            return None
        change = replace(owed, id="", at_s=self._clock.now_s(), flags_before=flags, flags_after=flags.changed(undo))
        return self._journal.change(change)

    def _may_move(self, owed: Change) -> bool:
        """Whether the configuration of now allows it, and all values are known: the ledger holds no secrets."""
        settings, undo = self._supervisor.instance.settings, owed.proposal.changes
        modes = {Domain.LATENCY: settings.modes.latency, Domain.MEMORY: settings.modes.memory}
        active = modes.get(owed.proposal.domain) is Mode.ACTIVE
        return active and not set(undo) & settings.guard.frozen and not any(MASK in str(v) for v in undo.values())
