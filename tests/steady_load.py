"""Requests at a steady rate, whatever the server does: half of them streams, half on connections that are kept."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from plain_http import LOST, Client

_LIMIT_S = 150.0  # of one request: it may wait for a whole restart
# A connection that the client keeps for as long as its server does is lost now and then, without any restart: the
# request goes out as the server closes. The servers of these tests keep theirs for 1 s and more.
_KEPT_S = 0.5


@dataclass(slots=True)
class Outcomes:
    """What became of the requests: how long each took (s), every error, and when tokens came (monotonic seconds)."""

    took_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    tokens_at_s: list[float] = field(default_factory=list)
    begun: int = 0
    begun_for_s: float = 0.0  # from the first to the last
    late_s: float = 0.0  # the most by which a request began later than its rate says

    @property
    def ended(self) -> int:
        """How many are over."""
        return len(self.took_s) + len(self.errors)

    def outages_s(self, count: int) -> list[float]:
        """Return the longest times without a token of any stream, so many of them, the longest first."""
        return sorted((after - before for before, after in pairwise(self.tokens_at_s)), reverse=True)[:count]

    def longest_gap_s(self, since_s: float) -> float:
        """Return the longest time without a token of any stream, from a moment on."""
        return self.longest_outage(since_s)[0]

    def longest_outage(self, since_s: float) -> tuple[float, float]:
        """Return that, and when it began: with the last token before it (monotonic seconds)."""
        times = sorted(at_s for at_s in self.tokens_at_s if at_s >= since_s)
        return max(((after - before, before) for before, after in pairwise(times)), default=(0.0, since_s))


@contextmanager
def steady(url: str, model: str, rate: float, kept_s: float = _KEPT_S) -> Iterator[Outcomes]:
    """Send so many requests a second, in a thread of their own, while the block runs; then wait for the last ones."""
    outcomes, stop = Outcomes(), threading.Event()
    load = _Load(url, model, outcomes, kept_s)
    thread = threading.Thread(target=lambda: asyncio.run(load.run(1 / rate, stop)), name="load", daemon=True)
    thread.start()
    try:
        yield outcomes
    finally:
        stop.set()
        thread.join(_LIMIT_S + 5)


class _Load:
    def __init__(self, url: str, model: str, outcomes: Outcomes, kept_s: float) -> None:
        self._kept = Client(url, kept_s)
        self._fresh = Client(url, 0)
        self._outcomes = outcomes
        body = {"model": model, "prompt": "one two three", "max_tokens": 8, "ignore_eos": True}
        self._bodies = {stream: json.dumps({**body, "stream": stream}).encode() for stream in (False, True)}

    async def run(self, interval_s: float, stop: threading.Event) -> None:
        """Begin a request each interval until `stop` is set, and wait for all of them."""
        begun: set[asyncio.Task[None]] = set()
        first_s = next_s = time.monotonic()
        while not stop.is_set():
            number, self._outcomes.begun = self._outcomes.begun, self._outcomes.begun + 1
            task = asyncio.create_task(self._request(self._kept if number % 2 else self._fresh, stream=number % 4 < 2))
            begun.add(task)
            task.add_done_callback(begun.discard)
            next_s += interval_s
            now_s = time.monotonic()
            wait_s, self._outcomes.begun_for_s = next_s - now_s, now_s - first_s
            self._outcomes.late_s = max(self._outcomes.late_s, -wait_s)
            await asyncio.sleep(max(0.0, wait_s))
        await asyncio.gather(*begun)
        self._kept.close()

    async def _request(self, client: Client, *, stream: bool) -> None:
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(_LIMIT_S):
                answer = await client.post("/v1/completions", self._bodies[stream], self._heard)
        except LOST as error:  # a time limit is an OSError, too
            self._outcomes.errors.append(repr(error))
            return
        if answer.status != 200:
            self._outcomes.errors.append(f"{answer.status} {answer.body[:200]!r}")
        elif stream and b"[DONE]" not in answer.body:
            self._outcomes.errors.append("the stream was cut")
        else:
            self._outcomes.took_s.append(time.monotonic() - began_s)

    def _heard(self) -> None:
        self._outcomes.tokens_at_s.append(time.monotonic())
