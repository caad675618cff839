"""The server's port: whether it is free, and who has it."""

import errno
import os
import socket
from collections.abc import Iterable

from vllmd.observe.gpu import process_name
from vllmd.observe.processes import socket_owners


def is_free(host: str, port: int) -> bool:
    """Return whether a server could bind this address now. Any other refusal than "in use" is left to the server."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as vLLM does: connections in TIME_WAIT are no bar
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def holders(inodes: Iterable[int]) -> dict[int, str]:
    """Return {pid: name} of the processes that hold these sockets and that we may see; empty for another user's."""
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return {pid: process_name(pid) for pid in sorted(socket_owners(inodes, pids))}
