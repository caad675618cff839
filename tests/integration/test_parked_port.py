"""A parked port on a real kernel: what is sent meanwhile is served by the next listener, request and all."""

import errno
import select
import socket
from collections.abc import Iterator

import pytest

from own_network import own_network
from vllmd.act.parked_port import ParkedPort, connections_migrate

LIMIT_S = 5.0
FORMS = [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1")]


def listening(host: str, port: int = 0, *, shared: bool = True) -> socket.socket:
    """Return a server's listener, as vLLM makes it."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.settimeout(LIMIT_S)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
    made.bind((host, port))
    made.listen(2048)
    return made


def asking(host: str, port: int, text: bytes) -> socket.socket:
    """Return a client's connection that has sent its request."""
    client = socket.create_connection((host, port), LIMIT_S)
    client.sendall(text)
    return client


def answered(listener: socket.socket, count: int) -> list[bytes]:
    """Answer so many connections with what they said; return that."""
    said = []
    for _ in range(count):
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(LIMIT_S)
            said.append(connection.recv(100))
            connection.sendall(said[-1])
    return said


@pytest.fixture(name="network", autouse=True)
def _network() -> Iterator[None]:
    """Give each test a network of its own, in which the kernel hands connections over."""
    with own_network():
        yield


@pytest.mark.parametrize(("host", "to"), FORMS)
def test_what_comes_while_parked_is_served_by_the_next_server(host: str, to: str) -> None:
    """Nothing goes to the old listener, all that waits to the next; new ones go there before the port is released."""
    assert connections_migrate()
    old = listening(host)
    port = old.getsockname()[1]
    parked = ParkedPort(host, port)
    texts = [b"%d" % number for number in range(20)]
    clients = [asking(to, port, text) for text in texts]
    old.setblocking(False)  # noqa: FBT003 - socket's signature
    with pytest.raises(BlockingIOError):
        old.accept()
    assert parked.queued() == len(texts)
    old.close()
    clients.append(asking(to, port, b"between"))
    with listening(host, port) as following:
        with asking(to, port, b"new") as new:
            assert answered(following, 1) == [b"new"]
            assert new.recv(100) == b"new"
        assert parked.queued() == len(texts) + 1
        parked.close()
        assert answered(following, len(clients)) == [*texts, b"between"]
        assert [client.recv(100) for client in clients] == [*texts, b"between"]
    for client in clients:
        client.close()


def test_a_port_that_is_released_early_gives_what_waits_back() -> None:
    """The way back from every step before the old server's end."""
    with listening("127.0.0.1") as old:
        port = old.getsockname()[1]
        parked = ParkedPort("127.0.0.1", port)
        with asking("127.0.0.1", port, b"held") as held:
            parked.close()
            assert answered(old, 1) == [b"held"]
            assert held.recv(100) == b"held"
        with asking("127.0.0.1", port, b"after"):
            assert answered(old, 1) == [b"after"]


def test_a_second_parking_works_as_the_first() -> None:
    """Nothing of the first one stays with the listeners, which then share connections as the kernel has it."""
    old = listening("127.0.0.1")
    port = old.getsockname()[1]
    for _ in range(3):
        parked = ParkedPort("127.0.0.1", port)
        with asking("127.0.0.1", port, b"held"):
            assert parked.queued() == 1
            old.close()
            old = listening("127.0.0.1", port)
            parked.close()
            assert answered(old, 1) == [b"held"]
    with listening("127.0.0.1", port) as another:
        clients = [asking("127.0.0.1", port, b"x") for _ in range(64)]
        readable, _, _ = select.select([old, another], [], [], 0)
        assert len(readable) == 2
        for client in clients:
            client.close()
    old.close()


def test_a_listener_that_does_not_share_keeps_its_port() -> None:
    """The refusal is the kernel's, and nothing is left of the attempt."""
    with listening("127.0.0.1", shared=False) as old:
        with pytest.raises(OSError, match="in use") as refused:
            ParkedPort("127.0.0.1", old.getsockname()[1])
        assert refused.value.errno == errno.EADDRINUSE


def test_without_the_setting_waiting_connections_are_reset() -> None:
    """Which is why the decision says no then."""
    with own_network(migrating=False):
        assert connections_migrate() is False
        old = listening("127.0.0.1")
        port = old.getsockname()[1]
        parked = ParkedPort("127.0.0.1", port)
        with asking("127.0.0.1", port, b"held") as held:
            old.close()
            with listening("127.0.0.1", port):
                parked.close()
                with pytest.raises(ConnectionResetError):
                    held.recv(100)
