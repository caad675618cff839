"""Canaries over HTTP: one request for one token to the server's /v1/completions, in a task of its own.

The server's key is in its header and nowhere else: what is told of an exchange is a status code or a name of an error.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import structlog

from vllmd.model.canary import CanaryOrder, CanaryReply, CanaryResult

_CONNECT_LIMIT_S = 4.0
_ANSWER_LIMIT_BYTES = 8 * 2**20  # /v1/models lists every adapter, a few hundred bytes each
_PROMPT = "1"

log = structlog.get_logger()


class UnusableError(Exception):
    """An answer that is no answer to a canary: its text says why."""


class CanarySender:
    """Has one canary under way at a time.

    `is_paused` asks the server whether somebody paused it, `key` is its API key at the moment, and `tell` gets what
    became of a canary, unless another one was wanted meanwhile.
    """

    def __init__(
        self,
        url: str,
        is_paused: Callable[[], Awaitable[bool | None]],
        key: Callable[[], str | None],
        tell: Callable[[CanaryReply], None],
    ) -> None:
        self._url = url
        self._is_paused = is_paused
        self._key = key
        self._tell = tell
        self._order: CanaryOrder | None = None
        self._task: asyncio.Task[CanaryReply] | None = None
        # As for the metrics page: no proxy, no .netrc. A connection an exchange: one that is kept would be closed
        # by the server just before the next canary.
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=_CONNECT_LIMIT_S),  # the whole of it has the limit of its order
            trust_env=False,
            verify=False,  # noqa: S501 - that the server is ours is proved by who owns its socket
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def follow(self, order: CanaryOrder | None) -> None:
        """Have this canary under way and no other one; None: none at all."""
        if order == self._order:
            return
        if self._task is not None:
            self._task.cancel()
        self._order, self._task = order, None
        if order is not None:
            self._task = asyncio.create_task(self._sent(order))
            self._task.add_done_callback(lambda task: self._ended(order, task))

    async def close(self) -> None:
        """Give up what is under way, and close the connections."""
        self.follow(None)
        await self._client.aclose()

    async def _sent(self, order: CanaryOrder) -> CanaryReply:
        """Send it; return what came back within its limit."""
        try:
            async with asyncio.timeout(order.limit_s):
                if await self._is_paused():
                    return CanaryReply(order.number, CanaryResult.PAUSED)
                await self._one_token()
        except TimeoutError:
            return CanaryReply(order.number, CanaryResult.SILENT, f"no answer within {order.limit_s:.0f} s")
        except UnusableError as error:
            return CanaryReply(order.number, CanaryResult.REFUSED, str(error))
        except httpx.HTTPError as error:
            return CanaryReply(order.number, CanaryResult.LOST, type(error).__name__)  # its text may hold the header
        return CanaryReply(order.number, CanaryResult.ANSWERED)

    def _ended(self, order: CanaryOrder, task: "asyncio.Task[CanaryReply]") -> None:
        """Tell what came of it. A bug here must not look like a server that hangs."""
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("a canary failed", exc_info=error)
            self._tell(CanaryReply(order.number, CanaryResult.REFUSED, f"vllmd itself failed: {type(error).__name__}"))
            return
        self._tell(task.result())

    async def _one_token(self) -> None:
        """Ask for the name of the model, then for a token of it. UnusableError where there is none."""
        models = await self._asked("GET", "/v1/models")
        try:
            name = models["data"][0]["id"]
        except (KeyError, IndexError, TypeError):
            raise UnusableError("/v1/models names no model") from None
        body = {"model": name, "prompt": _PROMPT, "max_tokens": 1, "ignore_eos": True}
        answer = await self._asked("POST", "/v1/completions", body)
        try:
            tokens = answer["usage"]["completion_tokens"]
        except (KeyError, TypeError):
            tokens = None
        if not tokens:
            raise UnusableError("/v1/completions answered without a token")

    async def _asked(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - whatever JSON holds
        """Return the JSON that a path answers with. UnusableError for any other answer than 200 and JSON."""
        key, answer = self._key(), bytearray()
        headers = {b"Authorization": b"Bearer " + key.encode()} if key else None
        async with self._client.stream(method, self._url + path, headers=headers, json=body) as response:
            if response.status_code != httpx.codes.OK:
                raise UnusableError(f"{path} answered {response.status_code}")
            async for chunk in response.aiter_bytes():
                answer += chunk
                if len(answer) > _ANSWER_LIMIT_BYTES:
                    raise UnusableError(f"{path} answered more than {_ANSWER_LIMIT_BYTES} bytes")
        try:
            return json.loads(answer)
        except ValueError:
            raise UnusableError(f"{path} answered no JSON") from None
