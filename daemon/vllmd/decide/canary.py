"""Whether a server rests, so that only a canary can show whether it still works.

In order: a page that did not answer, a sleeping or paused engine, requests that run or wait, a page that does not say
→ no rest · another launch, anything moved, or nobody looked for too long → the rest begins with this page · else it
goes on.
"""

from dataclasses import dataclass, replace

from vllmd.decide.hang import asleep, readable, reports
from vllmd.model.flags import Flags
from vllmd.model.snapshot import Metrics, Snapshot

# A sleeping engine must not be asked for a token: its weights are not on the device.
_SLEEP_MODE = "enable-sleep-mode"


@dataclass(frozen=True, slots=True)
class Rest:
    """Readings of one generation in a row that all say the same, and no request. Times by the monotonic clock."""

    generation: int = 0
    said: Metrics | None = None  # None: no such reading
    since_s: float = 0.0
    last_s: float = 0.0

    @property
    def rest_s(self) -> float | None:
        """From the first to the last of these readings, in seconds; None where the server does not rest."""
        return self.last_s - self.since_s if self.said is not None else None


def rested(before: Rest, snapshot: Snapshot, gap_s: float) -> Rest:
    """Return the rest with one more reading; readings further apart than `gap_s` seconds are no row."""
    metrics, at_s = snapshot.metrics, snapshot.monotonic_s
    if metrics is None or at_s is None or snapshot.paused or not _idle(metrics):
        return Rest(snapshot.generation)
    same = before.said is not None and reports(before.said) == reports(metrics)
    if same and before.generation == snapshot.generation and at_s - before.last_s <= gap_s:
        return replace(before, last_s=at_s)
    return Rest(snapshot.generation, metrics, at_s, at_s)


def is_due(rest: Rest, canary_s: float) -> bool:
    """Whether the server has rested for so long that a canary is to be sent."""
    return rest.rest_s is not None and rest.rest_s >= canary_s


def bar(flags: Flags) -> str | None:
    """Return why a server with these flags is never sent a canary; None where it may be."""
    if flags.get(_SLEEP_MODE):
        return f"--{_SLEEP_MODE}: it may be put to sleep at any moment, and then must not be asked"
    return None


def _idle(metrics: Metrics) -> bool:
    """Whether no request is there, by a page that would show its progress."""
    running, waiting = (metrics.gauges.get(name) for name in ("requests_running", "requests_waiting"))
    return readable(metrics) and running == 0 and waiting == 0 and not asleep(metrics)
