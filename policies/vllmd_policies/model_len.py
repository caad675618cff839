"""The context length is beyond what the model was made for: down to the model's own, where the operator allows it."""

from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.flags import MAX_MODEL_LEN
from vllmd_policies.memory_arithmetic import lowest, may_move, proposal


def model_len_too_long(situation: Situation) -> Proposal | None:
    """Wish for the length that the model allows; where the length is not to be touched, for the operator."""
    failure = situation.failure
    if failure is None or failure.cause != "beyond-the-model":
        return None
    fitting = failure.numbers.get("fitting_tokens", 0.0)
    if fitting <= 0 or not may_move(situation, MAX_MODEL_LEN) or fitting < lowest(situation, MAX_MODEL_LEN):
        advice = f"lower --{MAX_MODEL_LEN}, or leave it out"
        return proposal("model_len_too_long", failure, Wish.STOP, f"{failure.summary}; {advice}")
    reason = f"{failure.summary}; {MAX_MODEL_LEN} -> {fitting:.0f}"
    changes = {MAX_MODEL_LEN: f"{fitting:.0f}"}
    return proposal("model_len_too_long", failure, Wish.CHANGE_FLAGS, reason, changes)
