"""When a parked server is drained: with real connections, and a block that says what is in flight."""

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import cast

import pytest

from own_network import own_network
from vllmd.act.live_block import LiveBlock
from vllmd.act.planned_restart import Limits, PlannedRestart
from vllmd.clock import SystemClock
from vllmd.model.flags import Flags
from vllmd.model.live import Traffic
from vllmd.observe.processes import connections

HOST = "127.0.0.1"
LIMITS = Limits(drain_s=20.0, hold_s=60.0, keep_alive_s=1.0)
SOON_S = 1.5


class Idle:
    """A block of a server that has nothing in flight and kept no connection, as far as it has read."""

    def traffic(self) -> Traffic:
        """Return that."""
        return Traffic(in_flight=0, kept_s=0.0, shared_port=True)

    def drain(self, *, on: bool) -> None:
        """Take note of nothing."""


@pytest.fixture(name="server")
def _server() -> Iterator[socket.socket]:
    """Listen in a network of its own, in which the kernel hands connections over."""
    with own_network(), closing(socket.create_server((HOST, 0), reuse_port=True)) as server:
        yield server


def drained_after(server: socket.socket, open_for_s: float | None) -> float:
    """Park and drain a server that has accepted one connection; return how long it took.

    The connection is closed after a while, by the server; None: never.
    """

    async def body() -> float:
        port = server.getsockname()[1]
        with closing(socket.create_connection((HOST, port))) as client:
            taken, _ = server.accept()
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert connections(port, 0) == 1
            restart = PlannedRestart(cast("LiveBlock", Idle()), SystemClock())
            assert restart.park(HOST, port, Flags(()), LIMITS, gated=False)
            if open_for_s is not None:
                asyncio.get_running_loop().call_later(open_for_s, taken.close)
            began_s = time.monotonic()
            await restart.drain(LIMITS, {asyncio.get_running_loop().create_future()})
            took_s = time.monotonic() - began_s
            restart.release()
            taken.close()
        return took_s

    return asyncio.run(body())


def test_a_connection_that_was_accepted_and_not_read_yet_is_waited_for(server: socket.socket) -> None:
    """A busy server reads late: what it has not read it does not count, and would lose with its end."""
    assert 3.0 <= drained_after(server, open_for_s=3.0) < 3.0 + SOON_S


def test_a_server_without_connections_is_drained_at_once(server: socket.socket) -> None:
    """The time for which it would keep one is not waited for."""
    assert drained_after(server, open_for_s=0.0) < SOON_S


def test_a_connection_that_never_brings_a_request_is_waited_for_only_so_long(server: socket.socket) -> None:
    """Nobody closes it: the drain ends long before its own limit."""
    assert 5.0 < drained_after(server, open_for_s=None) < LIMITS.drain_s / 2


def test_what_waits_in_the_parked_listener_is_no_connection_of_the_server(server: socket.socket) -> None:
    """It is handed to the next server: nobody waits for it. What waits for the old one is its own."""
    port, inode = server.getsockname()[1], os.fstat(server.fileno()).st_ino
    with closing(socket.create_connection((HOST, port))):
        assert connections(port, parked=inode) == 0
        assert connections(port, parked=0) == 1
        taken, _ = server.accept()
        with taken:
            assert connections(port, parked=inode) == 1
        assert connections(port, parked=inode) == 0
