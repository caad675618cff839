"""What becomes of a launch that is prepared beside the serving server, and of the change behind it.

at its gate ─▶ the server is drained and stopped, and it takes its place
it did not come there in time ─▶ likewise, and the next start begins when the server has ended
it ended ─▶ diagnosed from its own log, remembered as failed; the server was not touched, and serves on
the server failed, a pause, another order ─▶ given up; its change was not carried out
"""

from vllmd.decide.diagnose import diagnose
from vllmd.decide.launch_failure import failure_of
from vllmd.decide.situation import end_of
from vllmd.decide.start_log import phase_reached, read_start
from vllmd.model.decision import Action, Effect, Verification
from vllmd.model.failure import OF_FLAGS, Failure, FailureClass
from vllmd.model.server import (
    AtGate,
    Exited,
    GateMissed,
    LaunchEvent,
    LaunchRefused,
    ServerEvent,
    ServerState,
    StartStalled,
)
from vllmd.model.snapshot import Snapshot
from vllmd.model.status import StartFacts
from vllmd.past import Past
from vllmd.ports import Clock
from vllmd.report.journal import Journal
from vllmd.supervisor import Beside, Supervisor
from vllmd.trials import Trials

# Failures that a launch may have because another server is there: the host's memory, and the port.
_OF_TWO = frozenset({FailureClass.HOST_OOM, FailureClass.PORT_IN_USE})


class Preparing:
    """Follows the launch that is prepared beside the serving server, one at a time."""

    def __init__(self, supervisor: Supervisor, journal: Journal, clock: Clock, past: Past, trials: Trials) -> None:
        self._supervisor = supervisor
        self._journal = journal
        self._clock = clock
        self._past = past
        self._trials = trials

    @property
    def under_way(self) -> bool:
        """Whether one is prepared now: nothing else is decided about the server meanwhile."""
        return self._supervisor.candidate is not None

    def sift(self, event: ServerEvent, snapshot: Snapshot | None) -> LaunchEvent | None:
        """Take in an event of that launch, or of one that was given up; return what is one of the server's."""
        candidate = self._supervisor.candidate
        ours = candidate is not None and event.generation == candidate.launch.generation
        match event:
            case AtGate():
                if ours and candidate is not None:
                    self._makes_room(candidate)
                    self._supervisor.at_gate()
            case GateMissed():
                if ours and candidate is not None:
                    self._gate_missed(candidate, event.reason)
            case Exited() | LaunchRefused() if ours and candidate is not None:
                self._failed(candidate, event, snapshot)
            case _:
                return None if ours else event
        return None

    def give_up(self, why: str) -> None:
        """End it, if there is one that the server does not make room for yet: its change is not carried out."""
        if self._supervisor.life.state is ServerState.DRAINING:
            return
        candidate = self._supervisor.give_up()
        if candidate is not None:
            self._called_off(candidate, Effect.CALLED_OFF, f"not carried out: {why}")

    def _makes_room(self, candidate: Beside) -> None:
        if candidate.following.change is not None:
            self._trials.makes_room(candidate.following.change)

    def _gate_missed(self, candidate: Beside, reason: str) -> None:
        self._makes_room(candidate)
        self._supervisor.gate_missed(reason)

    def _failed(self, candidate: Beside, event: Exited | LaunchRefused, snapshot: Snapshot | None) -> None:
        lines, flags, instance = self._supervisor.candidate_log(), candidate.launch.flags, candidate.instance
        phase = phase_reached(read_start(StartFacts(), lines))

        def diagnosed(ended: Exited | StartStalled) -> Failure:
            return diagnose(lines, end_of(ended, phase, flags, instance, snapshot), instance.masker)

        failure, now_s = failure_of(event, phase, diagnosed), self._clock.now_s()
        change = candidate.following.change
        back = change is not None and change.action is Action.ROLLBACK
        if failure.kind in _OF_TWO or (back and failure.kind not in OF_FLAGS):  # else what does harm would stay
            self._gate_missed(candidate, f"the next server failed beside this one: {failure.summary}")
            return
        self._journal.failure(failure, now_s)
        self._past.failed(failure, flags, now_s)
        self._past.failure_log = candidate.launch.log_path
        self._supervisor.candidate_failed(failure.summary)
        blames_flags = failure.kind in OF_FLAGS or failure.kind is FailureClass.NONE
        self._called_off(candidate, Effect.FAILED, failure.summary, blames_flags=blames_flags)

    def _called_off(self, candidate: Beside, effect: Effect, why: str, *, blames_flags: bool = False) -> None:
        change = candidate.following.change
        if change is not None:
            self._journal.verification(Verification(change.id, self._clock.now_s(), effect, why))
            self._trials.called_off(change, failed=blames_flags)
