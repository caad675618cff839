"""One question to a running daemon over its control socket. Blocking, and light to import: every CLI call does it."""

import json
import socket
import time
from pathlib import Path
from typing import Any

from vllmd.errors import ControlError

ANSWER_LIMIT = 2**20  # a status document with 20 decisions is about 30 KiB
_CHUNK = 65536


class UnreachableError(ControlError):
    """No daemon answers on the socket."""


class DeniedError(ControlError):
    """The caller may not use the socket, or not for this."""


def ask(path: Path, command: str, timeout_s: float = 2.0, **arguments: object) -> dict[str, Any]:
    """Send one command with its arguments (JSON values) and return its answer.

    Raises UnreachableError if nothing answers within `timeout_s`, DeniedError without permission, ControlError if
    the daemon refuses.
    """
    deadline_s = time.monotonic() + timeout_s
    question = json.dumps({"command": command, **arguments}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            connection.sendall(question)
            line = _read_line(connection, deadline_s)
    except PermissionError as error:
        raise DeniedError(f"no permission to use {path}") from error
    except OSError as error:
        raise UnreachableError(f"no daemon answers on {path}: {error.strerror or error}") from error
    return _checked(line, path)


def _read_line(connection: socket.socket, deadline_s: float) -> bytes:
    """Return the bytes before the first newline; TimeoutError once the deadline has passed."""
    received = bytearray()
    while b"\n" not in received:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no answer in time")
        connection.settimeout(left_s)
        chunk = connection.recv(_CHUNK)
        if not chunk:
            raise ConnectionError("the answer was cut off")
        received += chunk
        if len(received) > ANSWER_LIMIT:
            raise ConnectionError(f"the answer is longer than {ANSWER_LIMIT} bytes")
    return bytes(received.partition(b"\n")[0])


def _checked(line: bytes, path: Path) -> dict[str, Any]:
    """Return the answer as an object; raise what it says if it is an error."""
    try:
        answer = json.loads(line)
    except ValueError as error:
        raise UnreachableError(f"what answers on {path} is not vllmd") from error
    if not isinstance(answer, dict):
        raise UnreachableError(f"what answers on {path} is not vllmd")
    refusal = answer.get("error")
    if not isinstance(refusal, dict):
        return answer
    message = str(refusal.get("message", "refused"))
    raise DeniedError(message) if refusal.get("code") == "no_permission" else ControlError(message)
