"""Traffic for a completions server: clients that each send one streaming request after another."""

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

_VOCABULARY = range(300, 900)  # token ids that the tests' models and the simulator have, no special ones
_RETRY_S = 0.25  # pause of a client whose request failed, so that an outage is not hammered


@dataclass(frozen=True, slots=True)
class Clients:
    """So many clients of one kind. Every prompt is a fresh random list of tokens: no prefix cache shortens it."""

    count: int
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Observed:
    """What the clients saw: gaps between tokens in seconds, requests that ended well, and every error."""

    gaps_s: list[float] = field(default_factory=list)
    completed: int = 0
    errors: list[str] = field(default_factory=list)


@contextmanager
def traffic(url: str, model: str, mix: Sequence[Clients], seed: int = 0) -> Iterator[Observed]:
    """Keep the clients busy, in a thread of their own, for as long as the block runs."""
    observed = Observed()
    stop = threading.Event()
    load = _Load(f"{url}/v1/completions", model, observed, random.Random(seed))  # noqa: S311 - a load, not a secret
    thread = threading.Thread(target=lambda: asyncio.run(load.run(mix, stop)), name="traffic", daemon=True)
    thread.start()
    try:
        yield observed
    finally:
        stop.set()
        thread.join(timeout=30)


class _Load:
    """The requests of one `traffic`."""

    def __init__(self, url: str, model: str, observed: Observed, chance: random.Random) -> None:
        self._url = url
        self._model = model
        self._observed = observed
        self._chance = chance

    async def run(self, mix: Sequence[Clients], stop: threading.Event) -> None:
        """Send until `stop` is set, then drop what is open."""
        async with httpx.AsyncClient(timeout=httpx.Timeout(60, connect=2)) as http:
            tasks = [asyncio.create_task(self._client(http, kind)) for kind in mix for _ in range(kind.count)]
            await asyncio.to_thread(stop.wait)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _client(self, http: httpx.AsyncClient, kind: Clients) -> None:
        while True:
            try:
                await self._request(http, kind)
            except httpx.HTTPError as error:
                self._observed.errors.append(repr(error))
                await asyncio.sleep(_RETRY_S)
            else:
                self._observed.completed += 1

    async def _request(self, http: httpx.AsyncClient, kind: Clients) -> None:
        body = {
            "model": self._model,
            "prompt": self._chance.choices(_VOCABULARY, k=kind.prompt_tokens),
            "max_tokens": kind.output_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        last_s: float | None = None
        async with http.stream("POST", self._url, json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                now_s = time.monotonic()
                if last_s is not None:
                    self._observed.gaps_s.append(now_s - last_s)
                last_s = now_s
