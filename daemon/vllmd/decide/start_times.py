"""Start times: how long each phase takes, by when it was seen to begin, and how long the next start will be.

A phase is seen at the first look after its line, so that it is right to a second (`readings` looks once a second).
"""

from collections.abc import Mapping, Sequence
from statistics import median

from vllmd.decide.log_phase import PHASES
from vllmd.model.server import Phase
from vllmd.model.start_times import StartTimes

# Of the last starts: the first one with a cold compile cache, or with weights to be read from a disk that was cold, is
# outvoted by two others, and a change of the host shows after three.
STARTS = 5


def begun(now_s: float) -> StartTimes:
    """Return those of a start that begins now."""
    return StartTimes(now_s, since_s=now_s)


def reached(times: StartTimes, phase: Phase, now_s: float) -> StartTimes:
    """Return the times with a phase that was seen now; one that was not seen to begin has none of its own."""
    if phase is times.phase:
        return times
    took_s = {**times.took_s, times.phase: round(max(0.0, now_s - times.since_s), 3)}
    return StartTimes(times.began_s, phase, now_s, took_s)


def expected(starts: Sequence[Mapping[Phase, float]]) -> Mapping[Phase, float]:
    """Return how long each phase of a start is expected to take: the median of those that were timed."""
    timed = {phase: [start[phase] for start in starts if phase in start] for phase in PHASES}
    return {phase: median(seconds) for phase, seconds in timed.items() if seconds}


def expected_s(starts: Sequence[Mapping[Phase, float]]) -> float | None:
    """Return how long a whole start is expected to take: the median of them; None where none is known."""
    return median(sum(start.values()) for start in starts) if starts else None
