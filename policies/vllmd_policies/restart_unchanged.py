"""The server ended, or stands still, for no reason that a flag removes: once more as it was; or nothing at all.

In order: nothing failed, or the end was wanted → nothing · somebody else ended it → vllmd starts a server of its own
again, and says so of another's · the same fault again and again → the operator · else once more.
"""

from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.server import Phase
from vllmd_policies.memory_arithmetic import proposal

_KINDS = frozenset(
    {
        FailureClass.INFRA_FAULT,
        FailureClass.HANG,
        FailureClass.EXTERNAL_STOP,
        FailureClass.CLEAN_EXIT,
        FailureClass.NONE,
        FailureClass.PROFILING_RACE,
    }
)


def restart_unchanged(situation: Situation) -> Proposal | None:
    """Wish for the same flags; how long to wait, and when to give up, is not a policy's business."""
    failure = situation.failure
    if failure is None or failure.kind not in _KINDS:
        return None
    if failure.kind is FailureClass.NONE:
        return _wish(failure, Wish.NOTHING)
    if failure.kind is FailureClass.CLEAN_EXIT and (situation.host.stop_requested or not situation.supervised):
        return _wish(failure, Wish.NOTHING)
    if not situation.supervised:
        if failure.kind is FailureClass.EXTERNAL_STOP:
            return _wish(failure, Wish.STOP, _who(situation))
        if situation.repeats >= situation.thresholds.patience:
            again = f"{situation.repeats} times before in the same way"
            return _wish(failure, Wish.STOP, f"{again}: look at the host and its driver, or upgrade vLLM")
    if failure.kind is FailureClass.PROFILING_RACE:
        return _wish(failure, Wish.WAIT_THEN_RETRY, "the same flags again once the free memory stands still")
    served = failure.phase in (Phase.SERVING, Phase.SHUTDOWN)
    return _wish(failure, Wish.RESTART if served or situation.running else Wish.RETRY_UNCHANGED)


def _who(situation: Situation) -> str:
    """Say what the operator can do about whoever stopped it."""
    probe = situation.host.startup_probe_s
    if probe is not None:
        return f"no flag is to blame: allow the start more than the {probe:g} s of the probe"
    return "no flag is to blame: find who stopped it, or allow it more time to start and to end"


def _wish(failure: Failure, wish: Wish, text: str = "") -> Proposal:
    return proposal("restart_unchanged", failure, wish, f"{failure.summary}; {text}" if text else failure.summary)
