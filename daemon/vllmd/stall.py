"""Stalls: a serving server that stands still with work to do is ended, so that it is started again.

Three things show it: the heartbeat of its engine, first; its metrics page; that it answers nothing.
"""

from vllmd.canary import Canary
from vllmd.decide import heartbeat
from vllmd.decide.deaf import Deafness, unanswered
from vllmd.decide.hang import Silence, heard, limit_s
from vllmd.model.decision import Hold, HoldReason
from vllmd.model.live import Heartbeat
from vllmd.model.snapshot import Snapshot
from vllmd.ports import Clock
from vllmd.report.journal import Journal
from vllmd.supervisor import Supervisor

# Readings may be missed (a busy host); a longer pause means that vllmd itself stood still, and with it maybe the host.
_MISSED_READINGS = 3
_SUSPECT_PART = 0.5  # of the limit, from which on it is asked whether the server is paused
_SUSPECT_BEAT_PART = 0.3  # likewise by the heartbeat: half of its limit must be left after the reading that follows
_LATE_S = 5.0  # a reading waits up to 4 s for the metrics page
_DEAF_LATE_S = 10.0  # and up to 4 s more for any answer, and 1 s for whether it is paused
_BEAT_GAP_S = 3.0  # the heartbeat is looked at every second, and waits for nothing


class Stall:
    """Looks whether the server gets on. Ends it once, and waits for its end."""

    def __init__(self, supervisor: Supervisor, journal: Journal, clock: Clock) -> None:
        self._supervisor = supervisor
        self._journal = journal
        self._clock = clock
        self.canary = Canary(supervisor, journal)
        self._silence = Silence()
        self._deafness = Deafness()
        self._pulse = heartbeat.Pulse()
        self._ending: int | None = None  # the generation that is being ended

    @property
    def _stall_timeout_s(self) -> float:
        return self._supervisor.instance.settings.engine.stall_timeout_s

    @property
    def _limit_s(self) -> float:
        return limit_s(self._silence, self._stall_timeout_s)

    @property
    def suspects(self) -> bool:
        """Whether it is to be asked whether somebody paused the server: it was, or it has been silent for long."""
        still_s = max(self._silence.silent_s, self._deafness.deaf_s)
        beat_limit_s = heartbeat.limit_s(self._pulse, self._stall_timeout_s, stopped=True)
        missed = self._pulse.silent_s > _SUSPECT_BEAT_PART * beat_limit_s
        return self._silence.paused or missed or still_s > _SUSPECT_PART * self._limit_s

    def feel(self, beat: Heartbeat | None, generation: int) -> None:
        """Take in a look at the heartbeat of this generation's engine."""
        seen = beat if heartbeat.is_seen(self._supervisor.flags) else None
        self._pulse = heartbeat.felt(self._pulse, seen, generation, self._clock.monotonic_s(), _BEAT_GAP_S)

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
        self.feel(snapshot.beat, snapshot.generation)
        self._pulse = heartbeat.explained(self._pulse, snapshot)
        found = self._found(snapshot, asked=asked)
        if found is None:
            return False
        still_s, text = found
        if hands_off:
            hold = Hold(HoldReason.HANGS, f"{text}; vllmd is paused, so the server is not ended")
            self._journal.hold(hold, self._clock.now_s())
        else:
            self._ending = snapshot.generation
            if asked:
                self.canary.missed()
            self._supervisor.end(still_s, text)
        return True

    def _found(self, snapshot: Snapshot, *, asked: bool) -> tuple[float, str] | None:
        """Return for how long the server stood still, and what shows it; None where it does not hang."""
        silent_s, deaf_s, limit_s = self._silence.silent_s, self._deafness.deaf_s, self._limit_s
        if deaf_s > limit_s:
            return deaf_s, f"no answer for {deaf_s:.0f} s, and its main process stood still"
        if silent_s > limit_s:
            running = self._silence.running or 0.0
            if asked and running == 0:
                return silent_s, f"no token for a canary and no step for {silent_s:.0f} s, while it was idle"
            return silent_s, f"no token and no step for {silent_s:.0f} s with {running:.0f} requests running"
        if heartbeat.hangs(self._pulse, snapshot, self._stall_timeout_s):
            return self._pulse.silent_s, heartbeat.told(self._pulse)
        return None
