"""A ledger that fails does not stop the daemon, and numbers never repeat."""

import sqlite3
from typing import Any

from vllmd.model.decision import Hold, HoldReason
from vllmd.report.ledger import SqliteLedger
from vllmd.report.ledger_file import MIGRATIONS
from vllmd.report.steady_ledger import SteadyLedger


class FillingDisk(sqlite3.Connection):
    """A database in memory whose disk can be full."""

    full = False

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Execute, or fail as SQLite does on a full disk."""
        if self.full:
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        """Execute for each, or fail likewise."""
        if self.full:
            raise sqlite3.OperationalError("database or disk is full")
        return super().executemany(sql, parameters)


def test_a_full_disk_costs_entries_and_not_the_server() -> None:
    """While it fails numbers go on in memory and the problem is told; afterwards they go on above those."""
    disk = sqlite3.connect(":memory:", factory=FillingDisk)
    for migration in MIGRATIONS:
        disk.executescript(migration)
    ledger = SteadyLedger(SqliteLedger(disk, lambda text: text))
    assert (ledger.next_generation(), ledger.next_decision_id(), ledger.problem) == (1, "D1", None)
    disk.full = True
    assert (ledger.next_generation(), ledger.next_decision_id()) == (2, "D2")
    ledger.record(Hold(HoldReason.TARGETS_MET, ""), 1.0)
    assert ledger.changes(0.0) == ()
    assert ledger.problem is not None
    assert "disk is full" in ledger.problem
    disk.full = False
    assert (ledger.next_generation(), ledger.next_decision_id()) == (3, "D3")
    ledger.record(Hold(HoldReason.TARGETS_MET, ""), 2.0)
    assert ledger.problem is None
