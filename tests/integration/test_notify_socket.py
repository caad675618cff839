"""sd_notify against a real datagram socket."""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from vllmd.ports import Notifier
from vllmd.report.notify import SdNotifier


@pytest.fixture(params=["file", "abstract"])
def manager(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, str]]:
    """Give a service manager's socket and its address as $NOTIFY_SOCKET holds it."""
    with (
        TemporaryDirectory(prefix="vllmd") as folder,
        closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as bound,
    ):
        path = str(Path(folder) / "notify")
        address = path if request.param == "file" else f"@{path}"
        bound.bind(address.replace("@", "\0", 1))
        bound.settimeout(5)
        yield bound, address


def test_messages(manager: tuple[socket.socket, str]) -> None:
    """Ready, status and stopping arrive, on a socket file and on an abstract one."""
    bound, address = manager
    notifier: Notifier = SdNotifier({"NOTIFY_SOCKET": address})
    notifier.ready()
    notifier.status("loading weights")
    notifier.stopping()
    assert [bound.recv(1000) for _ in range(3)] == [b"READY=1", b"STATUS=loading weights", b"STOPPING=1"]


def test_a_status_is_one_assignment(manager: tuple[socket.socket, str]) -> None:
    """Text with line breaks cannot smuggle in another assignment."""
    bound, address = manager
    SdNotifier({"NOTIFY_SOCKET": address}).status("x\nMAINPID=1")
    received = bound.recv(1000)
    assert received.startswith(b"STATUS=x")
    assert b"\n" not in received


def test_no_manager() -> None:
    """Without $NOTIFY_SOCKET, and when the manager is gone, nothing happens."""
    SdNotifier({}).ready()
    SdNotifier({"NOTIFY_SOCKET": "/nowhere/at/all"}).ready()
