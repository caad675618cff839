"""The requests under way: HTTP in, tokens from the engine out, and the metrics of both."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from vllmd_sim import failures, openai
from vllmd_sim.engine_client import EngineClient
from vllmd_sim.http1 import HttpRequest, HttpResponse, json_response
from vllmd_sim.metrics import Metrics, Timing
from vllmd_sim.openai import Ask, AskError, Offer
from vllmd_sim.stats_line import Statistics

ROUTES = {
    "/health": "GET",
    "/ping": "GET, POST",
    "/version": "GET",
    "/metrics": "GET",
    "/v1/models": "GET",
    "/v1/completions": "POST",
    "/v1/chat/completions": "POST",
}


class EngineGoneError(Exception):
    """The engine ended while a request was under way."""


class ClientGoneError(ConnectionError):
    """The client hung up before its answer was complete: the HTTP server then drops the connection."""


@dataclass(slots=True)
class Flight:
    """One request under way: `tokens` gets True with the last token, None when the engine is gone."""

    ask: Ask
    timing: Timing
    tokens: asyncio.Queue[bool | None] = field(default_factory=asyncio.Queue)


class Traffic:
    """Answers HTTP requests with what the engine produces.

    `refusing`: new requests get 500 while old ones finish (vLLM's drain). `dead`: the engine is gone, /health is 503.
    """

    def __init__(self, engine: EngineClient, metrics: Metrics, offer: Offer, keys: list[str], version: str) -> None:
        self.refusing = False
        self.dead = False
        self._engine = engine
        self._metrics = metrics
        self._offer = offer
        self._keys = {f"Bearer {key}" for key in keys}
        self._version = version
        self._flights: dict[str, Flight] = {}
        self._step: dict[str, Any] = {"running": 0, "waiting": 0, "used": 0}

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer one HTTP request."""
        if request.path not in ROUTES:
            return json_response({"detail": "Not Found"}, 404)
        if request.method not in ROUTES[request.path].split(", "):
            return json_response({"detail": "Method Not Allowed"}, 405)
        if self._keys and request.path.startswith("/v1") and request.headers.get("authorization") not in self._keys:
            return json_response({"error": "Unauthorized"}, 401)
        match request.path:
            case "/health" | "/ping":
                return HttpResponse(503 if self.dead else 200)
            case "/version":
                return json_response({"version": self._version, "simulated": True})
            case "/metrics":
                return HttpResponse(200, self._metrics.page(), "text/plain; version=0.0.4; charset=utf-8")
            case "/v1/models":
                return json_response({"object": "list", "data": [self._card(name) for name in self._offer.names]})
            case _:
                return await self._generate(request)

    def book(self, step: dict[str, Any]) -> None:
        """Hand the tokens of one step of the engine to their requests, and to the metrics."""
        now_s = step["t"]
        prompt_tokens = generated = 0
        for name, last, scheduled_s in step["out"]:
            flight = self._flights.get(name)
            if flight is None:
                continue  # aborted while the step was under way
            timing = flight.timing
            self._metrics.token(timing, now_s)
            if timing.generated == 0:
                timing.first_s, timing.scheduled_s = now_s, scheduled_s
                prompt_tokens += timing.prompt_tokens
            timing.generated, timing.last_s = timing.generated + 1, now_s
            generated += 1
            if last:
                del self._flights[name]
                self._metrics.finished(timing, flight.ask.ends_with, now_s)
            flight.tokens.put_nowait(last)
        if generated:
            self._metrics.iteration(prompt_tokens, generated)
        self._step = step
        self._metrics.step(step["running"], step["waiting"], step["used"], step["preemptions"])

    def fail(self) -> None:
        """Tell every request under way that nothing more will come."""
        for flight in self._flights.values():
            self._metrics.finished(flight.timing, "abort", time.monotonic())
            flight.tokens.put_nowait(None)
        self._flights.clear()

    async def report(self, say: Callable[[Statistics], None]) -> None:
        """Tell vLLM's statistics every 10 s while there is anything to say."""
        interval_s = float(os.environ.get("VLLM_LOG_STATS_INTERVAL", "10"))
        prompt, generated, preempted, idle = 0, 0, 0, True
        while True:
            await asyncio.sleep(interval_s)
            totals, step = self._metrics.totals, self._step
            prompt_rate = (totals["prompt_tokens"] - prompt) / interval_s
            rate = (totals["generation_tokens"] - generated) / interval_s
            prompt, generated = totals["prompt_tokens"], totals["generation_tokens"]
            preemptions, preempted = totals["num_preemptions"] - preempted, totals["num_preemptions"]
            quiet = rate == 0 and step["running"] == 0 and step["waiting"] == 0
            if not (quiet and idle):
                usage = self._metrics.usage
                say(Statistics(prompt_rate, rate, step["running"], step["waiting"], preemptions, usage))
            idle = quiet

    async def _generate(self, request: HttpRequest) -> HttpResponse:
        """Answer a completion or chat request."""
        try:
            ask = openai.parse_ask(request.body, self._offer, chat=request.path.startswith("/v1/chat"))
        except AskError as error:
            return error.response
        if self.refusing or self.dead:
            return _failed("cannot schedule new futures after shutdown" if self.refusing else failures.ENGINE_DEAD)
        if ask.stream:
            return HttpResponse(
                200, content_type="text/event-stream; charset=utf-8", stream=self._events(ask, request.gone)
            )
        try:
            with self._flying(ask) as flight:
                while not await _next_token(flight, request.gone):
                    pass
        except EngineGoneError:
            return _failed(failures.ENGINE_DEAD)
        return json_response(openai.whole_answer(ask, flight.timing.generated))

    async def _events(self, ask: Ask, gone: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
        """Yield the events of a streamed answer; a dead engine ends it with an error and, as vLLM does, [DONE]."""
        try:
            with self._flying(ask) as flight:
                for part in openai.opening(ask):
                    yield part
                last = False
                while not last:
                    last = await _next_token(flight, gone)
                    yield openai.token(ask, last=last)
        except EngineGoneError:
            yield openai.event(openai.error_body(500, "InternalServerError", failures.ENGINE_DEAD))
            yield openai.DONE
            return
        for part in openai.closing(ask, flight.timing.generated):
            yield part

    @contextmanager
    def _flying(self, ask: Ask) -> Iterator[Flight]:
        """Have the engine work on a request; leaving before its last token aborts it."""
        flight = Flight(ask, Timing(time.monotonic(), ask.prompt_tokens, ask.max_tokens))
        self._flights[ask.id] = flight
        self._engine.send({"add": {"id": ask.id, "prompt": ask.prompt_tokens, "max": ask.max_tokens}})
        try:
            yield flight
        finally:
            if self._flights.pop(ask.id, None) is not None:
                self._engine.send({"abort": ask.id})
                self._metrics.finished(flight.timing, "abort", time.monotonic())

    def _card(self, name: str) -> dict[str, Any]:
        limit = self._offer.max_model_len
        return {"id": name, "object": "model", "owned_by": "vllm", "root": name, "max_model_len": limit}


async def _next_token(flight: Flight, gone: Callable[[], bool]) -> bool:
    """Wait for a token, return whether it is the last; raises EngineGoneError and ClientGoneError."""
    last = await flight.tokens.get()
    if last is None:
        raise EngineGoneError
    if gone():
        raise ClientGoneError
    return last


def _failed(message: str) -> HttpResponse:
    return openai.error_response(500, "InternalServerError", message)
