"""The control socket: one JSON line in, one JSON line out, and the kernel says who asks."""

import asyncio
import grp
import json
import os
import socket
import stat
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from vllmd.errors import ControlError, InstanceBusyError, VllmdError

REQUEST_LIMIT = 64 * 1024
EXCHANGE_LIMIT_S = 5.0
CONNECTION_LIMIT = 16

_SO_PEERGROUPS = 59  # include/uapi/asm-generic/socket.h; Python's socket module does not name it
_UCRED = struct.Struct("=iII")  # struct ucred of unix(7): pid, uid, gid
_GROUPS_BYTES = 1024  # the most that getsockopt() of Python reads: 256 groups

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a connection, as the kernel says."""

    pid: int
    uid: int
    gid: int
    groups: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Command:
    """What one command does.

    `answer` is given what the request holds besides the command, and who asks. It returns at once, and raises
    ControlError to refuse.
    """

    answer: Callable[[Mapping[str, Any], Peer], Mapping[str, Any]]
    changing: bool = False


def allowed(peer: Peer, own_uid: int, socket_gid: int, *, changing: bool) -> bool:
    """Whether a peer may: root and the service's own user everything, the socket's group only reading."""
    if peer.uid in (0, own_uid):
        return True
    return not changing and socket_gid in {peer.gid, *peer.groups}


class ControlServer:
    """Answers the commands on a UNIX socket. VllmdError on start if the socket cannot be had."""

    def __init__(
        self,
        path: Path,
        commands: Mapping[str, Command],
        group: str | None = None,
        exchange_limit_s: float = EXCHANGE_LIMIT_S,
    ) -> None:
        self._path = path
        self._commands = commands
        self._group = group
        self._exchange_limit_s = exchange_limit_s
        self._socket_gid = -1
        self._inode = -1
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        """Listen. A stale socket file is replaced; InstanceBusyError if a daemon still answers on it."""
        try:
            listener = _bind(self._path, self._group)
        except OSError as error:
            raise VllmdError(f"cannot listen on {self._path} ([listen] control): {error.strerror or error}") from error
        found = self._path.stat()
        self._socket_gid, self._inode = found.st_gid, found.st_ino
        self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=REQUEST_LIMIT)

    async def close(self) -> None:
        """Stop answering, and take the socket file away if it is still ours."""
        if self._server is None:
            return
        self._server.close()
        for writer in tuple(self._open):
            writer.close()
        try:
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        except FileNotFoundError:
            log.info("control socket was already gone", path=str(self._path))
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and hang up."""
        self._open.add(writer)
        try:
            async with asyncio.timeout(self._exchange_limit_s):
                answer = await self._answer(reader, writer)
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (TimeoutError, OSError) as error:
            log.info("control connection given up", reason=str(error) or "too slow")
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Mapping[str, Any]:
        """Return the answer to the request that is waiting."""
        if len(self._open) > CONNECTION_LIMIT:
            return _refusal("busy", f"more than {CONNECTION_LIMIT} connections at once")
        try:
            line = await reader.readuntil(b"\n")
        except (asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            return _refusal("bad_request", f"expected one JSON line of at most {REQUEST_LIMIT} bytes")
        return self._execute(line, _peer(writer.get_extra_info("socket")))

    def _execute(self, line: bytes, peer: Peer) -> Mapping[str, Any]:
        """Carry out one request."""
        if not self._may(peer, changing=False):
            return _denied(peer, "reading")
        request = _request(line)
        name = request.get("command")
        command = self._commands.get(name) if isinstance(name, str) else None
        if command is None:
            return _refusal("unknown_command", f"known commands: {', '.join(sorted(self._commands))}")
        if not self._may(peer, changing=command.changing):
            return _denied(peer, "changing")
        if command.changing:
            log.info("command", command=name, uid=peer.uid, pid=peer.pid)
        try:
            return command.answer(request, peer)
        except ControlError as error:
            return _refusal("refused", str(error))

    def _may(self, peer: Peer, *, changing: bool) -> bool:
        """Whether this peer may."""
        return allowed(peer, os.geteuid(), self._socket_gid, changing=changing)


def _refusal(code: str, message: str) -> Mapping[str, Any]:
    """Return the answer to a request that is not carried out."""
    return {"error": {"code": code, "message": message}}


def _denied(peer: Peer, what: str) -> Mapping[str, Any]:
    """Return the answer to a peer who may not, and log it."""
    log.warning("control request refused", uid=peer.uid, pid=peer.pid, wanted=what)
    who = "root and the service's own user" + ("" if what == "changing" else " and the socket's group")
    return _refusal("no_permission", f"{what} is for {who}; you are uid {peer.uid}")


def _request(line: bytes) -> dict[str, Any]:
    """Return a request; an empty one for what is none."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return request if isinstance(request, dict) else {}


def _peer(connection: socket.socket) -> Peer:
    """Return who connected. More than 256 groups cannot be read: such a peer counts with its own group only."""
    pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        return Peer(pid, uid, gid)
    return Peer(pid, uid, gid, frozenset(number for (number,) in struct.iter_unpack("=I", raw)))


def _bind(path: Path, group: str | None) -> socket.socket:
    """Return a bound socket with mode 0660. Nobody can connect before it listens, so the mode is never late."""
    gid = -1 if group is None else _gid(group)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(str(path))
        path.chmod(0o660)
        os.chown(path, -1, gid)
    except OSError:
        listener.close()
        raise
    return listener


def _gid(group: str) -> int:
    """Return a group's number; VllmdError if there is none of this name."""
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise VllmdError(f"there is no group {group!r} on this host ([listen] group)") from error


def _remove_stale(path: Path) -> None:
    """Remove a socket file on which nothing answers; refuse to remove anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise VllmdError(f"{path} exists and is not a socket: remove it, or set [listen] control elsewhere")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise InstanceBusyError(f"another vllmd answers on {path}")
