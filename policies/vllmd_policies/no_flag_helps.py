"""The operator must act: what was asked for does not exist, or is not to be had. Trying again changes nothing."""

from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import FailureClass
from vllmd_policies.memory_arithmetic import proposal

_KINDS = frozenset(
    {
        FailureClass.UNKNOWN_FLAG,
        FailureClass.INVALID_FLAG,
        FailureClass.MODEL_NOT_FOUND,
        FailureClass.PORT_TAKEN,
    }
)


def no_flag_helps(situation: Situation) -> Proposal | None:
    """Wish to stop; the failure's own sentence says what to do."""
    failure = situation.failure
    if failure is None or failure.kind not in _KINDS:
        return None
    return proposal("no_flag_helps", failure, Wish.STOP, failure.summary)
