"""What fails at a start can be switched off, at a price: compiling and capturing, vLLM's own all-reduce."""

from collections.abc import Mapping

from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.flags import ENFORCE_EAGER
from vllmd_policies.memory_arithmetic import may_move, proposal

# By cause: the switch that starts without what failed (vLLM 0.5 to 0.33, engine/arg_utils.py).
_SWITCHES: Mapping[str, str] = {"eager": ENFORCE_EAGER, "all-reduce": "disable-custom-all-reduce"}


def switched_off(situation: Situation) -> Proposal | None:
    """Wish for the switch; where it is on already, or may not be touched, for the operator."""
    failure = situation.failure
    if failure is None or (name := _SWITCHES.get(failure.cause)) is None:
        return None
    if situation.flags.get(name) is True:
        reason = f"{failure.summary}, with {name} on; look at the model, the driver, or vLLM's version"
        return proposal("switched_off", failure, Wish.STOP, reason)
    if not may_move(situation, name):
        reason = f"{failure.summary}; --{name} starts without it: set it, or allow it in [guard]"
        return proposal("switched_off", failure, Wish.STOP, reason)
    reason = f"{failure.summary}; {name} starts without it, and makes each token slower"
    return proposal("switched_off", failure, Wish.CHANGE_FLAGS, reason, {name: True})
