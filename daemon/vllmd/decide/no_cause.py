"""What ended a launch whose log names no cause: who stopped it, what the kernel did, and what the exit code is worth.

An exit code is evidence, not truth: 0 also stands for a dead engine, 137 for a compiler's end, -9 for an API server of
0.7 and 0.8 that ended its own processes.
"""

import re
import signal
from dataclasses import dataclass

from vllmd.decide.log_lines import Line, message
from vllmd.decide.log_phase import DOING
from vllmd.decide.log_reading import Reading
from vllmd.model.failure import GUESSED, FailureClass
from vllmd.model.host_facts import HostFacts
from vllmd.model.launch_end import LaunchEnd
from vllmd.model.server import Phase

_FIRST_SIGNAL_CODE = 128  # a shell's or a container's exit code for signal n is 128 + n
_LAST_SIGNAL = 64
STOPPING = frozenset({"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"})
# Events after which somebody or something stops servers.
_STOPPERS = re.compile(
    r"\b(?:docker (?:stop|kill)|liveness|drain|evict|roll(?:out|ing)|redeploy|delet|reboot|shut ?down|stopp)",
    re.IGNORECASE,
)
# Crashes that come again until the operator acts.
_HINTS = {
    "SIGBUS": "; /dev/shm may be too small (--shm-size or --ipc=host)",
    "SIGILL": "; this build of vLLM uses instructions that the processor lacks",
}
# What ninja prints as it compiles: "[16/96] /usr/local/cuda/bin/nvcc …".
_COMPILES = re.compile(r"\[\d{1,6}/\d{1,6}\] \S*(?:nvcc|c\+\+|g\+\+|gcc|cc|clang)(?: |$)")
# Errors whose kind and phase tell a class, where no row knows their words.
_REFUSALS = re.compile(r"(?:\w+\.)*(?:ValueError|NotImplementedError|AssertionError|KeyError|ValidationError): \S")
_MISMATCHES = re.compile(r"(?:TypeError|AttributeError): \S")
_REFUSED_IN = {Phase.CONFIG: FailureClass.INVALID_COMBINATION, Phase.LOADING: FailureClass.UNSUPPORTED_MODEL}
_CRASHING = frozenset({"SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE"})


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ended: the class, what is said of it, and the line that shows it."""

    kind: FailureClass
    summary: str
    line: Line | None = None
    cause: str = ""


def ending_of(reading: Reading, end: LaunchEnd) -> Ending:
    """Return how a launch ended that no line explains."""
    doing, name, last = DOING[reading.phase], signal_name(end.exit_code), reading.last_words()
    if end.host.stop_requested:
        return Ending(FailureClass.CLEAN_EXIT, "vLLM ended as asked")
    if killed := _for_host_memory(reading, end):
        return killed
    if refused := refused_above(reading):
        return refused
    if reading.shutdown and (name or end.host.stop_requested is False):
        return Ending(FailureClass.EXTERNAL_STOP, "somebody else asked vLLM to stop, and it was shutting down", last)
    if name:
        return _by_signal(name, doing, last, end)
    if end.exit_code == 0 or (end.exit_code is None and reading.shutdown):
        if end.host.stop_requested is False and not reading.shutdown:
            return Ending(FailureClass.INFRA_FAULT, f"vLLM ended in order while {doing}, which nobody asked for", last)
        return Ending(FailureClass.CLEAN_EXIT, f"vLLM ended in order while {doing}")
    code = "an unknown exit code" if end.exit_code is None else f"exit code {end.exit_code}"
    if reading.error is None:
        return Ending(
            FailureClass.INFRA_FAULT, f"vLLM ended with {code} while {doing}; its log does not say why", last, "unknown"
        )
    text = message(reading.error.text)
    return refused_by(reading) or Ending(
        FailureClass.INFRA_FAULT, f"vLLM ended with {code} while {doing}: {text}", reading.error, "unknown"
    )


def _for_host_memory(reading: Reading, end: LaunchEnd) -> Ending | None:
    """Return how the kernel ended it for want of host memory, and whether compilers took that; None if it did not."""
    doing, last = DOING[reading.phase], reading.last_words()
    if end.host.oom_killed and last is not None and _COMPILES.match(message(last.text)):
        text = "the kernel ended vLLM for want of host memory while its kernels were compiled"
        return Ending(FailureClass.HOST_OOM, text, last, "compiling")
    outgrown = signal_name(end.exit_code) == "SIGKILL" and reading.phase is Phase.LOADING and outgrows(end.host)
    if end.host.oom_killed or outgrown:
        return Ending(
            FailureClass.HOST_OOM, f"the kernel ended vLLM for want of host memory while it was {doing}", last
        )
    return None


def refused_by(reading: Reading) -> Ending | None:
    """Return what an error that no row knows refuses by its kind: what was asked for, or the model; None for neither.

    Before the weights are loaded, vLLM raises these for arguments that it cannot follow, and while it loads them for
    files and layers that it cannot use; Python raises others where libraries of two versions meet. None of it heals by
    itself; what comes later may.
    """
    kind = _REFUSED_IN.get(reading.phase)
    if reading.error is None or kind is None:
        return None
    text = message(reading.error.text)
    if _MISMATCHES.match(text):
        kind = FailureClass.INFRA_FAULT
    elif not _REFUSALS.match(text):
        return None
    return Ending(kind, f"vLLM gave up while {DOING[reading.phase]}: {text}", reading.error, GUESSED)


def refused_above(reading: Reading) -> Ending | None:
    """Return what was refused above a line that only says that something died; None where that line says more."""
    follower, error = reading.follower, reading.error
    if follower is None or error is None or error.number > follower.line.number:
        return None
    bare = follower.kind is FailureClass.INFRA_FAULT and not follower.row.cause and "code" not in follower.words
    return refused_by(reading) if bare else None


def _by_signal(name: str, doing: str, last: Line | None, end: LaunchEnd) -> Ending:
    """Tell a stop from a crash; SIGKILL is a stop only where somebody watched and the kernel did not do it."""
    if name in STOPPING:
        return Ending(FailureClass.EXTERNAL_STOP, f"{name} from outside ended vLLM while it was {doing}", last)
    if name in _CRASHING:
        hint = _HINTS.get(name, "")
        cause = "host" if hint else ""
        return Ending(FailureClass.INFRA_FAULT, f"{name} ended vLLM while it was {doing}{hint}", last, cause)
    stopped = end.host.oom_killed is False or _STOPPERS.search(end.host.recent_event or "")
    if name == "SIGKILL" and (stopped or end.host.startup_probe_s is not None):
        return Ending(FailureClass.EXTERNAL_STOP, f"SIGKILL from outside ended vLLM while it was {doing}", last)
    hint = "; the kernel does that when the host runs out of memory" if name == "SIGKILL" else ""
    return Ending(FailureClass.INFRA_FAULT, f"{name} from outside ended vLLM while it was {doing}{hint}", last)


def outgrows(host: HostFacts) -> bool:
    """Whether the weights alone are more than the host's memory or the container's limit holds."""
    limit = host.memory_limit_gib or host.host_total_gib
    return limit is not None and host.weights_gib is not None and host.weights_gib >= limit


def signal_name(exit_code: int | None) -> str:
    """Return the signal that an exit code stands for (-9, or 137 of a shell or a container); "" for none."""
    if exit_code is None or 0 <= exit_code <= _FIRST_SIGNAL_CODE or exit_code > _FIRST_SIGNAL_CODE + _LAST_SIGNAL:
        return ""
    number = -exit_code if exit_code < 0 else exit_code - _FIRST_SIGNAL_CODE
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
