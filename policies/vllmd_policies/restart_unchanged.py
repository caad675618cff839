"""The engine or the server ended for no reason that a flag removes: once more as it was."""

from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import FailureClass
from vllmd_policies.memory_arithmetic import proposal

_KINDS = frozenset(
    {
        FailureClass.ENGINE_DIED,
        FailureClass.KILLED,
        FailureClass.CLEAN_EXIT,
        FailureClass.START_STALLED,
        FailureClass.SPAWN_FAILED,  # an upgrade replaces files, a host runs out of processes: both pass
        FailureClass.UNKNOWN,
    }
)


def restart_unchanged(situation: Situation) -> Proposal | None:
    """Wish for the same flags; how long to wait, and when to give up, is not a policy's business."""
    failure = situation.failure
    if failure is None or failure.kind not in _KINDS:
        return None
    return proposal("restart_unchanged", failure, Wish.RETRY_UNCHANGED, failure.summary)
