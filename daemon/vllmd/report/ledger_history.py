"""What the ledger tells of the past: decisions by page, and one of them with all that belongs to it. Reads only."""

import re
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from vllmd.model.decision import Action, Change, Hold, Outcome, Verification
from vllmd.model.failure import GUESSED, OF_FLAGS, Failure
from vllmd.model.plain import plain
from vllmd.model.server import Launch
from vllmd.model.status import DecisionRecord
from vllmd.report.ledger import LEDGER_NAME
from vllmd.report.ledger_file import MIGRATIONS, LedgerError

LIMIT = 200  # decisions a page
DECISION_ID = re.compile(r"[DH][1-9][0-9]{0,17}")  # D7: the seventh change; H7: the hold in the seventh row
_BUSY_LIMIT_S = 0.5
_READ_LIMIT_S = 1.0  # the daemon answers nobody else while it reads
_STEPS = 10_000  # instructions of SQLite between two looks at the clock: about a millisecond
_BANS = 5  # told of one decision
_ENDLESS = 2**62  # above every generation

T = TypeVar("T")

_TRIGGER = "json_extract(payload, '$.proposal.trigger')"


@dataclass(frozen=True, slots=True)
class Asked:
    """Which decisions are asked for: in [since_s, until_s] (unix), before the decision of an id, at most `limit`.

    Of one trigger only, where it is given: a hold has none.
    """

    since_s: float | None = None
    until_s: float | None = None
    before: str | None = None
    trigger: str | None = None
    holds: bool = False
    limit: int = 20


@dataclass(frozen=True, slots=True)
class Told:
    """One decision of the past: a change with what became of it, or a hold. `id` is its own or H and its row."""

    id: str
    at_s: float
    decision: DecisionRecord | Hold


@dataclass(frozen=True, slots=True)
class Page:
    """Decisions, newest first; whether older ones follow; how many holds of that time are not among them.

    `unreadable` are entries that another version wrote.
    """

    decisions: tuple[Told, ...]
    more: bool
    hidden_holds: int
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class Before:
    """What was known when a decision was made: the failure that it answers (with its time), the launch before.

    `bans` are failures that forbade flags on that fingerprint, newest first, five at most of `banned`.
    """

    failure: Failure | None = None
    failed_at_s: float | None = None
    launch: Launch | None = None
    bans: tuple[Failure, ...] = ()
    banned: int = 0


@contextmanager
def reading(folder: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection that cannot write to the ledger of a state folder, for a second at most.

    LedgerError if there is none, if it is of another schema, or if it cannot be read in time. PermissionError if the
    caller may not read it.
    """
    path = folder / LEDGER_NAME
    try:
        path.open("rb").close()  # SQLite does not say why it cannot open a file
        with closing(_opened(path)) as connection:
            deadline_s = time.monotonic() + _READ_LIMIT_S
            connection.set_progress_handler(lambda: time.monotonic() > deadline_s, _STEPS)
            _check(connection, path)
            yield connection
    except sqlite3.Error as error:
        slow = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT
        why = f"not within {_READ_LIMIT_S:g} s: ask for less" if slow else str(error)
        raise LedgerError(f"cannot read {path}: {why}") from error
    except PermissionError:
        raise
    except OSError as error:
        raise LedgerError(f"cannot read {path}: {error.strerror or error}") from error


def _opened(path: Path) -> sqlite3.Connection:
    """Return a connection that only reads; where the folder may not be written, one to a file at rest."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, timeout=_BUSY_LIMIT_S, uri=True)
    try:
        connection.execute("SELECT 1 FROM sqlite_schema").fetchall()
    except sqlite3.OperationalError:
        connection.close()
        if path.with_name(f"{path.name}-wal").exists():
            raise
        # Without a write-ahead log nobody has it open, and SQLite would have to make one to read it.
        return sqlite3.connect(f"{uri}&immutable=1", timeout=_BUSY_LIMIT_S, uri=True)
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise LedgerError where the file is not of this version's schema."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != len(MIGRATIONS):
        other = "a newer" if version > len(MIGRATIONS) else "an older"
        way = "run that vllmd" if version > len(MIGRATIONS) else "start this vllmd once, it brings the ledger forward"
        raise LedgerError(f"{path} is of {other} vllmd (schema {version}, this one reads {len(MIGRATIONS)}): {way}")


def page(connection: sqlite3.Connection, asked: Asked) -> Page | None:
    """Return a page of decisions, None where the one to begin before is not known."""
    before = None if asked.before is None else _row_of(connection, asked.before)
    if asked.before is not None and before is None:
        return None
    where, values = _conditions(asked, before)
    kinds = "" if asked.holds else " AND id IS NOT NULL"
    query = f"SELECT seq, at_s, id, payload FROM decisions WHERE {where}{kinds} ORDER BY seq DESC LIMIT ?"  # noqa: S608 - conditions of ours
    rows = connection.execute(query, (*values, asked.limit + 1)).fetchall()
    shown, more = rows[: asked.limit], len(rows) > asked.limit
    told = [found for row in shown if (found := _told(connection, row)) is not None]
    first = shown[-1][0] if more else 0
    hidden = 0 if asked.holds else _holds(connection, asked, before, first)
    return Page(tuple(told), more, hidden, len(shown) - len(told))


def one(connection: sqlite3.Connection, decision_id: str) -> Told | None:
    """Return the decision with this id, None where there is none."""
    seq = _row_of(connection, decision_id)
    if seq is None:
        return None
    query = "SELECT seq, at_s, id, payload FROM decisions WHERE seq = ?"
    return _told(connection, connection.execute(query, (seq,)).fetchone())


def last_hold(connection: sqlite3.Connection) -> Told | None:
    """Return the newest hold that was recorded: one is when its reason is a new one, or was not told for a while."""
    query = "SELECT seq, at_s, id, payload FROM decisions WHERE id IS NULL ORDER BY seq DESC LIMIT 1"
    row = connection.execute(query).fetchone()
    return None if row is None else _told(connection, row)


def before(connection: sqlite3.Connection, told: Told) -> Before:
    """Return what was known when a decision was made."""
    launch = _launch_before(connection, told)
    found = _failure_of(connection, told, launch)
    bans, banned = _bans(connection, told, launch) if launch is not None else ((), 0)
    failed_at_s, failure = (None, None) if found is None else found
    return Before(failure, failed_at_s, launch, bans, banned)


def _conditions(asked: Asked, before: int | None) -> tuple[str, list[object]]:
    """Return the conditions of a page as SQL, with their values."""
    wanted: Mapping[str, object] = {
        "at_s >= ?": asked.since_s,
        "at_s <= ?": asked.until_s,
        "seq < ?": before,
        # SQLite takes no lone surrogate, which a command line may hold; no trigger has what `plain` escapes.
        f"{_TRIGGER} = ?": None if asked.trigger is None else plain(asked.trigger),
    }
    given = {condition: value for condition, value in wanted.items() if value is not None}
    return " AND ".join(("1", *given)), list(given.values())


def _holds(connection: sqlite3.Connection, asked: Asked, before: int | None, first: int) -> int:
    """Return how many holds lie in the time of a page whose oldest row is `first`."""
    where, values = _conditions(asked, before)
    query = f"SELECT count(*) FROM decisions WHERE {where} AND id IS NULL AND seq > ?"  # noqa: S608 - conditions of ours
    (count,) = connection.execute(query, (*values, first)).fetchone()
    return int(count)


def _row_of(connection: sqlite3.Connection, decision_id: str) -> int | None:
    """Return the row of a decision."""
    if not DECISION_ID.fullmatch(decision_id):
        return None
    if decision_id.startswith("H"):
        query, value = "SELECT seq FROM decisions WHERE seq = ? AND id IS NULL", decision_id[1:]
    else:
        query, value = "SELECT seq FROM decisions WHERE id = ?", decision_id
    row = connection.execute(query, (value,)).fetchone()
    return None if row is None else int(row[0])


def _told(connection: sqlite3.Connection, row: tuple[int, float, str | None, str]) -> Told | None:
    """Return a decision from its row, None where another version wrote it."""
    seq, at_s, decision_id, payload = row
    if decision_id is None:
        hold = _decoded(payload, Hold)
        return None if hold is None else Told(f"H{seq}", at_s, hold)
    change = _decoded(payload, Change)
    if change is None:
        return None
    outcome = _newest(connection, "outcomes", decision_id, Outcome)
    verification = _newest(connection, "verifications", decision_id, Verification)
    return Told(decision_id, at_s, DecisionRecord(change, outcome, verification))


def _newest(connection: sqlite3.Connection, table: str, change_id: str, kind: type[T]) -> T | None:
    """Return the last entry of a table about a change."""
    query = f"SELECT payload FROM {table} WHERE change_id = ? ORDER BY seq DESC LIMIT 1"  # noqa: S608 - a name of ours
    row = connection.execute(query, (change_id,)).fetchone()
    return None if row is None else _decoded(row[0], kind)


def _launch_before(connection: sqlite3.Connection, told: Told) -> Launch | None:
    """Return the launch that was the present one when a decision was made."""
    outcome = told.decision.outcome if isinstance(told.decision, DecisionRecord) else None
    query = "SELECT payload FROM launches WHERE at_s <= ? AND generation < ? ORDER BY seq DESC LIMIT 1"
    made = _ENDLESS if outcome is None else outcome.generation
    row = connection.execute(query, (told.at_s, made)).fetchone()
    return None if row is None else _decoded(row[0], Launch)


def _failure_of(connection: sqlite3.Connection, told: Told, launch: Launch | None) -> tuple[float, Failure] | None:
    """Return the failure that a change answers, with its time: the newest one of the launch before it.

    Its class is the change's trigger; a change that was taken back keeps its own trigger, whatever it then failed with.
    """
    if launch is None or isinstance(told.decision, Hold):
        return None
    change = told.decision.change
    of_any_class = change.action is Action.ROLLBACK
    query = (
        "SELECT at_s, payload FROM failures WHERE generation = ? AND at_s <= ? AND (kind = ? OR ?) "
        "ORDER BY seq DESC LIMIT 1"
    )
    values = (launch.generation, told.at_s, change.proposal.trigger, of_any_class)
    row = connection.execute(query, values).fetchone()
    failure = None if row is None else _decoded(row[1], Failure)
    return None if failure is None else (row[0], failure)


def _bans(connection: sqlite3.Connection, told: Told, launch: Launch) -> tuple[tuple[Failure, ...], int]:
    """Return the newest failures that forbade flags on the fingerprint of a launch then, and how many there were."""
    kinds = sorted(OF_FLAGS)
    query = (
        "SELECT f.payload, count(*) OVER () FROM failures f JOIN launches l ON l.generation = f.generation "  # noqa: S608 - marks
        f"WHERE f.at_s <= ? AND f.kind IN ({', '.join('?' * len(kinds))}) "
        "AND json_extract(f.payload, '$.cause') IS NOT ? "
        "AND json_extract(l.payload, '$.fingerprint') = ? "
        "AND l.at_s > coalesce((SELECT max(o.at_s) FROM orders o WHERE o.kind = 'Forget' AND o.at_s <= ?), 0) "
        "ORDER BY f.seq DESC LIMIT ?"
    )
    values = (told.at_s, *kinds, GUESSED, launch.fingerprint, told.at_s, _BANS)
    rows = connection.execute(query, values).fetchall()
    found = (_decoded(payload, Failure) for payload, _ in rows)
    return tuple(failure for failure in found if failure is not None), rows[0][1] if rows else 0


def _decoded(payload: str, kind: type[T]) -> T | None:
    """Return a stored entry, None for one that this version cannot read."""
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.DecodeError, TypeError):
        return None
