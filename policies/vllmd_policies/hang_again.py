"""A server that hangs for the second time within an hour: CUDA graphs are what can be left out."""

from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import FailureClass
from vllmd.model.flags import ENFORCE_EAGER
from vllmd.model.server import Phase
from vllmd_policies.memory_arithmetic import may_move, proposal


def hang_again(situation: Situation) -> Proposal | None:
    """Wish for eager mode where it is off and may move; with it on already, for nothing."""
    failure = situation.failure
    if failure is None or failure.kind is not FailureClass.HANG or failure.phase is not Phase.SERVING:
        return None
    if not situation.supervised or situation.repeats < 1:
        return None
    if situation.flags.get(ENFORCE_EAGER) is True or not may_move(situation, ENFORCE_EAGER):
        return None
    reason = f"{failure.summary}, and it hung before; {ENFORCE_EAGER} serves without CUDA graphs, each token slower"
    return proposal("hang_again", failure, Wish.CHANGE_FLAGS, reason, {ENFORCE_EAGER: True})
