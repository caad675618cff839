"""A server is spawned at a gate and runs once its process is on record: a daemon that dies leaves none unrecorded."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

_RUNS_WITHIN_S = 30.0  # a bare interpreter's start: 20 ms on an idle core, more where a model is being loaded
_ENDS_WITHIN_S = 5.0  # the gate has nothing left to do

# Waits for a byte; the end of the stream is the daemon's death. exec keeps the pid and its start time, closes the
# stream (which tells that the program runs), and gives the program what Popen would: no input, default signals. In the
# C locale Python sets LC_CTYPE; vLLM's own does the same.
_GATE = """
import os, signal, sys
stream = os.dup(0)
if os.read(stream, 1):
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        os.write(stream, str(error.errno).encode())
"""

T = TypeVar("T")


async def spawn(
    argv: Sequence[str], environment: Mapping[str, str], output: int, record: Callable[[int], T]
) -> tuple["subprocess.Popen[bytes]", T]:
    """Start a program in a session of its own; return it, and what `record` returned for its pid.

    The program runs after `record`, or never. OSError if it cannot be started.
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = _at_the_gate(argv, environment, output, theirs.fileno())
        recorded = record(child.pid)
        ours.setblocking(False)  # noqa: FBT003 - socket's signature
        error = await _let_run(ours, child)
    if error is not None:
        child.wait(_ENDS_WITHIN_S)
        raise error
    return child, recorded


def _at_the_gate(
    argv: Sequence[str], environment: Mapping[str, str], output: int, stream: int
) -> "subprocess.Popen[bytes]":
    """Start a process that will be the program."""
    return subprocess.Popen(
        (sys.executable, "-I", "-S", "-c", _GATE, *argv),
        stdin=stream,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )


async def _let_run(stream: socket.socket, child: "subprocess.Popen[bytes]") -> OSError | None:
    """Open the gate; return why the program does not run, None if it does (or was killed, which its end will tell)."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_RUNS_WITHIN_S):
            await loop.sock_sendall(stream, b"\n")
            told = await loop.sock_recv(stream, 16)
    except TimeoutError:
        child.kill()
        return OSError(0, f"it did not run within {_RUNS_WITHIN_S:.0f} s")
    except ConnectionError:
        return None
    return OSError(int(told), os.strerror(int(told))) if told else None
