"""The watch over a start: how far it is, how long its phases took, and what earlier starts let expect."""

from collections.abc import Mapping, Sequence

from vllmd.decide.log_phase import DOING
from vllmd.decide.start_times import STARTS, begun, expected, expected_s, reached
from vllmd.model.server import Launch, Phase
from vllmd.model.start_times import Started, StartTimes
from vllmd.model.status import StartProgress
from vllmd.ports import Clock
from vllmd.report.journal import Journal


class StartWatch:
    """Watches one launch after the other. A start that was not seen from its beginning is no measure for others."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._times: StartTimes | None = None
        self._earlier: Sequence[Started] = ()  # starts of this fingerprint, newest first

    def begin(self, launch: Launch, *, seen: bool) -> None:
        """Watch another launch; `seen`: its start begins now."""
        self._times = begun(self._clock.monotonic_s()) if seen else None
        self._earlier = self._journal.starts(launch.fingerprint, STARTS)

    def look(self, phase: Phase) -> str:
        """Take note of the phase that the start is in; return what is to be said of it."""
        said, now_s = DOING[phase], self._clock.monotonic_s()
        if self._times is not None:
            self._times = reached(self._times, phase, now_s)
            if (whole_s := self.progress.expected_s) is not None:
                said = f"{said}, {self._times.elapsed_s(now_s):.0f} s of about {whole_s:.0f} s"
        return said

    def served(self, generation: int) -> float | None:
        """Record how long the phases of a start took that came to serve; return the whole, None if it was not seen."""
        if self._times is None:
            return None
        now_s = self._clock.monotonic_s()
        self._times = reached(self._times, Phase.SERVING, now_s)
        started = Started(generation, self._times.took_s)
        self._journal.started(started, self._clock.now_s())
        self._earlier = (started, *self._earlier)[:STARTS]
        return self._times.elapsed_s(now_s)

    @property
    def took_s(self) -> Mapping[str, float]:
        """The seconds that each phase took, as far as the start came."""
        return {phase.value: seconds for phase, seconds in self.progress.took_s.items()}

    @property
    def progress(self) -> StartProgress:
        """How long the phases of the launch's start took, and what earlier ones of its fingerprint let expect."""
        earlier = [started.took_s for started in self._earlier]
        took_s = self._times.took_s if self._times is not None else {}
        return StartProgress(took_s, expected(earlier), expected_s(earlier))
