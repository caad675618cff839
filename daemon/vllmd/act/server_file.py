"""server.json: which processes are ours, so that a vllmd that was killed finds them again, and only them."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from vllmd.model.server import ProcessId
from vllmd.observe.processes import alive, boot_id, session_members


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
    """Return the record; None if there is none. An unreadable one is set aside as server.json.unreadable."""
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
    except (ValueError, KeyError, TypeError):
        path.replace(path.with_suffix(".json.unreadable"))
        return None


def leftovers(record: ServerRecord | None) -> tuple[ProcessId, ...]:
    """Return the live processes of a recorded launch.

    The session's number is the leader's pid. It is still ours when the leader lives, or when a member that was
    recorded lives in it: while one process is in a session, the kernel gives its number to no other.
    """
    if record is None or record.boot_id != boot_id():
        return ()
    proofs = [p for p in (record.leader, *record.members) if alive(p)]
    if not any(_in_session(p, record.leader.pid) for p in proofs):
        return tuple(proofs)
    return tuple(dict.fromkeys((*proofs, *session_members(record.leader.pid))))


def _in_session(process: ProcessId, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session
    except OSError:
        return False
