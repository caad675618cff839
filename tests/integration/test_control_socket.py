"""The control socket with real clients: who is answered, what is refused, and what a bad client can do."""

import asyncio
import grp
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest

from answering import while_answering
from examples import example_status
from vllmd.errors import ControlError, InstanceBusyError, VllmdError
from vllmd.report.ask import DeniedError, UnreachableError, ask
from vllmd.report.control import CONNECTION_LIMIT, REQUEST_LIMIT, Command, ControlServer, Peer
from vllmd.report.status_json import status_document

T = TypeVar("T")
NOBODY = 65534

is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder with a short name: socket paths are limited to 107 bytes."""
    with TemporaryDirectory(prefix="vllmd") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def refuse(_request: Mapping[str, Any], _peer: Peer) -> Mapping[str, Any]:
    """Refuse, as a callback does when the moment is wrong."""
    raise ControlError("the server is draining")


COMMANDS = {
    "status": Command(lambda _request, _peer: status_document(example_status())),
    "restart": Command(lambda _request, _peer: {"message": "restart begun"}, changing=True),
    "refuse": Command(refuse, changing=True),
}


def with_server(path: Path, use: Callable[[], T], group: str | None = None, exchange_limit_s: float = 5.0) -> T:
    """Return what a client gets while a server answers on the path."""
    return while_answering(path, COMMANDS, use, group, exchange_limit_s)


def raw(path: Path, request: bytes) -> dict[str, Any]:
    """Return the answer to raw bytes."""
    with closing(socket.socket(socket.AF_UNIX)) as client:
        client.settimeout(10)
        client.connect(str(path))
        client.sendall(request)
        with client.makefile("rb") as answer:
            found: dict[str, Any] = json.loads(answer.readline())
    return found


def test_status_is_answered(folder: Path) -> None:
    """A question gets the status document."""
    path = folder / "control.sock"
    assert with_server(path, lambda: ask(path, "status")) == status_document(example_status())


def test_restart_is_carried_out(folder: Path) -> None:
    """A changing command of the service's own user is carried out."""
    path = folder / "control.sock"
    assert with_server(path, lambda: ask(path, "restart")) == {"message": "restart begun"}


def test_refusal_says_why(folder: Path) -> None:
    """A command that is refused raises with the daemon's own words."""
    path = folder / "control.sock"
    with pytest.raises(ControlError, match="the server is draining") as caught:
        with_server(path, lambda: ask(path, "refuse"))
    assert not isinstance(caught.value, DeniedError | UnreachableError)


@pytest.mark.parametrize(
    "request_", [b"\n", b"nonsense\n", b"[]\n", b'{"command": 3}\n', b'{"command": "x"}\n', b"\xff\n"]
)
def test_nonsense_gets_the_known_commands(folder: Path, request_: bytes) -> None:
    """A request that is none is answered with the commands that there are."""
    path = folder / "control.sock"
    answer = with_server(path, lambda: raw(path, request_))
    assert answer["error"]["code"] == "unknown_command"
    assert "refuse, restart, status" in answer["error"]["message"]


def test_a_request_without_end_is_cut_off(folder: Path) -> None:
    """A request longer than the limit is refused, not collected."""
    path = folder / "control.sock"
    answer = with_server(path, lambda: raw(path, b"x" * (REQUEST_LIMIT * 2) + b"\n"))
    assert answer["error"]["code"] == "bad_request"


def test_a_silent_client_is_hung_up_on(folder: Path) -> None:
    """A client that connects and says nothing loses its connection after the limit."""
    path = folder / "control.sock"

    def wait() -> bytes:
        with closing(socket.socket(socket.AF_UNIX)) as client:
            client.settimeout(10)
            client.connect(str(path))
            return client.recv(1)

    assert with_server(path, wait, exchange_limit_s=0.2) == b""


def test_silent_clients_do_not_pile_up(folder: Path) -> None:
    """With every connection taken, one more is told so at once; when they leave, it is answered."""
    path = folder / "control.sock"

    def crowd() -> None:
        with ExitStack() as stack:
            for _ in range(CONNECTION_LIMIT):
                client = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
                client.connect(str(path))
            with pytest.raises(ControlError, match="connections at once"):
                ask(path, "status")

    with_server(path, crowd)


def test_client_that_leaves_early_harms_nobody(folder: Path) -> None:
    """A client that hangs up before its answer leaves the server answering."""
    path = folder / "control.sock"

    def leave_then_ask() -> dict[str, Any]:
        with closing(socket.socket(socket.AF_UNIX)) as client:
            client.connect(str(path))
            client.sendall(b'{"command": "status"}\n')
        return ask(path, "status")

    assert with_server(path, leave_then_ask)["schema"] == "vllmd.status/v1"


def test_socket_is_for_owner_and_group(folder: Path) -> None:
    """The socket's mode is 0660, and it is gone after the end."""
    path = folder / "deep" / "control.sock"
    mode = with_server(path, lambda: path.stat().st_mode)
    assert (stat.S_ISSOCK(mode), mode & 0o777) == (True, 0o660)
    assert not path.exists()


def left_behind(path: Path) -> None:
    """Leave a socket file on which nothing answers, as a killed daemon does."""
    with closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(path))


def test_a_stale_socket_is_replaced(folder: Path) -> None:
    """The socket file of a killed daemon does not stand in the way of the next."""
    path = folder / "control.sock"
    left_behind(path)
    assert with_server(path, lambda: ask(path, "status"))["host"] == "gpu7"


async def start(path: Path, group: str | None = None) -> None:
    """Begin to listen."""
    await ControlServer(path, COMMANDS, group).start()


def test_a_living_daemon_keeps_its_socket(folder: Path) -> None:
    """A second daemon does not take the socket of one that answers."""
    path = folder / "control.sock"

    def second() -> dict[str, Any]:
        with pytest.raises(InstanceBusyError, match="another vllmd answers"):
            asyncio.run(start(path))
        return ask(path, "status")

    assert with_server(path, second)["host"] == "gpu7"


def test_a_file_in_the_way_is_not_deleted(folder: Path) -> None:
    """A file that is no socket is never removed."""
    path = folder / "control.sock"
    path.write_text("mine")
    with pytest.raises(VllmdError, match="is not a socket"):
        asyncio.run(start(path))
    assert path.read_text() == "mine"


def test_an_unknown_group_is_named(folder: Path) -> None:
    """A group that the host does not have is an error of the configuration."""
    with pytest.raises(VllmdError, match=r"no group 'no-such-group'.*\[listen\] group"):
        asyncio.run(start(folder / "control.sock", "no-such-group"))


def test_nobody_there(folder: Path) -> None:
    """Without a daemon the client says so, whether a socket file was left or not."""
    path = folder / "control.sock"
    with pytest.raises(UnreachableError, match="no daemon answers"):
        ask(path, "status")
    left_behind(path)
    with pytest.raises(UnreachableError, match="no daemon answers"):
        ask(path, "status")


def test_a_daemon_that_hangs(folder: Path) -> None:
    """A daemon that accepts and says nothing costs the client its time limit, no more."""
    with closing(socket.socket(socket.AF_UNIX)) as hung:
        hung.bind(str(folder / "control.sock"))
        hung.listen(1)
        with pytest.raises(UnreachableError, match="no daemon answers"):
            ask(folder / "control.sock", "status", timeout_s=0.2)


ASK_AS = """
import os, sys
from pathlib import Path
from vllmd.errors import ControlError
from vllmd.report.ask import ask
path, command, uid = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
os.setgroups([int(gid) for gid in sys.argv[4:]])
os.setgid(uid)
os.setuid(uid)
try:
    print("answered", sorted(ask(path, command))[0])
except ControlError as error:
    print(type(error).__name__, error)
"""


def ask_as(path: Path, command: str, uid: int, *groups: int) -> str:
    """Return what another user gets."""
    argv = [sys.executable, "-c", ASK_AS, str(path), command, str(uid), *map(str, groups)]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout.strip()


@is_root
def test_a_stranger_cannot_connect(folder: Path) -> None:
    """The file's mode keeps a stranger out."""
    path = folder / "control.sock"
    assert with_server(path, lambda: ask_as(path, "status", NOBODY)).startswith("DeniedError no permission")


@is_root
def test_credentials_are_checked_even_where_the_mode_is_not(folder: Path) -> None:
    """A socket that someone opened for all still answers nobody but those who may."""
    path = folder / "control.sock"

    def opened() -> str:
        path.chmod(0o666)
        return ask_as(path, "status", NOBODY)

    assert with_server(path, opened) == (
        f"DeniedError reading is for root and the service's own user and the socket's group; you are uid {NOBODY}"
    )


@is_root
def test_the_group_reads_and_does_not_change(folder: Path) -> None:
    """A member of the socket's group, here by a supplementary group, may ask for the status and for nothing else."""
    path = folder / "control.sock"
    gid = grp.getgrnam("daemon").gr_gid
    read, changed = with_server(
        path, lambda: [ask_as(path, command, NOBODY, gid) for command in ("status", "restart")], group="daemon"
    )
    assert read == "answered host"
    assert changed.startswith("DeniedError changing is for root and the service's own user")
