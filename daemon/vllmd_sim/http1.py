"""A small HTTP/1.1 server on asyncio: keep-alive, Content-Length bodies in, whole or chunked bodies out."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from vllmd_shim.drain import Requests

_KEEP_ALIVE_S = float(os.environ.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "5"))  # vLLM's own (envs.py)
_BODY_S = 30.0  # a client that does not send its body in this time is dropped
_BODY_LIMIT = 64 * 2**20


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. Header names are lower case; `gone` tells whether the client has hung up."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    gone: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One answer: a body, or a stream of parts that are sent as they come."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    stream: AsyncGenerator[bytes, None] | None = None


def json_response(content: Any, status: int = 200) -> HttpResponse:  # noqa: ANN401 - whatever JSON holds
    """Return a JSON answer."""
    return HttpResponse(status, json.dumps(content).encode())


class BadRequestError(Exception):
    """What came is not a request that this server understands."""


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]
AccessLog = Callable[[str], None]


class HttpServer:
    """Answers every connection with one handler. `log` gets one line an answer, as uvicorn writes it.

    `requests` counts them, and says when a connection is to end with its answer: the part of the shim's middleware.
    """

    def __init__(self, handler: Handler, log: AccessLog, requests: Requests | None = None) -> None:
        self._handler = handler
        self._log = log
        self._requests = requests
        self._idle: set[asyncio.StreamWriter] = set()
        self._busy: set[asyncio.StreamWriter] = set()
        self._calm = asyncio.Event()
        self._closing = False

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either side ends it: the callback for asyncio.start_server."""
        try:
            await self._converse(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass  # the client is gone, and with it everybody who could be told
        finally:
            self._idle.discard(writer)
            self._busy.discard(writer)
            if not self._busy:
                self._calm.set()
            writer.close()

    async def close(self, timeout_s: float) -> None:
        """Hang up idle connections, wait for the answers that are being written, then hang up those too."""
        self._closing = True
        for writer in self._idle:
            writer.close()
        self._calm.clear()
        if self._busy:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._calm.wait(), timeout_s)
        for writer in self._busy:
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection until one of them is the last."""
        keep, limit_s = True, _BODY_S  # uvicorn limits the wait for the next request of a connection, not for the first
        while keep and not self._closing:
            self._idle.add(writer)
            try:
                request = await _read(reader, writer, limit_s)
            except BadRequestError as error:
                await _write(writer, json_response({"error": str(error)}, HTTPStatus.BAD_REQUEST), keep=False)
                return
            self._idle.discard(writer)
            self._busy.add(writer)
            limit_s = _KEEP_ALIVE_S
            keep = await self._counted(request, writer)
            self._busy.discard(writer)

    async def _counted(self, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        """Answer one request, counted; return whether the connection is kept."""
        if self._requests is None:
            return await self._answer(request, writer)
        self._requests.begin()
        keep = False
        try:
            keep = await self._answer(request, writer)
        finally:
            self._requests.end(kept=keep)
        return keep

    async def _answer(self, request: HttpRequest, writer: asyncio.StreamWriter) -> bool:
        response = await self._handler(request)
        host, port = writer.get_extra_info("peername")[:2]
        phrase = HTTPStatus(response.status).phrase
        self._log(f'{host}:{port} - "{request.method} {request.path} HTTP/1.1" {response.status} {phrase}')
        ending = self._closing or (self._requests is not None and self._requests.draining)
        keep = request.headers.get("connection", "").lower() != "close" and not ending
        await _write(writer, response, keep=keep)
        return keep


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit_s: float) -> HttpRequest:
    """Return the next request of a connection; raises BadRequestError, and what asyncio raises when none comes."""
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), limit_s)
    except asyncio.LimitOverrunError as error:
        raise BadRequestError("the headers are too long") from error
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    try:
        method, target, _version = first.split(" ")
    except ValueError as error:
        raise BadRequestError("not an HTTP request line") from error
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > _BODY_LIMIT or "transfer-encoding" in headers:
        raise BadRequestError("a body needs a Content-Length of at most 64 MiB")
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await asyncio.wait_for(reader.readexactly(int(length)), _BODY_S)
    return HttpRequest(method, target.partition("?")[0], headers, body, reader.at_eof)


async def _write(writer: asyncio.StreamWriter, response: HttpResponse, *, keep: bool) -> None:
    """Send one answer; a stream goes out in chunks, one a part."""
    size = "Transfer-Encoding: chunked" if response.stream is not None else f"Content-Length: {len(response.body)}"
    lines = (
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}",
        "server: uvicorn",
        f"content-type: {response.content_type}",
        size,
        f"Connection: {'keep-alive' if keep else 'close'}",
    )
    writer.write("\r\n".join((*lines, "", "")).encode("latin-1") + response.body)
    if response.stream is not None:
        async with aclosing(response.stream) as parts:
            async for part in parts:
                writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                await writer.drain()
        writer.write(b"0\r\n\r\n")
    await writer.drain()
