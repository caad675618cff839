"""The logs that real servers left, their labels, and launches to try policies on."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vllmd.decide.diagnose import diagnose
from vllmd.model.decision import Proposal, Situation
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import Flags, FlagValue, parse_number
from vllmd.model.host_facts import HostFacts
from vllmd.model.launch_end import LaunchEnd, ProcessState
from vllmd.model.masking import Masker
from vllmd.model.server import Phase
from vllmd.model.settings import DEFAULT_GUARDS

LOGS = Path(__file__).parent / "data" / "logs"
GIB = 2**30
NO_FLAGS = Flags()
H200_BYTES = 150_754_820_096  # as NVML reports it; vLLM prints 139.8 GiB
GUARDS: Mapping[str, tuple[float | None, float | None]] = {n: (b.low, b.high) for n, b in DEFAULT_GUARDS.items()}


@dataclass(frozen=True, slots=True)
class Case:
    """One captured log with its label."""

    file: str
    argv: tuple[str, ...]
    phase: str
    exit_code: int | None
    state: str  # exited, running, starting
    stop_requested: bool | None
    classes: frozenset[str]
    accept: tuple[Mapping[str, Any], ...]
    forbid: tuple[Mapping[str, Any], ...]

    @property
    def lines(self) -> list[str]:
        """Return the log's lines."""
        return read_log(self.file)

    @property
    def failure(self) -> Failure:
        """Return what the diagnosis says of it when the caller knows no more than the log."""
        return diagnose_lines(self.lines, exit_code=self.exit_code, stop_requested=self.stop_requested)


def read_log(file: str) -> list[str]:
    """Return the lines of a captured log."""
    return (LOGS / file).read_text(encoding="utf-8").splitlines()


def cases() -> list[Case]:
    """Return every labelled log."""
    found = yaml.safe_load((LOGS / "labels.yaml").read_text(encoding="utf-8"))
    return [
        Case(
            file=case["file"],
            argv=tuple(str(arg) for arg in case["argv"]),
            phase=case["phase"],
            exit_code=case["exit_code"],
            state=case["process_state"],
            stop_requested=case.get("context", {}).get("stop_requested"),
            classes=frozenset({case["expected"]["class"], *case["expected"]["also_class"]}),
            accept=tuple(case["expected"]["accept"]),
            forbid=tuple(case["expected"]["forbid"]),
        )
        for case in found
    ]


def diagnose_lines(
    lines: list[str],
    *,
    exit_code: int | None = 1,
    phase: Phase = Phase.CONFIG,
    stop_requested: bool | None = None,
    state: ProcessState = ProcessState.EXITED,
    flags: Flags = NO_FLAGS,
    host: HostFacts | None = None,
) -> Failure:
    """Return the diagnosis of these lines."""
    end = LaunchEnd(
        generation=3,
        exit_code=exit_code,
        phase=phase,
        state=state,
        flags=flags,
        host=host or HostFacts(stop_requested=stop_requested),
    )
    return diagnose(lines, end, Masker())


def flags_of(argv: tuple[str, ...]) -> Flags:
    """Return the flags of an argv that is written in its plainest form."""
    items: list[tuple[str, FlagValue]] = []
    for arg in argv:
        if arg.startswith("--"):
            items.append((arg[2:], True))
        else:
            items[-1] = (items[-1][0], arg)
    return Flags(tuple(items))


def situation(failure: Failure, flags: Mapping[str, FlagValue] | None = None, **given: Any) -> Situation:
    """Return the situation after a failure of a launch with these flags, vllmd having changed nothing yet."""
    launched = Flags(tuple((flags or {}).items()))
    fields: dict[str, Any] = {"baseline": launched, "flags": launched, "failure": failure, "bounds": GUARDS}
    return Situation(**(fields | given))


def failure_of(
    kind: FailureClass,
    phase: Phase = Phase.PROFILING,
    numbers: Mapping[str, float] | None = None,
    summary: str = "it failed",
) -> Failure:
    """Return a failure with these numbers."""
    return Failure(kind, phase, 3, summary, numbers=numbers or {})


def fits(entry: Mapping[str, Any], proposal: Proposal) -> bool:
    """Whether a proposal is the remedy that an entry of `accept` describes: its action, and exactly its flags."""
    wanted = {name[2:]: value for name, value in entry.get("set", {}).items()}
    if "env" in entry or not _same_action(entry, proposal) or set(wanted) != set(proposal.changes):
        return False
    return all(_fits(wanted[name], value) for name, value in proposal.changes.items())


def touches(entry: Mapping[str, Any], proposal: Proposal) -> bool:
    """Whether a proposal does what an entry of `forbid` names: its action, and all its flags, whatever else."""
    wanted = {name[2:]: value for name, value in entry.get("set", {}).items()}
    if "env" in entry or not _same_action(entry, proposal):
        return False
    return all(name in proposal.changes and _fits(value, proposal.changes[name]) for name, value in wanted.items())


_RETRIES = {"retry-unchanged", "wait-then-retry", "restart"}  # one action, in the words of the labels


def _same_action(entry: Mapping[str, Any], proposal: Proposal) -> bool:
    action = entry.get("action", proposal.wish.value)
    return action == proposal.wish.value or {action, proposal.wish.value} <= _RETRIES


def _fits(wanted: Any, given: FlagValue | None) -> bool:
    """Whether a flag's value is the constant, or in the range, that a label names."""
    if wanted == "*":
        return given is not None
    if not isinstance(wanted, list):
        return wanted is given or str(wanted) == given
    value = parse_number(given) if isinstance(given, str) else None
    if value is None:
        return False
    low, high = wanted
    return bool(value < high if low == "<" else value > high if low == ">" else low <= value <= high)
