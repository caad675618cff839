"""Talk to the service manager: sd_notify(3), in a few lines of socket code."""

import contextlib
import os
import socket
from collections.abc import Mapping

from vllmd.model.plain import plain

_STATUS_LIMIT = 200
# Signs of life in the time that the manager waits for one. sd_watchdog_enabled(3) recommends two; with four, one piece
# of the loop's work may take three quarters of that time.
_SIGNS = 4


def alive_every_s(env: Mapping[str, str], pid: int) -> float | None:
    """Return how often the manager wants a sign of life of this process; None where it wants none.

    WATCHDOG_USEC is the silence after which it ends the service; WATCHDOG_PID, where it is set, names the process that
    is meant (sd_watchdog_enabled(3)).
    """
    limit_us = env.get("WATCHDOG_USEC", "")
    meant = env.get("WATCHDOG_PID", str(pid)) == str(pid)
    if not meant or not limit_us.isascii() or not limit_us.isdecimal() or int(limit_us) == 0:
        return None
    return int(limit_us) / 1_000_000 / _SIGNS


class SdNotifier:
    """A ports.Notifier over $NOTIFY_SOCKET; without one it does nothing."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self.alive_every_s = alive_every_s(env, os.getpid())
        address = env.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the zero byte of an abstract socket (unix(7)).
        self._address = "\0" + address[1:] if address.startswith("@") else address

    @property
    def listens(self) -> bool:
        """Whether there is a service manager."""
        return bool(self._address)

    def ready(self) -> None:
        """Say that the daemon is up."""
        self._send("READY=1")

    def reloading(self, now_us: int) -> None:
        """Say that the configuration is being read again, until the next `ready`; `now_us` by the monotonic clock."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now_us}")

    def status(self, text: str) -> None:
        """Say in one line what goes on. Escaped: a line break would begin another assignment."""
        self._send(f"STATUS={plain(text, _STATUS_LIMIT)}")

    def alive(self) -> None:
        """Say that the loop still does its work: the manager ends a service that does not say so in time."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Say that the daemon is going down."""
        self._send("STOPPING=1")

    def _send(self, assignment: str) -> None:
        """Send one datagram, best effort: a manager that does not listen must not stop the server's care."""
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.settimeout(1.0)
            with contextlib.suppress(OSError):
                manager.sendto(assignment.encode(), self._address)
