"""The operator must act: what was asked for does not exist, or is not to be had. Trying again changes nothing."""

from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import GUESSED, FailureClass
from vllmd_policies.memory_arithmetic import proposal

_KINDS = frozenset(
    {
        FailureClass.INVALID_FLAG,
        FailureClass.INVALID_COMBINATION,
        FailureClass.MODEL_ACCESS,
        FailureClass.UNSUPPORTED_MODEL,
        FailureClass.PORT_IN_USE,
        FailureClass.NO_DEVICE,
    }
)
_OF_THE_HOST = frozenset({"host", GUESSED})  # causes that heal by the operator's hand alone
_OFF_THE_BUS = "fallen off the bus"  # Xid 79 of NVIDIA's driver
_HUB_SILENT = "hub-silent"


def no_flag_helps(situation: Situation) -> Proposal | None:
    """Wish to stop; the failure's own sentence says what to do. What may heal by itself gets some time first."""
    failure = situation.failure
    if (
        failure is not None
        and failure.kind is FailureClass.INFRA_FAULT
        and _OFF_THE_BUS in (situation.host.dmesg or "")
    ):
        text = "the kernel says that a GPU has fallen off the bus, so the host must be restarted"
        return proposal("no_flag_helps", failure, Wish.STOP, f"{failure.summary}; {text}")
    if failure is None or (failure.kind not in _KINDS and failure.cause not in _OF_THE_HOST):
        return None
    if failure.cause == _HUB_SILENT and (situation.supervised or situation.repeats < situation.thresholds.patience):
        return proposal("no_flag_helps", failure, Wish.WAIT_THEN_RETRY, f"{failure.summary}; it is asked again")
    if failure.cause == GUESSED and situation.supervised and situation.repeats == 0:
        text = "no known refusal, so the same is tried once more"
        return proposal("no_flag_helps", failure, Wish.RETRY_UNCHANGED, f"{failure.summary}; {text}")
    if failure.kind is FailureClass.PORT_IN_USE and situation.host.port_holder_is_ours:
        pid = situation.host.port_holder_pid
        who = f"our own process {pid}" if pid else "a process of our own"
        reason = f"{failure.summary.partition(';')[0]} by {who}: it is ended, then the same flags again"
        return proposal("no_flag_helps", failure, Wish.WAIT_THEN_RETRY, reason)
    return proposal("no_flag_helps", failure, Wish.STOP, failure.summary)
