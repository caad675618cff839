"""Diagnosis: the lines of a launch that ended, its exit code and its phase in, a Failure out.

The decision, in order:
1. We asked for the end: clean exit.
2. The earliest root cause that the server did not survive. Reaching the serving phase survives everything before it;
   a statistics line survives every root so far, unless the engine's death was already reported.
3. The earliest line that only follows from a cause (the engine died, a worker died).
4. The exit code: a signal is KILLED, 0 is a clean exit that nobody asked for, anything else is UNKNOWN with the error
   that the log ends in.
"""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vllmd.decide.failure_texts import CASCADES, ERROR_KEYS, ERROR_LINE, FACTS, HEALTHY, ROWS
from vllmd.decide.log_lines import is_echo, message
from vllmd.decide.log_phase import DOING, MARKS, PHASES, later
from vllmd.decide.numbers import read_groups, show_numbers
from vllmd.decide.text_row import Row
from vllmd.model.failure import Evidence, Failure, FailureClass
from vllmd.model.masking import Masker, plain
from vllmd.model.server import Phase

SUMMARY_CHARS = 300
# vLLM's default utilization was 0.9 up to 0.19 and is 0.92 since 0.20 (config/cache.py).
_RAISED_DEFAULT = (0, 20)
_OPTIONAL = re.compile(r"\[([^\]]*)\]")
_NAME = re.compile(r"\{(\w+)\}")
_FIELD = re.compile(r"[a-z][a-z0-9_.]{2,60}")
_FIRST_SIGNAL_CODE = 128  # a shell's or a container's exit code for signal n is 128 + n
_LAST_SIGNAL = 64

_ALL_KEYS = {
    *(row.key for row in ROWS),
    *(fact.key for fact in FACTS),
    *(mark for mark, _ in MARKS),
    *ERROR_KEYS,
    HEALTHY,
}
# A line without any of these says nothing here. A key that holds another one need not be looked for itself.
_KEYS = tuple(sorted(key for key in _ALL_KEYS if not any(other in key for other in _ALL_KEYS - {key})))


@dataclass(frozen=True, slots=True)
class _Match:
    """A row that matched: the line's index, the phase there, the class it means there, and what the line says."""

    row: Row
    index: int
    phase: Phase
    kind: FailureClass
    numbers: Mapping[str, float]
    words: Mapping[str, str]


@dataclass(slots=True)
class _Reading:
    """What the lines said so far."""

    phase: Phase
    root: _Match | None = None
    follower: _Match | None = None
    error: int | None = None  # index of the error line that no row knows
    facts: dict[str, float] = field(default_factory=dict)
    details: dict[str, float] = field(default_factory=dict)  # of later lines about the root's class
    words: dict[str, str] = field(default_factory=dict)


def diagnose(
    lines: Sequence[str],
    *,
    generation: int,
    exit_code: int | None,
    phase: Phase,
    masker: Masker,
    stop_requested: bool = False,
) -> Failure:
    """Return what ended a launch. Never raises, whatever the lines hold.

    `phase` is how far the caller knows the launch to have come; the lines may show more. `exit_code` is negative for a
    signal, None if unknown.
    """
    reading = _read(lines, Phase.CONFIG)
    known = Phase.SERVING if phase is Phase.SHUTDOWN else phase
    if PHASES.index(reading.phase) < PHASES.index(known):  # the lines are only the end of the log
        reading = _read(lines, known)
    match = None if stop_requested else reading.root or reading.follower
    if match is None:
        kind, summary, index = _by_exit_code(lines, reading, exit_code, stop_requested=stop_requested)
        numbers, reached = _numbers(reading, {}), later(reading.phase, phase)
    else:
        kind, index, reached = match.kind, match.index, match.phase
        numbers = _numbers(reading, match.numbers)
        summary = _sentence(match, reading, numbers, lines)
        if not match.row.root:
            index = reading.error if reading.error is not None and reading.error > index else index
    return Failure(
        kind=kind,
        phase=reached,
        generation=generation,
        summary=plain(masker.mask(summary), SUMMARY_CHARS),
        evidence=None if index is None else _evidence(lines, index, masker),
        exit_code=exit_code,
        numbers=numbers,
    )


def _evidence(lines: Sequence[str], index: int, masker: Masker) -> Evidence:
    """Return the line as it may be shown. Masked twice: before it is cut, and after colours are out of it."""
    return Evidence(index + 1, plain(masker.mask(message(masker.mask(lines[index])))))


def _read(lines: Sequence[str], phase: Phase) -> _Reading:
    """Read the lines of a launch, or, if it had come to `phase` before them, the end of its log."""
    reading = _Reading(phase)
    for index, line in enumerate(lines):
        for key in _KEYS:
            if key in line:
                if not is_echo(line):
                    _take(reading, index, message(line))
                break
    return reading


def _take(reading: _Reading, index: int, text: str) -> None:
    """Add what one line says to the reading."""
    _advance(reading, text)
    if reading.phase is Phase.SHUTDOWN:
        return
    match = _match(reading.phase, index, text)
    if match is not None:
        _keep(reading, match)
    elif ERROR_LINE.match(text) and not any(word in text for word in CASCADES):
        # Of a start the first error counts, the later ones follow from it; of a long life the last.
        if reading.error is None or reading.phase is Phase.SERVING:
            reading.error = index
    else:
        _learn(reading, text)


def _advance(reading: _Reading, text: str) -> None:
    """Move the phase on, and drop what the server has survived by getting there."""
    for mark, phase in MARKS:
        if mark in text and PHASES.index(phase) > PHASES.index(reading.phase):
            reading.phase = phase
            if phase is Phase.SERVING:
                reading.root = reading.follower = reading.error = None
                reading.details.clear()
    if HEALTHY in text and reading.follower is None:
        reading.root = None
        reading.details.clear()


def _match(phase: Phase, index: int, text: str) -> _Match | None:
    """Return the first row that matches the line and means something in this phase."""
    for row in ROWS:
        kind = row.serving if phase is Phase.SERVING else row.starting
        if kind is not None and row.key in text and (found := row.pattern.search(text)):
            return _Match(row, index, phase, kind, *read_groups(found))
    return None


def _keep(reading: _Reading, match: _Match) -> None:
    """Keep the earliest root and the earliest follower; later lines of the root's class only add numbers."""
    if not match.row.root:
        reading.follower = reading.follower or match
    elif reading.root is None:
        reading.root = match
    elif match.kind is reading.root.kind:
        for name, value in match.numbers.items():
            reading.details.setdefault(name, value)


def _learn(reading: _Reading, text: str) -> None:
    """Add the numbers and words of a line that is no failure."""
    for fact in FACTS:
        if fact.key in text and (found := fact.pattern.search(text)):
            numbers, words = read_groups(found)
            reading.facts |= numbers
            reading.words |= words


def _numbers(reading: _Reading, own: Mapping[str, float]) -> dict[str, float]:
    """Return all that is known in numbers: the deciding line's own go before the log's, the default comes last."""
    numbers = reading.facts | reading.details | dict(own)
    version = tuple(int(part) for part in reading.words.get("version", "").split(".") if part)
    if version and "utilization" not in numbers:
        numbers["utilization"] = 0.92 if version >= _RAISED_DEFAULT else 0.9
    return numbers


def _sentence(match: _Match, reading: _Reading, numbers: Mapping[str, float], lines: Sequence[str]) -> str:
    """Return the row's summary with its names filled in."""
    names = {"port": "8000"} | reading.words | show_numbers(numbers) | dict(match.words)
    names["doing"] = DOING[match.phase]
    if match.index and _FIELD.fullmatch(above := message(lines[match.index - 1])):
        names["field"] = above  # pydantic prints the name of an argument above what is wrong with it
    parts = _OPTIONAL.split(match.row.summary)  # always there, optional, always there, …
    return "".join(_filled(part, names, optional=i % 2 == 1) for i, part in enumerate(parts))


def _filled(part: str, names: Mapping[str, str], *, optional: bool) -> str:
    """Return a part of a summary with its names filled in; an optional part with an unknown name is left out."""
    wanted = _NAME.findall(part)
    if optional and not names.keys() >= set(wanted):
        return ""
    return _NAME.sub(lambda name: names.get(name[1], "?"), part)


def _by_exit_code(
    lines: Sequence[str], reading: _Reading, exit_code: int | None, *, stop_requested: bool
) -> tuple[FailureClass, str, int | None]:
    """Return class, summary and deciding line of an end that no line explains."""
    doing = DOING[reading.phase]
    last = next((i for i in reversed(range(len(lines))) if lines[i].strip() and not is_echo(lines[i])), None)
    if stop_requested:
        return FailureClass.CLEAN_EXIT, "vLLM ended as asked", None
    if name := _signal_name(exit_code):
        hint = "; the kernel does that when the host runs out of memory" if name == "SIGKILL" else ""
        return FailureClass.KILLED, f"{name} from outside ended vLLM while it was {doing}{hint}", last
    if exit_code == 0 or (exit_code is None and reading.phase is Phase.SHUTDOWN):
        return FailureClass.CLEAN_EXIT, f"vLLM ended in order while {doing}, which nobody asked for", None
    code = "an unknown exit code" if exit_code is None else f"exit code {exit_code}"
    if reading.error is None:
        return FailureClass.UNKNOWN, f"vLLM ended with {code} while {doing}; its log does not say why", last
    cause = message(lines[reading.error])
    return FailureClass.UNKNOWN, f"vLLM ended with {code} while {doing}: {cause}", reading.error


def _signal_name(exit_code: int | None) -> str:
    """Return the signal that an exit code stands for (-9, or 137 of a shell or a container); "" for none."""
    if exit_code is None or 0 <= exit_code <= _FIRST_SIGNAL_CODE or exit_code > _FIRST_SIGNAL_CODE + _LAST_SIGNAL:
        return ""
    number = -exit_code if exit_code < 0 else exit_code - _FIRST_SIGNAL_CODE
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
