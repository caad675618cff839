"""Diagnosis: the lines of a launch and what is known of its end in, a Failure out.

The decision, in order:
1. We asked for the end: clean exit.
2. It still runs: nothing failed, unless its engine is dead, its start has reported a cause, or it stands still.
3. The earliest root cause that the server did not survive. Reaching the serving phase survives everything before it;
   a statistics line survives every root so far, unless the engine's death was already reported.
4. It stood still when it was ended: a hang.
5. The earliest line that only follows from a cause (the engine died, a worker died), or who stopped it (no_cause.py).
"""

import re
from collections.abc import Iterable, Mapping

from vllmd.decide.log_lines import Line, message
from vllmd.decide.log_phase import DOING, PHASES, later
from vllmd.decide.log_reading import Match, Reading
from vllmd.decide.no_cause import STOPPING, Ending, ending_of, refused_above, signal_name
from vllmd.decide.numbers import GIB, show_numbers
from vllmd.decide.refine import Clues, refined
from vllmd.decide.vllm_defaults import default_utilization
from vllmd.model.failure import Evidence, Failure, FailureClass
from vllmd.model.flags import UTILIZATION
from vllmd.model.launch_end import LaunchEnd, ProcessState
from vllmd.model.masking import Masker
from vllmd.model.plain import plain
from vllmd.model.server import Phase

SUMMARY_CHARS = 300
# A rank that the kernel killed leaves the others with errors like these.
_MAY_FOLLOW = frozenset({FailureClass.INFRA_FAULT, FailureClass.HANG})
_STOPPED = frozenset({"-15", "-2"})  # SIGTERM and SIGINT, as the parent of a process reads them
_OPTIONAL = re.compile(r"\[([^\]]*)\]")
_NAME = re.compile(r"\{(\w+)\}")
_FIELD = re.compile(r"[a-z][a-z0-9_.]{2,60}")


def diagnose(lines: Iterable[str], end: LaunchEnd, masker: Masker) -> Failure:
    """Return what failed; FailureClass.NONE if nothing did. Never raises, whatever the lines hold.

    `lines` may be read twice: a list or a file, not an iterator.
    """
    reading = Reading(Phase.CONFIG)
    reading.read(lines)
    known = Phase.SERVING if end.phase is Phase.SHUTDOWN else end.phase
    if PHASES.index(reading.phase) < PHASES.index(known):  # the lines are only the end of the log
        reading = Reading(known)
        reading.read(lines)
    match = _deciding(reading, end)
    if match is not None:
        return _of_match(match, reading, end, masker)
    ending = _without_cause(reading, end)
    return Failure(
        kind=ending.kind,
        phase=later(reading.phase, end.phase),
        generation=end.generation,
        summary=plain(masker.mask(ending.summary), SUMMARY_CHARS),
        evidence=None if ending.line is None else _evidence(ending.line, masker),
        exit_code=end.exit_code,
        numbers=_numbers(reading, end, {}),
        cause=ending.cause,
        words={name: plain(masker.mask(text)) for name, text in reading.words.items()},
    )


def _deciding(reading: Reading, end: LaunchEnd) -> Match | None:
    """Return the match that decides; None if none does."""
    if end.host.stop_requested:
        return None
    if end.state is ProcessState.RUNNING and reading.follower is None:
        return None
    if reading.root is not None and not (end.host.oom_killed and reading.root.kind in _MAY_FOLLOW):
        return reading.root
    if reading.standstill.stands(serving=reading.phase is Phase.SERVING) or end.host.oom_killed:
        return None
    follower = reading.follower
    if follower is not None and follower.kind is FailureClass.EXTERNAL_STOP and end.state is ProcessState.STARTING:
        return None  # the answer to our own SIGTERM, which ended a start that stood still
    if follower is not None and (refused_above(reading) or _was_stopped_too(follower, end)):
        return None
    return follower


def _was_stopped_too(follower: Match, end: LaunchEnd) -> bool:
    """Whether a process only got the signal that ended the server itself."""
    return follower.words.get("code") in _STOPPED and signal_name(end.exit_code) in STOPPING


def _without_cause(reading: Reading, end: LaunchEnd) -> Ending:
    """Return what became of a launch that no line explains."""
    stands = reading.standstill.stands(serving=PHASES.index(reading.phase) >= PHASES.index(Phase.SERVING))
    if stands and not end.host.stop_requested and not end.host.oom_killed:
        text = f"vLLM stood still while {DOING[reading.phase]}: its log shows no progress since"
        return Ending(FailureClass.HANG, text, reading.standstill.first)
    if end.state is ProcessState.EXITED:
        return ending_of(reading, end)
    return Ending(FailureClass.NONE, f"nothing is wrong: vLLM is {DOING[reading.phase]}", reading.last_words())


def _of_match(match: Match, reading: Reading, end: LaunchEnd, masker: Masker) -> Failure:
    """Return the failure that a line means."""
    numbers = _numbers(reading, end, match.numbers)
    words = reading.words | dict(match.words)
    if _FIELD.fullmatch(above := message(match.above)):
        words["field"] = above  # pydantic prints the name of an argument above what is wrong with it
    version = _version(reading, end)
    kind = refined(match.kind, Clues(numbers, match.phase, match.work, version, end.host, match.row.cause))
    line, error = match.line, reading.error
    if not match.row.root and error is not None and (error.number > line.number or match.phase is not Phase.SERVING):
        line = error  # what no row knows, and what this line follows from
    return Failure(
        kind=kind,
        phase=match.phase,
        generation=end.generation,
        summary=plain(masker.mask(_sentence(match, words, numbers)), SUMMARY_CHARS),
        evidence=_evidence(line, masker),
        exit_code=end.exit_code,
        numbers=numbers,
        cause=match.row.cause,
        words={name: plain(masker.mask(text)) for name, text in words.items()},
    )


def _evidence(line: Line, masker: Masker) -> Evidence:
    """Return the line as it may be shown. Masked twice: before it is cut, and after colours are out of it."""
    return Evidence(line.number, plain(masker.mask(message(masker.mask(line.text)))))


def _version(reading: Reading, end: LaunchEnd) -> str | None:
    return end.version or reading.words.get("version")


def _numbers(reading: Reading, end: LaunchEnd, own: Mapping[str, float]) -> dict[str, float]:
    """Return all that is known in numbers: the deciding line's own, the log's, the caller's, then defaults."""
    host = end.host
    sizes = {
        "total_bytes": host.total_gib,
        "weights_bytes": host.weights_gib,
        "others_bytes": host.other_process_used_gib,
    }
    known = {name: size * GIB for name, size in sizes.items() if size is not None}
    if host.gpu_memory_utilization is not None:
        known["utilization"] = host.gpu_memory_utilization
    numbers = known | reading.facts | reading.details | dict(own)
    stated = end.flags.number(UTILIZATION)
    if stated is not None:
        numbers["utilization"] = stated
    elif "utilization" not in numbers and _version(reading, end):
        numbers["utilization"] = default_utilization(_version(reading, end))
    return numbers


def _sentence(match: Match, words: Mapping[str, str], numbers: Mapping[str, float]) -> str:
    """Return the row's summary with its names filled in."""
    names = {"port": "8000"} | dict(words) | show_numbers(numbers)
    names |= {"doing": str(match.work or DOING[match.phase])} | dict(match.words)
    parts = _OPTIONAL.split(match.row.summary)  # always there, optional, always there, …
    return "".join(_filled(part, names, optional=i % 2 == 1) for i, part in enumerate(parts))


def _filled(part: str, names: Mapping[str, str], *, optional: bool) -> str:
    """Return a part of a summary with its names filled in; an optional part with an unknown name is left out."""
    wanted = _NAME.findall(part)
    if optional and not names.keys() >= set(wanted):
        return ""
    return _NAME.sub(lambda name: names.get(name[1], "?"), part)
