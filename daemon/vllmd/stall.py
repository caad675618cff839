"""Stalls: a serving server that stands still with work to do is ended, so that it is started again."""

from vllmd.canary import Canary
from vllmd.decide.deaf import Deafness, unanswered
from vllmd.decide.hang import Silence, heard, limit_s
from vllmd.model.decision import Hold, HoldReason
from vllmd.model.snapshot import Snapshot
from vllmd.ports import Clock
from vllmd.report.journal import Journal
from vllmd.supervisor import Supervisor

# Readings may be missed (a busy host); a longer pause means that vllmd itself stood still, and with it maybe the host.
_MISSED_READINGS = 3
_SUSPECT_PART = 0.5  # of the limit, from which on it is asked whether the server is paused
_LATE_S = 5.0  # a reading waits up to 4 s for the metrics page
_DEAF_LATE_S = 10.0  # and up to 4 s more for any answer, and 1 s for whether it is paused


class Stall:
    """Looks whether the server gets on. Ends it once, and waits for its end."""

    def __init__(self, supervisor: Supervisor, journal: Journal, clock: Clock) -> None:
        self._supervisor = supervisor
        self._journal = journal
        self._clock = clock
        self.canary = Canary(supervisor, journal)
        self._silence = Silence()
        self._deafness = Deafness()
        self._ending: int | None = None  # the generation that is being ended

    @property
    def _limit_s(self) -> float:
        return limit_s(self._silence, self._supervisor.instance.settings.engine.stall_timeout_s)

    @property
    def suspects(self) -> bool:
        """Whether it is to be asked whether somebody paused the server: it was, or it has been silent for long."""
        still_s = max(self._silence.silent_s, self._deafness.deaf_s)
        return self._silence.paused or still_s > _SUSPECT_PART * self._limit_s

    def look(self, snapshot: Snapshot, *, hands_off: bool, paused: bool) -> bool:
        """Take in a reading; return whether the server hangs, so that nothing else is to be decided about it.

        While vllmd is `paused` no canary is sent; with its `hands_off` a server that hangs is not even ended.
        """
        if self._ending == snapshot.generation:
            return True
        gap_s = _MISSED_READINGS * self._supervisor.instance.settings.engine.scrape_interval_s + _LATE_S
        asked = self.canary.look(snapshot, gap_s, self._limit_s, may_send=not paused)
        build_limit_s = self._supervisor.instance.settings.engine.start_timeout_s  # kernels are built in a start, too
        self._silence = heard(self._silence, snapshot, gap_s, asked=asked, build_limit_s=build_limit_s)
        self._deafness = unanswered(self._deafness, snapshot, gap_s + _DEAF_LATE_S)
        still_s = max(self._silence.silent_s, self._deafness.deaf_s)
        if still_s <= self._limit_s:
            return False
        text = self._told(asked=asked)
        if hands_off:
            hold = Hold(HoldReason.HANGS, f"{text}; vllmd is paused, so the server is not ended")
            self._journal.hold(hold, self._clock.now_s())
        else:
            self._ending = snapshot.generation
            if asked:
                self.canary.missed()
            self._supervisor.end(still_s, text)
        return True

    def _told(self, *, asked: bool) -> str:
        if self._deafness.deaf_s > self._limit_s:
            return f"no answer for {self._deafness.deaf_s:.0f} s, and its main process stood still"
        silent_s, running = self._silence.silent_s, self._silence.running or 0.0
        if asked and running == 0:
            return f"no token for a canary and no step for {silent_s:.0f} s, while it was idle"
        return f"no token and no step for {silent_s:.0f} s with {running:.0f} requests running"
