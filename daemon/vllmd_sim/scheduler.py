"""The scheduler of one engine and the duration of its steps: continuous batching in virtual time, without any I/O."""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from vllmd_sim.config import EngineConfig
from vllmd_sim.host import Host


@dataclass(slots=True, eq=False)
class Request:
    """One request: `computed` of its tokens (prompt and generated) are in the KV cache."""

    id: str
    prompt_tokens: int
    max_tokens: int
    computed: int = 0
    generated: int = 0
    scheduled_s: float | None = None

    @property
    def remaining(self) -> int:
        """Tokens that must still be computed before the next one comes out: 1 while decoding."""
        return self.prompt_tokens + self.generated - self.computed

    @property
    def finished(self) -> bool:
        """Whether every token that was asked for is out."""
        return self.generated >= self.max_tokens


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one step computes of one request; `context` tokens of it were in the cache before."""

    request: Request
    tokens: int
    context: int

    @property
    def decodes(self) -> bool:
        """Whether this is one token of a running answer."""
        return self.tokens == 1 and self.request.generated > 0


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of the model, and the requests that lost their place for it."""

    chunks: tuple[Chunk, ...]
    preempted: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """How many tokens it computes."""
        return sum(chunk.tokens for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a step may hold. `budget` is in tokens, `pool` the KV cache in tokens."""

    budget: int
    sequences: int
    pool: int
    chunked: bool = True
    long_prefill: int = 0
    watermark: float = 0.0


def limits_of(config: EngineConfig, pool_tokens: int) -> Limits:
    """Return the limits that a configuration and its KV cache set."""
    return Limits(
        budget=config.scheduled_tokens,
        sequences=config.active_seqs,
        pool=pool_tokens,
        chunked=config.chunked,
        long_prefill=config.long_prefill_threshold,
        watermark=config.watermark,
    )


@dataclass(slots=True)
class Scheduler:
    """Decides what each step computes, as vLLM's V1 scheduler does.

    In order: (1) every running request, decodes before prefills, as far as the budget goes; when the pool is full the
    latest request is preempted and computed again later. (2) If none was preempted, waiting requests while budget and
    sequences last and the whole prompt fits above the watermark.
    """

    limits: Limits
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)

    @property
    def used(self) -> int:
        """Tokens of the pool in use."""
        return sum(request.computed for request in self.running)

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)

    def abort(self, request_id: str) -> None:
        """Forget a request; unknown ones are ignored."""
        self.waiting = deque(request for request in self.waiting if request.id != request_id)
        self.running = [request for request in self.running if request.id != request_id]

    def plan(self, now_s: float) -> Step | None:
        """Return the next step, None when there is nothing to do."""
        chunks: dict[str, Chunk] = {}
        budget = self.limits.budget
        free = self.limits.pool - self.used
        preempted: list[str] = []
        for request in sorted(self.running, key=lambda running: running.remaining > 1):
            tokens = self._share(request, budget)
            while tokens > free and request in self.running:
                victim = self.running.pop()
                lost = chunks.pop(victim.id, None)
                budget += lost.tokens if lost else 0
                free += victim.computed + (lost.tokens if lost else 0)
                self._preempt(victim)
                preempted.append(victim.id)
            if tokens == 0 or request not in self.running:
                continue
            chunks[request.id] = Chunk(request, tokens, request.computed)
            budget, free = budget - tokens, free - tokens
        if not preempted:
            chunks |= {chunk.request.id: chunk for chunk in self._admit(budget, free, now_s)}
        return Step(tuple(chunks.values()), tuple(preempted)) if chunks else None

    def finish(self, step: Step) -> list[Request]:
        """Book a step that is over; returns the requests that got a token out of it, in order."""
        emitted = []
        for chunk in step.chunks:
            request = chunk.request
            if request not in self.running:
                continue
            request.computed += chunk.tokens
            if request.remaining == 0:
                request.generated += 1
                emitted.append(request)
        self.running = [request for request in self.running if not request.finished]
        return emitted

    def _admit(self, budget: int, free: int, now_s: float) -> Iterator[Chunk]:
        """Start waiting requests, first come, first served."""
        spare = free - int(self.limits.watermark * self.limits.pool)
        while self.waiting and budget > 0 and len(self.running) < self.limits.sequences:
            request = self.waiting[0]
            tokens = self._share(request, budget)
            if tokens == 0 or request.remaining > (spare if self.running else free):
                return
            self.running.append(self.waiting.popleft())
            if request.scheduled_s is None:
                request.scheduled_s = now_s
            yield Chunk(request, tokens, 0)
            budget, spare, free = budget - tokens, spare - request.remaining, free - request.remaining

    def _share(self, request: Request, budget: int) -> int:
        """Return how many tokens of a request go into a step; without chunked prefill all or none."""
        wanted = request.remaining
        if 0 < self.limits.long_prefill < wanted and len(self.running) + len(self.waiting) > 1:
            wanted = self.limits.long_prefill
        if wanted > budget and not self.limits.chunked:
            return 0
        return min(wanted, budget)

    def _preempt(self, request: Request) -> None:
        request.computed = 0
        self.waiting.appendleft(request)


class StepClock:
    """How long a step takes: t = c0 + a*n + k*KV + q*sum(P*ctx), with reproducible noise.

    n: tokens of the step. KV: contexts of its decodes. P and ctx: a prefill chunk and the mean context it looks at.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._random = random.Random(host.seed)  # noqa: S311 - noise, not a secret

    def seconds(self, step: Step) -> float:
        """Return the duration of a step."""
        host = self._host
        read = sum(chunk.context for chunk in step.chunks if chunk.decodes)
        pairs = sum(c.tokens * (c.context + c.tokens / 2) for c in step.chunks if not c.decodes)
        exact = host.c0_s + host.a_s_per_token * step.tokens + host.k_s_per_kv_token * read + host.q_s_per_pair * pairs
        return exact * max(0.1, 1 + host.noise * self._random.gauss(0, 1)) if host.noise else exact
