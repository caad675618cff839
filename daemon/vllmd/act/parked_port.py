"""A parked port: a second listener on the server's own address, in whose queue the kernel keeps new connections.

old and parked listener ─▶ every new connection is queued on the parked one (a program of the group says so)
the old one has ended, the next listens ─▶ the same program now points to the next one: new connections are served
the parked one closes ─▶ the kernel hands what is queued, requests and all, to the next one (net.ipv4.tcp_migrate_req)
"""

import ctypes
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

BACKLOG = 4096  # connections that wait; the kernel allows net.core.somaxconn, 4096 since Linux 5.4
_MIGRATES = Path("/proc/sys/net/ipv4/tcp_migrate_req")  # of our own network namespace; since Linux 5.14
_LONGEST_QUEUE = Path("/proc/sys/net/core/somaxconn")

_SO_ATTACH_REUSEPORT_CBPF = 51  # include/uapi/asm-generic/socket.h; Python has no names for these
_SO_DETACH_REUSEPORT_BPF = 68
_RETURN = 0x06  # BPF_RET | BPF_K of include/uapi/linux/bpf_common.h
# Listeners are numbered as they came. The one that closes gives its number to the last one (net/core/sock_reuseport.c):
# old 0, parked 1; then parked 0, next 1. Where nobody has number 1 the kernel chooses among those that are there.
_CHOSEN = 1
_TCP_INFO_BYTES = 104  # up to tcpi_total_retrans (include/uapi/linux/tcp.h); of a listener tcpi_unacked, at byte 24,
_QUEUED_AT = 24  # is the length of its queue (tcp_get_info in net/ipv4/tcp.c)


@dataclass(frozen=True, slots=True)
class PortFacts:
    """What decides whether a server's port can be parked. `migrates` None: the kernel has no such setting.

    `followed`: whether the next server will share the port, too.
    """

    api_servers: float
    unix_socket: bool
    counted: bool  # whether the shim counts the requests
    shared: bool  # whether the server's listener lets another one come to its address
    migrates: bool | None
    followed: bool = True


def parking_refused(facts: PortFacts) -> str | None:
    """Return why a server's port cannot be parked, None if it can."""
    if facts.unix_socket:
        return "the server listens on a UNIX socket, which no second listener can share"
    if facts.api_servers != 1:
        return f"{facts.api_servers:.0f} API servers listen: which of them gets a connection is not ours to say"
    if facts.migrates is None:
        return "this kernel has no net.ipv4.tcp_migrate_req (Linux 5.14 and later have it)"
    if not facts.migrates:
        return "net.ipv4.tcp_migrate_req is 0: connections that wait would be reset (systemd/sysctl.d sets it to 1)"
    if not facts.followed:
        return "the next server comes without vllmd_shim (engine.shim), which would let it share the port"
    if not facts.counted:
        return "vllmd_shim does not count the server's requests"
    if not facts.shared:
        return "the server's port is not bound with SO_REUSEPORT, which vllmd_shim would set"
    return None


def connections_migrate() -> bool | None:
    """Return whether the kernel hands waiting connections to another listener; None where it cannot."""
    try:
        return _MIGRATES.read_text().strip() != "0"
    except OSError:
        return None


def longest_queue() -> int:
    """Return how many connections can wait."""
    try:
        return min(BACKLOG, int(_LONGEST_QUEUE.read_text()))
    except (OSError, ValueError):
        return BACKLOG


class ParkedPort:
    """One parked port, from the moment it is made. OSError where the kernel refuses it; nothing is left then."""

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET  # as vLLM chooses it
        self.listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self.listener.bind((host, port))
            self.listener.setblocking(False)  # noqa: FBT003 - socket's signature
            self.listener.listen(BACKLOG)
            _send_all_to_the_parked(self.listener)
        except OSError:
            self.listener.close()
            raise

    @property
    def inode(self) -> int:
        """The listener's inode."""
        return os.fstat(self.listener.fileno()).st_ino

    def queued(self) -> int:
        """Return how many connections wait now."""
        told = self.listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        return int(struct.unpack_from("I", told, _QUEUED_AT)[0])

    def close(self) -> None:
        """Give what waits to the listener that is left, and leave the choice to the kernel, as it was."""
        with suppress(OSError):
            self.listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_REUSEPORT_BPF, 0)
        self.listener.close()


def _send_all_to_the_parked(listener: socket.socket) -> None:
    """Let the group of listeners at this address give every new connection to the one with the chosen number."""
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, _CHOSEN))
    program = struct.pack("HP", 1, ctypes.addressof(instruction))  # struct sock_fprog
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, program)
