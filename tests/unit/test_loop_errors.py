"""What the event loop says of itself: a host with nothing left is one line, a bug is told with its traceback."""

import asyncio
import errno
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from vllmd.report.loop_errors import LoopErrors


async def errors_of(error: Exception, times: int) -> None:
    """Let an event loop tell of an error so many times."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(LoopErrors())
    for _ in range(times):
        loop.call_exception_handler({"message": "socket.accept() out of system resource", "exception": error})


def test_a_host_without_descriptors_is_told_once() -> None:
    """Asyncio tells of each of a hundred connections that it wanted to take."""
    with capture_logs() as told:
        asyncio.run(errors_of(OSError(errno.EMFILE, os.strerror(errno.EMFILE)), times=100))
    assert [(line["log_level"], line["reason"]) for line in told] == [("warning", "[Errno 24] Too many open files")]


def test_a_bug_is_told_each_time_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """What is no matter of the host goes the way it always went."""
    asyncio.run(errors_of(ValueError("a bug"), times=2))
    assert [record.exc_info is not None and record.exc_info[0] for record in caplog.records] == [ValueError] * 2


def test_asyncio_still_tells_so_where_a_connection_cannot_be_taken() -> None:
    """The real thing: a listener whose accept() fails calls the handler with an OSError, and listens on."""

    async def refuse() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(LoopErrors())
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "socket")
            listener = Refusing(socket.AF_UNIX)
            listener.bind(path)
            server = await asyncio.start_unix_server(lambda _reader, writer: writer.close(), sock=listener)
            reader, writer = await asyncio.open_unix_connection(path)
            assert await asyncio.wait_for(reader.read(), 10) == b""  # it was taken a second later
            writer.close()
            server.close()

    with capture_logs() as told:
        asyncio.run(refuse())
    assert [line["event"] for line in told] == ["connections cannot be taken now"]


def test_a_listener_that_is_closed_while_it_waits_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """The real thing: asyncio wants to hear it again a second later, and does not call that off."""

    async def close_early() -> None:
        loop = asyncio.get_running_loop()
        refused, tell = asyncio.Event(), LoopErrors()

        def hear(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            tell(loop, context)
            refused.set()

        loop.set_exception_handler(hear)
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "socket")
            listener = Refusing(socket.AF_UNIX)
            listener.bind(path)
            server = await asyncio.start_unix_server(lambda _reader, writer: writer.close(), sock=listener)
            _, writer = await asyncio.open_unix_connection(path)
            await asyncio.wait_for(refused.wait(), 10)
            server.close()
            writer.close()
            await asyncio.sleep(1.2)  # asyncio's second (ACCEPT_RETRY_DELAY), after which nothing comes

    with capture_logs() as told:
        asyncio.run(close_early())
    assert caplog.records == []  # where asyncio tells of what it does not know
    assert [line["event"] for line in told] == ["connections cannot be taken now"]


class Refusing(socket.socket):
    """A listener that cannot accept until it is asked again, as where the process has no descriptor left."""

    refused = 0

    def accept(self) -> tuple[socket.socket, object]:
        """Refuse a hundred times, which is how often asyncio asks before it waits a second."""
        if self.refused < 100:
            self.refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()
