"""The ledger's file: opened, brought to the current schema, and set aside when it cannot be read."""

import os
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from vllmd.errors import VllmdError

# Each entry lifts the schema by one; entries are only ever added. PRAGMA user_version says how many were applied.
MIGRATIONS = (
    """
    CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
    CREATE TABLE launches (seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, generation INTEGER NOT NULL,
        payload TEXT NOT NULL) STRICT;
    CREATE TABLE failures (seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, generation INTEGER NOT NULL,
        kind TEXT NOT NULL, payload TEXT NOT NULL) STRICT;
    CREATE TABLE decisions (seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, id TEXT UNIQUE, action TEXT NOT NULL,
        payload TEXT NOT NULL) STRICT;
    CREATE TABLE outcomes (seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, change_id TEXT NOT NULL,
        generation INTEGER NOT NULL, payload TEXT NOT NULL) STRICT;
    CREATE TABLE verifications (seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, change_id TEXT NOT NULL,
        effect TEXT NOT NULL, payload TEXT NOT NULL) STRICT;
    CREATE INDEX launches_at ON launches (at_s);
    CREATE INDEX failures_at ON failures (at_s);
    CREATE INDEX decisions_at ON decisions (at_s);
    CREATE INDEX outcomes_of ON outcomes (change_id);
    CREATE INDEX verifications_of ON verifications (change_id);
    """,
    """
    CREATE TABLE good (seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, generation INTEGER NOT NULL,
        payload TEXT NOT NULL) STRICT;
    CREATE TABLE orders (seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, kind TEXT NOT NULL,
        payload TEXT NOT NULL) STRICT;
    CREATE INDEX good_of ON good (generation);
    CREATE INDEX failures_of ON failures (generation);
    CREATE INDEX launches_of ON launches (generation);
    """,
    """
    CREATE TABLE starts (seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, generation INTEGER NOT NULL,
        payload TEXT NOT NULL) STRICT;
    CREATE INDEX starts_of ON starts (generation);
    """,
)

_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY_TIMEOUT_S = 5.0


class LedgerError(VllmdError):
    """The ledger cannot be opened, or did not take an entry."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An open ledger file. `set_aside`: where an unreadable one went."""

    connection: sqlite3.Connection
    set_aside: Path | None = None


def open_file(path: Path) -> Opened:
    """Open or make the file; an unreadable one is renamed first. LedgerError if it is newer or cannot be had."""
    try:
        return Opened(_connected(path))
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) not in _BROKEN:
            raise LedgerError(f"cannot open {path}: {error}") from error
    except OSError as error:
        raise LedgerError(f"cannot open {path}: {error.strerror or error}") from error
    aside = _set_aside(path)
    return Opened(_connected(path), aside)


def _connected(path: Path) -> sqlite3.Connection:
    """Return a connection to a sound file of the current schema."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640))  # SQLite would make it readable for all
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        _check(connection)
        _migrate(connection, path)
    except (sqlite3.Error, LedgerError):
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection) -> None:
    """Raise what SQLite raises for a damaged file, if it is damaged."""
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        error = sqlite3.DatabaseError(verdict)
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema forward, one step a transaction; LedgerError if it is from a later vllmd."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise LedgerError(
            f"{path} was written by a newer vllmd (schema {version}, this one knows {len(MIGRATIONS)}): "
            "run that vllmd, or move the file away"
        )
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.executescript(f"BEGIN; {script} PRAGMA user_version={number}; COMMIT;")


def _set_aside(path: Path) -> Path:
    """Rename an unreadable file and what belongs to it; return its new place."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = path.with_name(f"{path.name}.unreadable-{stamp}")
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    return aside
