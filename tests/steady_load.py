"""Requests at a steady rate, whatever the server does: half of them streams, half on connections that are kept."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

_LIMIT_S = 150.0  # of one request: it may wait for a whole restart
# A connection that the client keeps for as long as its server does is lost now and then, without any restart: the
# request goes out as the server closes. The servers of these tests keep theirs for 1 s and more.
_KEPT_S = 0.5


@dataclass(slots=True)
class Outcomes:
    """What became of the requests: how long each took (s), and every error."""

    took_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def ended(self) -> int:
        """How many are over."""
        return len(self.took_s) + len(self.errors)


@contextmanager
def steady(url: str, model: str, rate: float) -> Iterator[Outcomes]:
    """Send so many requests a second, in a thread of their own, while the block runs; then wait for the last ones."""
    outcomes, stop = Outcomes(), threading.Event()
    load = _Load(f"{url}/v1/completions", model, outcomes)
    thread = threading.Thread(target=lambda: asyncio.run(load.run(1 / rate, stop)), name="load", daemon=True)
    thread.start()
    try:
        yield outcomes
    finally:
        stop.set()
        thread.join(_LIMIT_S + 5)


class _Load:
    def __init__(self, url: str, model: str, outcomes: Outcomes) -> None:
        self._url = url
        self._model = model
        self._outcomes = outcomes

    async def run(self, interval_s: float, stop: threading.Event) -> None:
        """Begin a request each interval until `stop` is set, and wait for all of them."""
        limits = httpx.Limits(max_connections=None, keepalive_expiry=_KEPT_S)
        fresh = httpx.Limits(max_keepalive_connections=0)
        async with (
            httpx.AsyncClient(timeout=_LIMIT_S, limits=limits) as kept,
            httpx.AsyncClient(timeout=_LIMIT_S, limits=fresh) as new,
        ):
            begun: list[asyncio.Task[None]] = []
            next_s = time.monotonic()
            while not stop.is_set():
                number = len(begun)
                http = kept if number % 2 else new
                begun.append(asyncio.create_task(self._request(http, stream=number % 4 < 2)))
                next_s += interval_s
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            await asyncio.gather(*begun)

    async def _request(self, http: httpx.AsyncClient, *, stream: bool) -> None:
        body = {"model": self._model, "prompt": "one two three", "max_tokens": 8, "ignore_eos": True, "stream": stream}
        began_s = time.monotonic()
        try:
            answer = await http.post(self._url, json=body)
            answer.raise_for_status()
            if stream and "[DONE]" not in answer.text:
                raise httpx.RemoteProtocolError("the stream was cut")
        except httpx.HTTPError as error:
            self._outcomes.errors.append(repr(error))
        else:
            self._outcomes.took_s.append(time.monotonic() - began_s)
