"""Whether a server that answers stands still: it has work, and nothing that its engine reports moves.

The API server of an engine that is stopped or deadlocked answers as before; only what the engine reports stays as it
was (measured with vLLM 0.26 on an H200, engine under SIGSTOP). An honest prefill reports no token for seconds, though
its KV cache grows with each chunk. A stopped engine does not count a request that comes to it, so that a canary under
way is work whatever the page says. In order: a page that did not answer → the count begins anew, but what stands still
stays known · a sleeping or paused engine → nothing is known, and the count begins anew · a compiler at work, for no
longer than a start may show nothing → likewise · anything moved → how long it had been still is remembered · no work,
or a needed metric is not on the page → the count begins anew · anything moved, or nobody looked for too long → it
begins with this page · else it goes on.
"""

from dataclasses import dataclass, replace

from vllmd.model.snapshot import Metrics, Snapshot

# What has to be on the page before its standstill says anything: tokens in, tokens out, iterations.
_NEEDED = ("prompt_tokens", "generation_tokens", "steps")
# Of the longest silence that ended by itself: the next prompt may be longer, its prefill grows with the square.
_HONEST_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class Silence:
    """Readings of one generation in a row that all say the same while there is work. Times by the monotonic clock.

    `since_s` is the first page since one did not answer, `begun_s` the first of all; `last_s` is the last page.
    `longest_s` is the longest silence of this generation that ended by itself: one in which a page was missed is no
    proof of a hang, but it shows what is honest here.
    """

    generation: int = 0
    said: Metrics | None = None  # None: no such reading
    since_s: float | None = None
    begun_s: float = 0.0
    last_s: float = 0.0
    longest_s: float = 0.0
    paused: bool = False  # the last reading that could say so said that somebody paused the server
    built_from_s: float | None = None  # since the last movement: the first page beside which a compiler was at work

    @property
    def silent_s(self) -> float:
        """From the first to the last of these readings, in seconds."""
        return self.last_s - self.since_s if self.since_s is not None else 0.0

    @property
    def running(self) -> float | None:
        """How many requests were running at that time, None where nothing is known."""
        return self.said.gauges.get("requests_running") if self.said is not None else None


def heard(
    before: Silence, snapshot: Snapshot, gap_s: float, *, asked: bool = False, build_limit_s: float = 0.0
) -> Silence:
    """Return the silence with one more reading; readings further apart than `gap_s` seconds are no row.

    `asked` says that a canary is under way, `build_limit_s` for how long a compiler at work explains a silence.
    """
    known = before if before.generation == snapshot.generation else Silence(snapshot.generation)
    metrics, at_s = snapshot.metrics, snapshot.monotonic_s
    if metrics is None:
        return replace(known, since_s=None)
    if at_s is None or snapshot.paused or asleep(metrics):
        return Silence(known.generation, longest_s=known.longest_s, paused=bool(snapshot.paused))
    moved = known.said is not None and reports(known.said) != reports(metrics)
    longest_s = max(known.longest_s, known.last_s - known.begun_s) if moved else known.longest_s
    built_from_s = None if moved else known.built_from_s
    if snapshot.compiling:
        built_from_s = at_s if built_from_s is None else built_from_s
        if at_s - built_from_s <= build_limit_s:
            return Silence(known.generation, metrics, None, at_s, at_s, longest_s, built_from_s=built_from_s)
    if not (_has_work(metrics) or (asked and readable(metrics))):
        return Silence(known.generation, longest_s=longest_s)
    if moved or known.said is None or at_s - known.last_s > gap_s:
        return Silence(known.generation, metrics, at_s, at_s, at_s, longest_s, built_from_s=built_from_s)
    return replace(known, since_s=at_s if known.since_s is None else known.since_s, last_s=at_s)


def limit_s(silence: Silence, stall_timeout_s: float) -> float:
    """Return how long a silence may last, in seconds: the operator's limit, longer where honest ones came near it."""
    return max(stall_timeout_s, _HONEST_FACTOR * silence.longest_s)


def reports(metrics: Metrics) -> tuple[dict[str, float], dict[str, float]]:
    """Return what the engine alone moves: its counters, and its gauges, which each of its steps sets."""
    return dict(metrics.counters), dict(metrics.gauges)


def readable(metrics: Metrics) -> bool:
    """Whether the page would show the engine's progress."""
    return "requests_running" in metrics.gauges and all(name in metrics.counters for name in _NEEDED)


def asleep(metrics: Metrics) -> bool:
    """Whether an engine sleeps. vLLM before 0.12 does not say."""
    return metrics.gauges.get("awake") == 0.0


def _has_work(metrics: Metrics) -> bool:
    """Whether requests are there that the engine should get on with, and its progress can be read."""
    gauges = metrics.gauges
    return readable(metrics) and gauges["requests_running"] + gauges.get("requests_waiting", 0.0) > 0
