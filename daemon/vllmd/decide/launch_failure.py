"""What a launch failed with, by the event that ended it."""

from collections.abc import Callable

from vllmd.model.failure import Failure, FailureClass
from vllmd.model.server import Exited, Hung, LaunchRefused, Phase, StartStalled

# What a launch that was not begun failed with, by LaunchRefused's kind.
_REFUSALS = {
    "port-taken": (FailureClass.PORT_IN_USE, ""),
    "stop-failed": (FailureClass.GPU_MEMORY_TAKEN, "own-leftover"),
}


def failure_of(
    event: Exited | StartStalled | Hung | LaunchRefused,
    phase: Phase,
    diagnosed: Callable[[Exited | StartStalled], Failure],
) -> Failure:
    """Return the failure; `diagnosed` finds it in the log where there is one to read."""
    match event:
        case LaunchRefused():
            kind, cause = _REFUSALS.get(event.kind, (FailureClass.INFRA_FAULT, event.kind))
            return Failure(kind, phase, event.generation, event.reason, cause=cause)
        case Hung():
            numbers = {"silent_s": event.silent_s}
            return Failure(FailureClass.HANG, phase, event.generation, event.reason, numbers=numbers)
        case StartStalled():
            found = diagnosed(event)
            if found.kind not in {FailureClass.NONE, FailureClass.HANG}:
                return found
            text = f"the start showed no progress for {event.silent_s:.0f} s and was ended ({phase})"
            return Failure(FailureClass.HANG, phase, event.generation, text)
        case Exited():
            return diagnosed(event)
