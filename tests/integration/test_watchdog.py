"""`vllmd run` under a service manager's socket: ready, then signs of life, and none from a daemon that stands still."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from e2e.vllmd_process import free_port, running
from simulated import host, serve

LIMIT_S = 30.0
WATCHDOG_S = 1.0
ALIVE = "WATCHDOG=1"


class Manager:
    """The service manager's end of $NOTIFY_SOCKET."""

    def __init__(self, bound: socket.socket, address: str) -> None:
        self._bound = bound
        self.environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": str(int(WATCHDOG_S * 1_000_000))}

    def until(self, beginning: str, within_s: float = LIMIT_S) -> list[str]:
        """Return what arrives until a message begins like this; TimeoutError when none did within the time."""
        deadline_s = time.monotonic() + within_s
        told = [""]
        while not told[-1].startswith(beginning):
            self._bound.settimeout(max(0.001, deadline_s - time.monotonic()))
            told.append(self._bound.recv(1000).decode())
        return told

    def drop_what_waits(self) -> None:
        """Forget the messages that were sent until now."""
        self._bound.setblocking(False)  # noqa: FBT003 - socket's signature
        try:
            while True:
                self._bound.recv(1000)
        except BlockingIOError:
            return

    def leave(self) -> None:
        """Listen no more: with nobody to read, the socket's queue would fill."""
        self._bound.close()


@pytest.fixture
def manager() -> Iterator[Manager]:
    """Give a service manager that listens. A socket's path is short: pytest's own folders are not."""
    with (
        TemporaryDirectory(prefix="vllmd") as folder,
        closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as bound,
    ):
        address = str(Path(folder) / "notify")
        bound.bind(address)
        yield Manager(bound, address)


def test_the_watchdog_is_fed_while_the_loop_works(manager: Manager, tmp_path: Path) -> None:
    """Ready once, then signs of life far more often than the metrics are read; none once the process is stopped."""
    settings = {"engine": {"scrape_interval": "1m"}}
    with running(tmp_path, serve(free_port()), settings, {**host(), **manager.environ}) as daemon:
        manager.until("READY=1")
        told = manager.until("STATUS=serving")
        for _ in range(3):  # a minute apart they would not come in time
            told += manager.until(ALIVE)
        daemon.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, daemon.process.pid, os.WSTOPPED)
        manager.drop_what_waits()
        with pytest.raises(TimeoutError):
            manager.until(ALIVE, 2 * WATCHDOG_S)
        daemon.process.send_signal(signal.SIGCONT)
        manager.until(ALIVE)
        manager.leave()
    assert "READY=1" not in told
