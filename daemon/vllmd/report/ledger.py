"""The ledger: what was tried and how it ended, in SQLite. What it acknowledged survives a kill -9."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, assert_never

import msgspec
import structlog

from vllmd.model.decision import Change, Hold, Outcome, Verification
from vllmd.model.failure import Failure
from vllmd.model.orders import Forget, Pause, Resume, SetLive
from vllmd.model.server import Launch
from vllmd.model.start_times import Started
from vllmd.model.status import DecisionRecord
from vllmd.model.tried import Good, Tried
from vllmd.ports import Entry
from vllmd.report.ledger_file import LedgerError, open_file
from vllmd.report.status_file import read_status

LEDGER_NAME = "ledger.db"

_REMEMBERED = 500  # launches of one fingerprint, or changes: a year of them, at more than one a day

T = TypeVar("T")

log = structlog.get_logger(__name__)


class SqliteLedger:
    """A ports.Ledger over one connection, used by one thread. `open_ledger` makes it."""

    def __init__(self, connection: sqlite3.Connection, mask: Callable[[str], str]) -> None:
        self._connection = connection
        self._mask = mask

    def close(self) -> None:
        """Close the file; its write-ahead log is folded in."""
        self._connection.close()

    def next_decision_id(self) -> str:
        """Return an unused decision id; it stays used even if no decision follows. Raises LedgerError."""
        return f"D{self._next('decision')}"

    def next_generation(self) -> int:
        """Return an unused generation number; it stays used even if no launch follows. Raises LedgerError."""
        return self._next("generation")

    def record(self, entry: Entry, at_s: float) -> None:
        """Store one entry with its secrets masked; it is on disk when this returns. Raises LedgerError."""
        table, columns = _place(entry)
        payload = msgspec.json.encode(_masked(msgspec.to_builtins(entry), self._mask)).decode()
        values = {"at_s": at_s, **columns, "payload": payload}
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        with self._transaction() as connection:
            connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))  # noqa: S608 - names of ours

    def changes(self, since_s: float) -> Sequence[Change]:
        """Return the changes since a time, oldest first."""
        rows = self._rows("SELECT payload FROM decisions WHERE at_s >= ? AND id IS NOT NULL ORDER BY seq", since_s)
        return _all_decoded((payload for (payload,) in rows), Change)

    def failures_since(self, since_s: float) -> Sequence[tuple[float, Failure]]:
        """Return the failures since a time, each after its time in unix seconds, oldest first."""
        rows = self._rows("SELECT at_s, payload FROM failures WHERE at_s >= ? ORDER BY seq", since_s)
        return [(at_s, failure) for at_s, payload in rows if (failure := _decoded(payload, Failure)) is not None]

    def moves(self) -> Sequence[Change]:
        """Return the changes that may have moved flags, oldest first: not called off, and no restart that failed."""
        return self._changes_where(
            "d.action IN ('restart', 'recover', 'rollback') "
            "AND NOT EXISTS (SELECT 1 FROM verifications v WHERE v.change_id = d.id AND v.effect = 'called-off') "
            "AND NOT (d.action = 'restart' AND EXISTS (SELECT 1 FROM outcomes o "
            "WHERE o.change_id = d.id AND json_extract(o.payload, '$.served') = 0))"
        )

    def harmed(self) -> Sequence[Change]:
        """Return the changes that did harm or did not serve, since they were last to be forgotten, oldest first."""
        return self._changes_where(
            "d.action IN ('restart', 'live') "
            "AND d.at_s > coalesce((SELECT max(at_s) FROM orders WHERE kind = 'Forget'), 0) "
            "AND EXISTS (SELECT 1 FROM verifications v WHERE v.change_id = d.id AND v.effect IN ('worse', 'failed'))"
        )

    def _changes_where(self, condition: str) -> Sequence[Change]:
        """Return the newest changes under a condition of ours, oldest first."""
        query = f"SELECT d.payload FROM decisions d WHERE {condition} ORDER BY d.seq DESC LIMIT ?"  # noqa: S608 - ours
        return _all_decoded((payload for (payload,) in reversed(self._rows(query, _REMEMBERED))), Change)

    def tried(self, fingerprint: str) -> Sequence[Tried]:
        """Return the launches with this fingerprint since they were last to be forgotten, newest first."""
        query = (
            "SELECT l.payload, (SELECT max(g.at_s) FROM good g WHERE g.generation = l.generation), "
            "(SELECT f.payload FROM failures f WHERE f.generation = l.generation ORDER BY f.seq LIMIT 1) "
            "FROM launches l WHERE json_extract(l.payload, '$.fingerprint') = ? "
            "AND l.at_s > coalesce((SELECT max(at_s) FROM orders WHERE kind = 'Forget'), 0) "
            "ORDER BY l.seq DESC LIMIT ?"
        )
        return [
            Tried(launch, good_at_s, None if failure is None else _decoded(failure, Failure))
            for payload, good_at_s, failure in self._rows(query, fingerprint, _REMEMBERED)
            if (launch := _decoded(payload, Launch)) is not None
        ]

    def launch_of(self, generation: int) -> Launch | None:
        """Return a launch, secrets masked; None if it is not known."""
        query = "SELECT payload FROM launches WHERE generation = ? ORDER BY seq DESC LIMIT 1"
        return next(iter(_all_decoded((payload for (payload,) in self._rows(query, generation)), Launch)), None)

    def starts(self, fingerprint: str, limit: int) -> Sequence[Started]:
        """Return the last starts with this fingerprint that came to serve, newest first."""
        query = (
            "SELECT s.payload FROM starts s WHERE EXISTS (SELECT 1 FROM launches l WHERE l.generation = s.generation "
            "AND json_extract(l.payload, '$.fingerprint') = ?) ORDER BY s.seq DESC LIMIT ?"
        )
        return _all_decoded((payload for (payload,) in self._rows(query, fingerprint, limit)), Started)

    def pause(self) -> Pause | None:
        """Return the last pause that was not ended; it may have run out."""
        query = "SELECT kind, payload FROM orders WHERE kind IN ('Pause', 'Resume') ORDER BY seq DESC LIMIT 1"
        kind, payload = next(iter(self._rows(query)), ("", ""))
        return _decoded(payload, Pause) if kind == "Pause" else None

    def live_orders(self, generation: int) -> Sequence[SetLive]:
        """Return what was set live in a generation, and what decisions set in any and keep, oldest first."""
        query = (
            "SELECT payload FROM orders WHERE kind = 'SetLive' AND (json_extract(payload, '$.generation') = ? "
            "OR (json_extract(payload, '$.decided') "
            "AND at_s > coalesce((SELECT max(at_s) FROM orders WHERE kind = 'Forget'), 0))) ORDER BY seq DESC LIMIT ?"
        )
        rows = self._rows(query, generation, _REMEMBERED)
        return _all_decoded((payload for (payload,) in reversed(rows)), SetLive)

    def recent(self, limit: int = 20) -> tuple[DecisionRecord, ...]:
        """Return the last changes with what became of each, newest last."""
        query = "SELECT payload FROM decisions WHERE id IS NOT NULL ORDER BY seq DESC LIMIT ?"
        changes = _all_decoded((payload for (payload,) in reversed(self._rows(query, limit))), Change)
        outcomes = "SELECT payload FROM outcomes WHERE change_id = ? ORDER BY seq DESC LIMIT 1"
        verifications = "SELECT payload FROM verifications WHERE change_id = ? ORDER BY seq DESC LIMIT 1"
        return tuple(
            DecisionRecord(c, self._one(outcomes, c.id, Outcome), self._one(verifications, c.id, Verification))
            for c in changes
        )

    def at_least(self, decision: int, generation: int) -> None:
        """Let the next decision and launch be numbered above these, which are known from elsewhere."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT INTO counters VALUES (?, ?) ON CONFLICT DO UPDATE SET value = max(value, excluded.value)",
                (("decision", decision), ("generation", generation)),
            )

    def numbers(self) -> tuple[int, int]:
        """Return the highest decision and generation that were given. Raises LedgerError."""
        given = dict(self._rows("SELECT name, value FROM counters"))
        return given.get("decision", 0), given.get("generation", 0)

    def _next(self, counter: str) -> int:
        """Return the next value of a counter, on disk before it is used."""
        query = "INSERT INTO counters VALUES (?, 1) ON CONFLICT DO UPDATE SET value = value + 1 RETURNING value"
        with self._transaction() as connection:
            # All rows are fetched: the statement must have ended before its transaction can.
            ((value,),) = connection.execute(query, (counter,)).fetchall()
        return int(value)

    def _one(self, query: str, change_id: str, kind: type[T]) -> T | None:
        """Return the one entry that a query finds about a change."""
        return next(iter(_all_decoded((payload for (payload,) in self._rows(query, change_id)), kind)), None)

    def _rows(self, query: str, *values: object) -> list[Any]:
        """Return the rows of a query."""
        with self._transaction() as connection:
            return connection.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit what was done; LedgerError where SQLite fails (a full disk, a damaged page)."""
        try:
            with self._connection:
                yield self._connection
        except sqlite3.Error as error:
            raise LedgerError(f"the ledger failed: {error}") from error


def open_ledger(folder: Path, mask: Callable[[str], str]) -> SqliteLedger:
    """Open the ledger of a state folder; `mask` hides secrets in all that is stored.

    An unreadable file is set aside and named in a warning. LedgerError if it is from a newer vllmd or cannot be had.
    """
    opened = open_file(folder / LEDGER_NAME)
    ledger = SqliteLedger(opened.connection, mask)
    if opened.set_aside is not None:
        log.warning("ledger unreadable, set aside; a new one begins", path=str(opened.set_aside))
    told = _numbers_told(folder)
    if any(above > given for above, given in zip(told, ledger.numbers(), strict=True)):
        with suppress(LedgerError):  # a full disk: it is told when the first entry is lost
            ledger.at_least(*told)
    return ledger


def _numbers_told(folder: Path) -> tuple[int, int]:
    """Return the highest decision and generation in status.json.

    Numbers never repeat: not if a ledger is lost or emptied, nor those that were given while it could not be written.
    """
    document = read_status(folder / "status.json").document or {}
    instances = [i for i in document.get("instances", ()) if isinstance(i, dict)]
    generations = [g for i in instances if isinstance(g := i.get("generation"), int)]
    ids = [str(d.get("id", "")) for i in instances for d in i.get("decisions") or () if isinstance(d, dict)]
    decisions = [int(i[1:]) for i in ids if i[1:].isdecimal()]
    return max(decisions, default=0), max(generations, default=0)


def _place(entry: Entry) -> tuple[str, dict[str, object]]:
    """Return the table of an entry and its columns beside time and payload."""
    match entry:
        case Launch():
            return "launches", {"generation": entry.generation}
        case Failure():
            return "failures", {"generation": entry.generation, "kind": entry.kind.value}
        case Hold():
            return "decisions", {"id": None, "action": "hold"}
        case Change():
            return "decisions", {"id": entry.id, "action": entry.action.value}
        case Outcome():
            return "outcomes", {"change_id": entry.change.id, "generation": entry.generation}
        case Verification():
            return "verifications", {"change_id": entry.change_id, "effect": entry.effect.value}
        case Started():
            return "starts", {"generation": entry.generation}
        case Good():
            return "good", {"generation": entry.generation}
        case Pause() | Resume() | Forget() | SetLive():
            return "orders", {"kind": type(entry).__name__}
        case _:
            assert_never(entry)


def _masked(value: Any, mask: Callable[[str], str]) -> Any:  # noqa: ANN401 - any JSON value
    """Return a JSON value with every text masked."""
    match value:
        case str():
            return mask(value)
        case dict():
            return {key: _masked(inner, mask) for key, inner in value.items()}
        case list() | tuple():
            return [_masked(inner, mask) for inner in value]
        case _:
            return value


def _all_decoded(payloads: Iterator[str], kind: type[T]) -> list[T]:
    """Return the entries that can be read."""
    return [entry for payload in payloads if (entry := _decoded(payload, kind)) is not None]


def _decoded(payload: str, kind: type[T]) -> T | None:
    """Return a stored entry; None, and a warning, for one that this version cannot read."""
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.DecodeError, TypeError) as error:
        log.warning("ledger entry skipped", kind=kind.__name__, reason=str(error))
        return None
