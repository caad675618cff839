"""A network namespace of one's own: its loopback, its ports, and settings of the kernel that are nobody else's."""

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

_CLONE_NEWNET = 0x40000000  # include/uapi/linux/sched.h
_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914  # SIOCGIFFLAGS, SIOCSIFFLAGS of include/uapi/linux/sockios.h
_UP = 0x1  # IFF_UP
_MIGRATE = Path("/proc/sys/net/ipv4/tcp_migrate_req")


class NoNetworkError(Exception):
    """No network of one's own can be had here; the message says why."""


@contextmanager
def own_network(*, migrating: bool = True) -> Iterator[None]:
    """Put this thread, and the processes and threads that it starts, into a new network while the block runs.

    `migrating` sets net.ipv4.tcp_migrate_req there. The test is skipped where that is not allowed.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(network(migrating=migrating))
        except NoNetworkError as error:
            pytest.skip(str(error))
        yield


@contextmanager
def network(*, migrating: bool = True) -> Iterator[None]:
    """Do the same outside of a test; NoNetworkError where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.unshare(_CLONE_NEWNET) != 0:
            raise NoNetworkError(f"no network namespace can be made: {os.strerror(ctypes.get_errno())}")
        try:
            _loopback_up()
            set_migrating(on=migrating)
            yield
        finally:
            assert libc.setns(before, _CLONE_NEWNET) == 0
    finally:
        os.close(before)


def set_migrating(*, on: bool) -> None:
    """Set net.ipv4.tcp_migrate_req in the network of this thread; NoNetworkError where that is not allowed."""
    try:
        _MIGRATE.write_text(str(int(on)))
    except OSError as error:
        raise NoNetworkError(f"net.ipv4.tcp_migrate_req cannot be set: {error.strerror}") from error


def _loopback_up() -> None:
    with socket.socket() as any_socket:
        asked = struct.pack("16sh", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(any_socket, _GET_FLAGS, asked.ljust(40, b"\0")), 16)
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh", b"lo", flags | _UP).ljust(40, b"\0"))
