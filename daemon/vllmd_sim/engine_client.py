"""The API server's side of the engine: its process, and the socket between them."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from vllmd_sim.config import EngineConfig
from vllmd_sim.host import Host
from vllmd_sim.memory import Pool

LINE_LIMIT = 2**20  # bytes of one message


class EngineClient:
    """One engine process, a child in the API server's own process group; made by `spawn`."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def spawn(cls, config: EngineConfig, host: Host) -> "EngineClient":
        """Start the engine and give it its configuration."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "vllmd_sim.engine", str(theirs.fileno()), pass_fds=[theirs.fileno()]
            )
        client = cls(process, *await asyncio.open_connection(sock=ours, limit=LINE_LIMIT))
        client.send({"config": asdict(config), "host": asdict(host)})
        return client

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._process.pid

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield what the engine says until it has ended."""
        with suppress(ConnectionError):
            while line := await self._reader.readline():
                yield json.loads(line)

    async def ready(self) -> Pool | None:
        """Wait for the engine to serve; None when it ended instead."""
        async for message in self.messages():
            if "ready" in message:
                return Pool(**message["ready"])
        return None

    def send(self, message: dict[str, Any]) -> None:
        """Tell the engine something; a dead one does not hear it."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    def terminate(self) -> None:
        """Ask the engine to finish."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    async def end(self, timeout_s: float) -> tuple[int, bool]:
        """Wait for the process, then kill it; returns its exit code and whether it had to be killed."""
        try:
            return await asyncio.wait_for(self._process.wait(), timeout_s), False
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            return await self._process.wait(), True
