"""Stalls: a serving server that stands still with work to do is ended, so that it is started again."""

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


class Stall:
    """Looks whether the server gets on. Ends it once, and waits for its end."""

    def __init__(self, supervisor: Supervisor, journal: Journal, clock: Clock) -> None:
        self._supervisor = supervisor
        self._journal = journal
        self._clock = clock
        self._silence = Silence()
        self._ending: int | None = None  # the generation that is being ended

    @property
    def suspects(self) -> bool:
        """Whether the server has been silent for so long that it is to be asked whether somebody paused it."""
        stall_timeout_s = self._supervisor.instance.settings.engine.stall_timeout_s
        return self._silence.silent_s > _SUSPECT_PART * limit_s(self._silence, stall_timeout_s)

    def look(self, snapshot: Snapshot, *, hands_off: bool) -> bool:
        """Take in a reading; return whether the server hangs, so that nothing else is to be decided about it."""
        if self._ending == snapshot.generation:
            return True
        engine = self._supervisor.instance.settings.engine
        gap_s = _MISSED_READINGS * engine.scrape_interval_s + _LATE_S
        self._silence = heard(self._silence, snapshot, gap_s)
        silent_s = self._silence.silent_s
        if silent_s <= limit_s(self._silence, engine.stall_timeout_s):
            return False
        running = self._silence.running or 0.0
        text = f"no token and no step for {silent_s:.0f} s with {running:.0f} requests running"
        if hands_off:
            hold = Hold(HoldReason.HANGS, f"{text}; vllmd is paused, so the server is not ended")
            self._journal.hold(hold, self._clock.now_s())
        else:
            self._ending = snapshot.generation
            self._supervisor.end(silent_s, text)
        return True
