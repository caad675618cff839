"""Lets a second listener come to the server's own address: the socket that binds it gets SO_REUSEPORT.

vLLM sets that itself up to 0.24, and later only for several API servers (create_server_socket of its launcher). It
loads general plugins while it builds its argument parser (AsyncEngineArgs.add_cli_args), before it binds its port. The
bind of any other address is untouched, and one without the option is what vLLM had: an error here changes nothing else.
"""

import functools
import os
import socket
from contextlib import suppress
from typing import Any

from vllmd_shim.block import VARIABLE, BlockError, Word, opened

ADDRESS = "VLLMD_SHIM_ADDRESS"  # HOST:PORT of the server, as it binds it: the host may be empty, or hold colons

_MARK = "vllmd_shared"
_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def share_port() -> None:
    """Let the server's address be shared, from the next bind of it on. Nothing is done where no address is named."""
    host, _, port = os.environ.get(ADDRESS, "").rpartition(":")
    plain = socket.socket.bind
    if not port.isdecimal() or hasattr(plain, _MARK):
        return
    wanted = (host, int(port))

    @functools.wraps(plain)
    def bind(self: socket.socket, address: Any, /) -> None:  # noqa: ANN401 - of any family
        shared = False
        with suppress(Exception):  # whatever is bound: the plain bind says what is wrong with it
            shared = _is_servers(self, address, wanted) and _share(self)
        plain(self, address)
        if shared:
            _tell()

    setattr(bind, _MARK, True)
    socket.socket.bind = bind  # type: ignore[method-assign,assignment]


def _is_servers(bound: socket.socket, address: Any, wanted: "tuple[str, int]") -> bool:  # noqa: ANN401 - see above
    """Return whether a socket is about to take the server's address."""
    return bound.type == socket.SOCK_STREAM and bound.family in _FAMILIES and tuple(address[:2]) == wanted


def _share(bound: socket.socket) -> bool:
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return True


def _tell() -> None:
    """Write into the block that the port can be shared; without that nobody tries."""
    with suppress(BlockError, OSError):
        block = opened(os.environ.get(VARIABLE, ""))
        block.words[Word.SHARED] = 1
        block.close()
