"""server.json: which processes are ours, so that a vllmd that was killed finds them again, and only them."""

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from vllmd.model.server import ProcessId
from vllmd.observe.processes import alive, boot_id, exists, session_members

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """The processes of the last launch: its leader, which leads the session, and the members seen in it."""

    boot_id: str
    generation: int
    leader: ProcessId
    members: tuple[ProcessId, ...] = ()


def write_record(path: Path, record: ServerRecord) -> None:
    """Replace the file atomically."""
    text = json.dumps(
        {
            "boot_id": record.boot_id,
            "generation": record.generation,
            "leader": [record.leader.pid, record.leader.start_ticks],
            "members": [[m.pid, m.start_ticks] for m in record.members],
        }
    )
    temporary = path.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(path)


def read_record(path: Path) -> ServerRecord | None:
    """Return the record; None if there is none. An unreadable one is set aside as server.json.unreadable, and told."""
    try:
        data = json.loads(path.read_text())
        return ServerRecord(
            str(data["boot_id"]),
            int(data["generation"]),
            ProcessId(*map(int, data["leader"])),
            tuple(ProcessId(*map(int, m)) for m in data["members"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        aside = path.with_suffix(".json.unreadable")
        log.warning("the record of the server's processes is unreadable", reason=str(error), kept_as=str(aside))
        with suppress(OSError):
            path.replace(aside)
        return None


def leftovers(record: ServerRecord | None) -> tuple[ProcessId, ...]:
    """Return the live processes of a recorded launch.

    The session's number is the leader's pid. It is still ours when the leader lives or was not collected yet, or when
    a member that was recorded is in it: while one process is in a session, the kernel gives its number to no other.
    """
    if record is None or record.boot_id != boot_id():
        return ()
    proofs = [p for p in (record.leader, *record.members) if exists(p)]
    living = [p for p in proofs if alive(p)]
    if not any(_in_session(p, record.leader.pid) for p in proofs):
        return tuple(dict.fromkeys(living))
    return tuple(dict.fromkeys((*living, *session_members(record.leader.pid))))


def _in_session(process: ProcessId, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session
    except OSError:
        return False
