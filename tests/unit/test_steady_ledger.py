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


def on_a_disk() -> tuple[FillingDisk, SteadyLedger]:
    """Return a ledger, and the disk that it is on."""
    disk = sqlite3.connect(":memory:", factory=FillingDisk)
    for migration in MIGRATIONS:
        disk.executescript(migration)
    return disk, SteadyLedger(SqliteLedger(disk, lambda text: text))


def test_a_disk_that_is_full_from_a_daemons_first_number_on_repeats_none() -> None:
    """What earlier daemons gave is known before the ledger fails: the next numbers are above it."""
    disk, ledger = on_a_disk()
    assert [ledger.next_decision_id() for _ in range(3)] == ["D1", "D2", "D3"]
    assert ledger.next_generation() == 1
    later = SteadyLedger(SqliteLedger(disk, lambda text: text))
    later.start_above(4)
    disk.full = True
    assert (later.next_generation(), later.next_decision_id()) == (5, "D4")
    disk.full = False
    assert (later.next_generation(), later.next_decision_id()) == (6, "D5")


def test_numbers_of_a_full_disk_are_kept_with_the_first_entry_that_is_stored_again() -> None:
    """A daemon that dies after that leaves them to the next one, though it gave no other number."""
    disk, ledger = on_a_disk()
    disk.full = True
    assert (ledger.next_generation(), ledger.next_decision_id()) == (1, "D1")
    disk.full = False
    ledger.record(Hold(HoldReason.TARGETS_MET, ""), 1.0)
    later = SteadyLedger(SqliteLedger(disk, lambda text: text))
    assert (later.next_generation(), later.next_decision_id()) == (2, "D2")


def test_a_full_disk_costs_entries_and_not_the_server() -> None:
    """While it fails numbers go on in memory and the problem is told; afterwards they go on above those."""
    disk, ledger = on_a_disk()
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
