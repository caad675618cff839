"""Pauses: what vllmd leaves alone while the operator wants it to, and what waits for the end of that."""

from vllmd.model.decision import Hold, HoldReason
from vllmd.model.failure import Failure
from vllmd.model.orders import Pause, Resume
from vllmd.model.server import ServerState
from vllmd.ports import Clock
from vllmd.report.journal import Journal
from vllmd.supervisor import Supervisor


class Pauses:
    """The pause in force, also one of an earlier daemon, and the failure whose recovery waits for its end."""

    def __init__(self, supervisor: Supervisor, journal: Journal, clock: Clock) -> None:
        self._supervisor = supervisor
        self._journal = journal
        self._clock = clock
        self.pause = journal.pause()
        self._waiting: Failure | None = None

    @property
    def hands_off(self) -> bool:
        """Whether not even a failure is to be answered."""
        return self.pause is not None and not self.pause.keeps_recovery

    def hold(self) -> Hold | None:
        """Return why nothing may be changed now; None if something may."""
        if self.pause is None:
            return None
        return Hold(HoldReason.PAUSED, _text(self.pause), self.pause.until_s)

    def begin(self, pause: Pause) -> Failure | None:
        """Begin a pause; return a failure that it lets be answered now. A launch that waits is kept down."""
        self._journal.order(pause)
        self.pause = pause
        if pause.keeps_recovery:
            return self._due()
        if self._supervisor.life.state is ServerState.BACKOFF:
            self._waiting = self._journal.last_failure
            self._supervisor.hold(_text(pause))
        return None

    def keep_down(self, failure: Failure) -> bool:
        """Keep a server that failed down until the end of the pause; return whether there is one that wants it."""
        if self.pause is None or self.pause.keeps_recovery:
            return False
        self._waiting = failure
        self._supervisor.hold(f"{failure.summary}; {_text(self.pause)}, so it is not started again")
        return True

    def end(self, by: str) -> Failure | None:
        """End the pause; return the failure that waited for it."""
        self._journal.order(Resume(self._clock.now_s(), by))
        self.pause = None
        return self._due()

    def end_in_time(self) -> Failure | None:
        """End the pause if it has run out; return the failure that waited for it."""
        if self.pause is None or self.pause.holds(self._clock.now_s()):
            return None
        return self.end("its end")

    def begin_anew(self) -> None:
        """Forget what waits: the operator starts the server himself."""
        self._waiting = None

    def _due(self) -> Failure | None:
        failure, self._waiting = self._waiting, None
        return failure if self._supervisor.life.state is ServerState.HELD else None


def _text(pause: Pause) -> str:
    reason = f" ({pause.reason})" if pause.reason else ""
    return f"paused by {pause.by}{reason}"
