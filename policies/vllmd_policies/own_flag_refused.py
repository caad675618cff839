"""vLLM refuses its arguments and vllmd had changed some: what is named and was changed goes back."""

from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd_policies.memory_arithmetic import proposal

_REFUSED = (FailureClass.INVALID_FLAG, FailureClass.INVALID_COMBINATION)


def own_flag_refused(situation: Situation) -> Proposal | None:
    """Wish to take back our own change of a flag that vLLM refuses; an operator's own flag is not ours to change."""
    failure = situation.failure
    if failure is None or failure.kind not in _REFUSED:
        return None
    said = _words_of(failure)
    ours = situation.flags.differences(situation.baseline)
    back = {name: baseline for name, (baseline, _) in ours.items() if name in said}
    if not back:
        return None
    reason = f"{failure.summary}; back to the operator's {', '.join(back)}"
    return proposal("own_flag_refused", failure, Wish.CHANGE_FLAGS, reason, back)


def _words_of(failure: Failure) -> str:
    """Return what vLLM said, with option names as vllmd writes them."""
    evidence = failure.evidence.text if failure.evidence else ""
    return f"{failure.summary} {evidence}".replace("_", "-")
