"""Counts an API server's requests, and lets every connection end with its next answer while the block says so.

`Drain` is a pure ASGI middleware, for vLLM's own option --middleware. Where the block cannot be used it passes
everything through.
"""

import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from vllmd_shim.block import VARIABLE, Block, BlockError, Word, opened
from vllmd_shim.governor import log

OPTION = "--middleware=vllmd_shim.drain.Drain"

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_CLOSE = (b"connection", b"close")


class Requests:
    """The requests in flight, in the block, of the one API server that writes them there."""

    def __init__(self, block: Block) -> None:
        self._words = block.words
        self._words[Word.IN_FLIGHT] = 0
        self._words[Word.API_PID] = os.getpid()

    @property
    def draining(self) -> bool:
        """Whether a connection is to end with the answer that begins now."""
        return bool(self._words[Word.DRAIN])

    def begin(self) -> None:
        """Count a request that has come."""
        self._words[Word.IN_FLIGHT] += 1
        self._words[Word.REQUESTS] += 1

    def end(self, *, kept: bool) -> None:
        """Count a request that has been answered; `kept`: its connection may bring another one."""
        if kept:
            self._words[Word.KEPT_NS] = time.monotonic_ns()  # before the count: who reads 0 in flight reads this, too
        self._words[Word.IN_FLIGHT] -= 1


class Drain:
    """The middleware of an application. It counts as `requests`, or by itself through the block of this launch."""

    def __init__(self, app: App, requests: "Requests | None" = None) -> None:
        self._app = app
        self._requests = requests or requests_of_launch()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass one request on, counted."""
        requests = self._requests
        if requests is None or scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        kept = scope["type"] == "http"

        async def answer(message: Message) -> None:
            nonlocal kept
            if message["type"] == "http.response.start" and requests.draining:
                message, kept = _closing(message), False
            await send(message)

        requests.begin()
        try:
            await self._app(scope, receive, answer)
        finally:
            requests.end(kept=kept)


def _closing(message: Message) -> Message:
    """Return the beginning of an answer after which the connection ends."""
    headers = [pair for pair in message.get("headers", ()) if bytes(pair[0]).lower() != _CLOSE[0]]
    return {**message, "headers": [*headers, _CLOSE]}


def requests_of_launch() -> "Requests | None":
    """Return what counts this launch's requests; None, which is said, where its block cannot be used."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    try:
        return Requests(opened(path))
    except (BlockError, OSError) as error:
        log.warning("vllmd_shim does not count requests, a restart will not be drained by them: %s", error)
        return None


def ask_for_middleware(argv: "list[str]") -> None:
    """Add the middleware to the command line of a server that has not parsed it yet.

    vLLM loads general plugins while it builds its parser (AsyncEngineArgs.add_cli_args), and parses sys.argv after that
    (entrypoints/cli/main.py; 0.9 and 0.32 do): so the option is there exactly where this module is, and the command
    line that the system shows stays the operator's. It comes last: the first word behind `serve` is looked at for the
    model (FlexibleArgumentParser).
    """
    serves = argv[1:2] == ["serve"] or argv[0].endswith("api_server.py")
    if serves and OPTION not in argv:
        argv.append(OPTION)
