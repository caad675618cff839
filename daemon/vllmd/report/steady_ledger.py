"""A ledger that may fail: on a full disk the server is still kept alive, and what was not stored is said."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog

from vllmd.model.decision import Change
from vllmd.model.failure import Failure
from vllmd.model.orders import Pause, SetLive
from vllmd.model.server import Launch
from vllmd.model.start_times import Started
from vllmd.model.status import DecisionRecord
from vllmd.model.tried import Tried
from vllmd.ports import Entry
from vllmd.report.ledger import SqliteLedger
from vllmd.report.ledger_file import LedgerError

T = TypeVar("T")

log = structlog.get_logger()


class SteadyLedger:
    """Implements `ports.Ledger` over SQLite; while that fails, numbers go on in memory and entries are lost and told.

    `problem` says why it fails now, None while it works.
    """

    def __init__(self, ledger: SqliteLedger) -> None:
        self._ledger = ledger
        self._decision = 0
        self._generation = 0
        self.problem: str | None = None

    def next_decision_id(self) -> str:
        """Return an unused decision id, above every one that was given."""
        try:
            self._catch_up()
            self._decision = int(self._ledger.next_decision_id().removeprefix("D"))
        except LedgerError as error:
            self._fails(error)
            self._decision += 1
        return f"D{self._decision}"

    def next_generation(self) -> int:
        """Return an unused generation number, above every one that was given."""
        try:
            self._catch_up()
            self._generation = self._ledger.next_generation()
        except LedgerError as error:
            self._fails(error)
            self._generation += 1
        return self._generation

    def record(self, entry: Entry, at_s: float) -> None:
        """Store one entry, or say that it is lost."""
        try:
            if self.problem is not None:
                self._catch_up()
            self._ledger.record(entry, at_s)
        except LedgerError as error:
            self._fails(error)
            return
        self.problem = None

    def changes(self, since_s: float) -> Sequence[Change]:
        """Return the changes since a time, oldest first; none while the ledger cannot be read."""
        return self._read(lambda: self._ledger.changes(since_s), ())

    def recent(self, limit: int = 20) -> Sequence[DecisionRecord]:
        """Return the last changes with what became of them; none while the ledger cannot be read."""
        return self._read(lambda: self._ledger.recent(limit), ())

    def failures_since(self, since_s: float) -> Sequence[tuple[float, Failure]]:
        """Return the failures since a time, oldest first; none while the ledger cannot be read."""
        return self._read(lambda: self._ledger.failures_since(since_s), ())

    def moves(self) -> Sequence[Change]:
        """Return the changes that may have moved flags, oldest first; none while the ledger cannot be read."""
        return self._read(self._ledger.moves, ())

    def harmed(self) -> Sequence[Change]:
        """Return the changes that did harm or did not serve, oldest first; none while the ledger cannot be read."""
        return self._read(self._ledger.harmed, ())

    def tried(self, fingerprint: str) -> Sequence[Tried]:
        """Return the launches with this fingerprint, newest first; none while the ledger cannot be read."""
        return self._read(lambda: self._ledger.tried(fingerprint), ())

    def launch_of(self, generation: int) -> Launch | None:
        """Return a launch; none while the ledger cannot be read."""
        return self._read(lambda: self._ledger.launch_of(generation), None)

    def starts(self, fingerprint: str, limit: int) -> Sequence[Started]:
        """Return the last starts that came to serve, newest first; none while the ledger cannot be read."""
        return self._read(lambda: self._ledger.starts(fingerprint, limit), ())

    def pause(self) -> Pause | None:
        """Return the last pause that was not ended; none while the ledger cannot be read."""
        return self._read(self._ledger.pause, None)

    def live_orders(self, generation: int) -> Sequence[SetLive]:
        """Return what was set live in a generation, or decided in any; none while the ledger cannot be read."""
        return self._read(lambda: self._ledger.live_orders(generation), ())

    def _read(self, question: Callable[[], T], otherwise: T) -> T:
        try:
            return question()
        except LedgerError as error:
            self._fails(error)
            return otherwise

    def start_above(self, generation: int) -> None:
        """Let the next generation be above one that is known from elsewhere, and remember what was given before.

        A ledger that fails later, before it gave this daemon a number, would else have them begin at 1 again.
        """
        self._generation = max(self._generation, generation)
        try:
            decision, given = self._ledger.numbers()
            self._decision, self._generation = max(self._decision, decision), max(self._generation, given)
            self._catch_up()
        except LedgerError as error:
            self._fails(error)

    def _catch_up(self) -> None:
        """Tell SQLite the numbers that were given while it failed."""
        self._ledger.at_least(self._decision, self._generation)

    def _fails(self, error: LedgerError) -> None:
        if self.problem is None:
            log.warning("the ledger fails; decisions are made and not stored", reason=str(error))
        self.problem = f"{error}: decisions are made and not stored"
