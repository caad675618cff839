"""server.json: which processes are ours, so that a vllmd that was killed finds them again, and only them."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import structlog

from vllmd.act.launch_logs import generation_of
from vllmd.model.server import ProcessId
from vllmd.observe.processes import alive, boot_id, exists, identify, output_of, session_members, variable_of
from vllmd_shim.block import VARIABLE

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """The processes of the last launch: its leader, which leads the session, and the members seen in it.

    `cgroup` is the leader's, `options` the mark of what followed the program, `block` the path of its control block;
    each is empty where it is not known.
    `ready`: it has served. `ending`: its end was asked for. `left`: it is to outlive its vllmd.
    """

    boot_id: str
    generation: int
    leader: ProcessId
    members: tuple[ProcessId, ...] = ()
    cgroup: str = ""
    options: str = ""
    ending: bool = False
    left: bool = False
    ready: bool = False
    block: str = ""


def options_mark(words: Sequence[str]) -> str:
    """Return the mark of a command's words after the program: their number and a hash, for they may hold keys."""
    return f"{len(words)}:{hashlib.sha256(chr(0).join(words).encode(errors='surrogateescape')).hexdigest()}"


def write_record(path: Path, record: ServerRecord) -> None:
    """Replace the file atomically."""
    text = json.dumps(
        {
            "boot_id": record.boot_id,
            "generation": record.generation,
            "leader": [record.leader.pid, record.leader.start_ticks],
            "members": [[m.pid, m.start_ticks] for m in record.members],
            "cgroup": record.cgroup,
            "options": record.options,
            "ending": record.ending,
            "left": record.left,
            "ready": record.ready,
            "block": record.block,
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
            str(data.get("cgroup", "")),
            str(data.get("options", "")),
            bool(data.get("ending")),
            bool(data.get("left")),
            bool(data.get("ready")),
            str(data.get("block", "")),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        aside = path.with_suffix(".json.unreadable")
        log.warning("the record of the server's processes is unreadable", reason=str(error), kept_as=str(aside))
        with suppress(OSError):
            path.replace(aside)
        return None


def left_records(
    server_path: Path, candidate_path: Path, log_dir: Path
) -> tuple[ServerRecord | None, ServerRecord | None]:
    """Return what is on record of the server, and of a launch that was prepared beside it.

    Each with every process that writes to the log of its launch, also where there was no record: it may be lost, or a
    vllmd was killed before it could note an engine that has just begun. Nobody but vllmd lets a process have the log of
    a launch as its standard output.
    """
    server, candidate = read_record(server_path), read_record(candidate_path)
    if server is not None and candidate is not None and candidate.generation == server.generation:
        candidate = None  # it has taken the server's place
    writing = _writers(log_dir)
    beside = {process for process, number in writing.items() if _is_beside(number, server, candidate)}
    return (
        _completed(server and _with_block(server), {p: n for p, n in writing.items() if p not in beside}),
        _completed(candidate, {p: n for p, n in writing.items() if p in beside}),
    )


def _is_beside(generation: int, server: ServerRecord | None, candidate: ServerRecord | None) -> bool:
    """Whether a launch whose processes live is one that was prepared beside the server.

    It is on record as that, or later than a server that lives: no other launch is made then.
    """
    if candidate is not None and candidate.boot_id == boot_id() and candidate.generation == generation:
        return True
    lives = server is not None and server.boot_id == boot_id() and alive(server.leader)
    return lives and server is not None and generation > server.generation


def _completed(record: ServerRecord | None, writing: Mapping[ProcessId, int]) -> ServerRecord | None:
    """Return the record with these processes, which write to logs of launches."""
    if not writing:
        return record
    generation = max(writing.values())
    if record is not None and record.boot_id == boot_id() and record.generation >= generation:
        return replace(record, members=tuple(dict.fromkeys((*record.members, *writing))))
    session = next(_session(process) for process, number in writing.items() if number == generation)
    leader = next((process for process in writing if process.pid == session), ProcessId(session, 0))
    log.warning("a server is known by its log alone", generation=generation, pids=[p.pid for p in writing])
    return ServerRecord(boot_id(), generation, leader, tuple(writing), block=variable_of(leader.pid, VARIABLE))


def _with_block(record: ServerRecord) -> ServerRecord:
    """Return the record with its server's block, also where an older vllmd, which knows of none, wrote it meanwhile."""
    if record.block or record.boot_id != boot_id() or not alive(record.leader):
        return record
    return replace(record, block=variable_of(record.leader.pid, VARIABLE))


def _writers(log_dir: Path) -> dict[ProcessId, int]:
    """Return the live processes whose standard output is a launch's log, with its generation."""
    return {
        process: generation
        for pid in psutil.pids()
        if (generation := generation_of(output_of(pid), log_dir)) is not None and (process := identify(pid)) is not None
    }


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
    return session != 0 and _session(process) == session


def _session(process: ProcessId) -> int:
    """Return the number of a process's session; 0 if it has ended, or its session is another PID namespace's."""
    try:
        return os.getsid(process.pid)
    except OSError:
        return 0
