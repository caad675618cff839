"""A control server that answers while a blocking client asks."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from vllmd.report.control import EXCHANGE_LIMIT_S, Command, ControlServer

T = TypeVar("T")

_CLIENT_LIMIT_S = 60.0


def while_answering(
    path: Path,
    commands: Mapping[str, Command],
    use: Callable[[], T],
    group: str | None = None,
    exchange_limit_s: float = EXCHANGE_LIMIT_S,
) -> T:
    """Return what a client gets while a server answers on the path."""

    async def run() -> T:
        server = ControlServer(path, commands, group, exchange_limit_s)
        await server.start()
        try:
            return await asyncio.wait_for(asyncio.to_thread(use), _CLIENT_LIMIT_S)
        finally:
            await server.close()

    return asyncio.run(run())
