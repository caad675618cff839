"""An HTTP/1.1 client on plain sockets: it never tries again, and a thousand connections that wait cost it nothing."""

import asyncio
import select
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LOST = (OSError, EOFError, ValueError)  # what `post` raises: no connection, one that ended, no HTTP


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; the names of its headers are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def kept(self) -> bool:
        """Whether the server keeps the connection."""
        return self.headers.get("connection", "").lower() != "close"


class Client:
    """Posts to one server. An idle connection is kept for `kept_s` seconds, 0: each request has a fresh one.

    The one that is idle for the longest is used first, so that connections get as old as they may. One that the server
    has closed, as far as is known here, is not used: libraries look at that, too.
    """

    def __init__(self, url: str, kept_s: float) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host, self._port, self._name = parts.hostname, parts.port, parts.netloc
        self._kept_s = kept_s
        self._idle: deque[tuple[float, Streams]] = deque()

    async def post(self, path: str, body: bytes, heard: Callable[[], None] = lambda: None) -> Answer:
        """Send one request and return its answer; one of LOST where there is none.

        `heard` is called with each part of an answer that is streamed.
        """
        reader, writer = self._idle_one() or await asyncio.open_connection(self._host, self._port)
        keep = False
        try:
            writer.write(self._head(path, len(body)) + body)
            answer = await _read(reader, heard)
            keep = answer.kept and self._kept_s > 0
        finally:
            if keep:
                self._idle.append((time.monotonic(), (reader, writer)))
            else:
                writer.close()
        return answer

    def close(self) -> None:
        """Close what is idle."""
        for _, (_, writer) in self._idle:
            writer.close()

    def _head(self, path: str, length: int) -> bytes:
        lines = (
            f"POST {path} HTTP/1.1",
            f"Host: {self._name}",
            "Content-Type: application/json",
            f"Content-Length: {length}",
            f"Connection: {'keep-alive' if self._kept_s else 'close'}",
        )
        return "\r\n".join((*lines, "", "")).encode()

    def _idle_one(self) -> Streams | None:
        while self._idle:
            since_s, streams = self._idle.popleft()
            if time.monotonic() - since_s < self._kept_s and not _ended(*streams):
                return streams
            streams[1].close()
        return None


def _ended(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Return whether an idle connection has something to read: that can only be its end."""
    if reader.at_eof() or writer.is_closing():
        return True
    looking = select.poll()
    looking.register(writer.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(looking.poll(0))


async def _read(reader: asyncio.StreamReader, heard: Callable[[], None]) -> Answer:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = await _chunks(reader, heard)
    else:
        body = await reader.readexactly(int(headers["content-length"]))
    return Answer(int(first.split()[1]), headers, body)


async def _chunks(reader: asyncio.StreamReader, heard: Callable[[], None]) -> bytes:
    found = bytearray()
    while size := int(await reader.readuntil(b"\r\n"), 16):
        found += (await reader.readexactly(size + 2))[:-2]
        heard()
    await reader.readexactly(2)
    return bytes(found)
