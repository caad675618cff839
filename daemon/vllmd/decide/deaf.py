"""Whether a server does not answer at all: its main process stands still, and with it everything that is asked.

A stopped or deadlocked API server answers neither /metrics nor /health and uses no CPU; one that is merely busy answers
late, and uses much. In order: an answer of any kind, or nothing known → the count begins anew · the main process works,
or nobody looked for too long → it begins with this reading · else it goes on.
"""

from dataclasses import dataclass, replace

from vllmd.model.snapshot import Snapshot

# Of a core: a stopped process uses none, and one that works its way through a pile of requests all of one.
_STANDS_STILL = 0.01


@dataclass(frozen=True, slots=True)
class Deafness:
    """Readings of one generation in a row without an answer. Times in seconds by the monotonic clock.

    `since_s` is when the first of them was begun, `last_s` when the last was over. `cpu_s` is the CPU time of the main
    process at the end of the first.
    """

    generation: int = 0
    since_s: float | None = None
    cpu_s: float = 0.0
    last_s: float = 0.0

    @property
    def deaf_s(self) -> float:
        """From the first question of these readings to the end of the last, in seconds."""
        return self.last_s - self.since_s if self.since_s is not None else 0.0


def unanswered(before: Deafness, snapshot: Snapshot, gap_s: float) -> Deafness:
    """Return the deafness with one more reading; readings further apart than `gap_s` seconds are no row."""
    at_s, cpu_s = snapshot.monotonic_s, snapshot.leader_cpu_s
    if snapshot.answers is not False or at_s is None or cpu_s is None:
        return Deafness(snapshot.generation)
    asked_s = at_s if snapshot.asked_s is None else snapshot.asked_s
    begins = Deafness(snapshot.generation, asked_s, cpu_s, at_s)
    if before.generation != snapshot.generation or before.since_s is None or at_s - before.last_s > gap_s:
        return begins
    works = cpu_s - before.cpu_s > _STANDS_STILL * (at_s - before.since_s)
    return begins if works else replace(before, last_s=at_s)
