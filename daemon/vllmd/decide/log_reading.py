"""Reads a launch's log line by line and keeps what may have ended it. A line is looked at once and not stored."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vllmd.decide.failure_texts import (
    CASCADES,
    ERROR_KEYS,
    ERROR_LINE,
    FACTS,
    FRAMES,
    HEALTHY,
    KEYS,
    NEW_ATTEMPT,
    ROWS,
    Work,
)
from vllmd.decide.fault_texts import LINKS
from vllmd.decide.log_lines import ECHOES, Line, heard, is_access, is_echo, is_logged, opens_echo
from vllmd.decide.log_phase import MARKS, PHASES
from vllmd.decide.numbers import read_groups
from vllmd.decide.standstill import Standstill
from vllmd.decide.text_row import Fact, Row
from vllmd.model.failure import FailureClass
from vllmd.model.server import Phase

_KEPT_LINES = 20  # of the end of the log
_REMEMBERED = 500  # errors: a crash loop repeats a few of them thousands of times
_SHAPES = 4000  # lines that differ in nothing but digits are one shape; a long log has few of them
_SHAPE_CHARS = 500
_DIGITS = b"0123456789"
_BARE_KEYS = tuple((key, key.encode().translate(None, _DIGITS)) for key in KEYS)
_BARE_ECHOES = tuple(mark.encode() for mark in ECHOES)
_POOL = "available_bytes"
_NO_MORE_THAN_LINKS = frozenset({FailureClass.INFRA_FAULT, FailureClass.HANG})
_ERRORS = frozenset(key for key in KEYS if any(key in error or error in key for error in ERROR_KEYS))


@dataclass(frozen=True, slots=True)
class Match:
    """A row that matched: the line, the one above it, the phase there, what was being done, and what the line says."""

    row: Row
    line: Line
    above: str
    phase: Phase
    work: Work | None
    kind: FailureClass
    numbers: Mapping[str, float]
    words: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the lines may hold that differ in nothing but digits. A line itself may hold less, never more."""

    keys: tuple[str, ...]
    may_echo: bool


_REQUEST = _Shape((), may_echo=True)  # its address is its sender's text


@dataclass(slots=True)
class Reading:
    """What the lines said so far."""

    phase: Phase
    root: Match | None = None
    follower: Match | None = None
    error: Line | None = None  # an error that no row knows
    shutdown: bool = False  # an orderly end began
    facts: dict[str, float] = field(default_factory=dict)
    details: dict[str, float] = field(default_factory=dict)  # of later lines about the root's class
    words: dict[str, str] = field(default_factory=dict)
    standstill: Standstill = field(default_factory=Standstill)
    last: deque[Line] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    _count: int = 0
    _above: str = ""
    _work: Work | None = None
    _echoing: bool = False
    _said: dict[str, bool] = field(default_factory=dict)  # errors of this phase, and whether no row knows them
    _shapes: dict[bytes, "_Shape"] = field(default_factory=dict)

    def read(self, lines: Iterable[str]) -> None:
        """Read on."""
        for text in lines:
            self._count += 1
            shape = _REQUEST if is_access(text) else self._shape_of(text)
            hits = [key for key in shape.keys if key in text] if shape.keys else ()
            if hits or self._echoing:
                self._weigh(text, hits, echo=shape.may_echo and is_echo(text))
            self._above = text
            self.last.append(Line(self._count, text))

    def last_words(self) -> Line | None:
        """Return the last line that is not empty and no user's text."""
        return next((line for line in reversed(self.last) if line.text.strip() and not is_echo(line.text)), None)

    def _shape_of(self, text: str) -> "_Shape":
        """Return what a line without its digits may hold: looked for once, however often such a line comes."""
        bare = text.encode("utf-8", "replace").translate(None, _DIGITS)
        shape = self._shapes.get(bare)
        if shape is None:
            keys = tuple(key for key, bare_key in _BARE_KEYS if bare_key in bare)
            shape = _Shape(keys, any(mark in bare for mark in _BARE_ECHOES))
            if len(self._shapes) < _SHAPES and len(bare) <= _SHAPE_CHARS:
                self._shapes[bare] = shape
        return shape

    def _weigh(self, line: str, hits: Sequence[str], *, echo: bool) -> None:
        """Add what a line with these keys says, unless a user wrote it."""
        if echo:
            self._echoing = opens_echo(line)
            return
        if self._echoing and not is_logged(line):
            return
        self._echoing = False
        text, quiet = heard(line)
        if (error := self._said.get(text)) is not None:
            if error and self.phase is Phase.SERVING:
                self.error = Line(self._count, line)
            return
        here = Line(self._count, line)
        self.standstill.hear(here, text)
        self._advance(text, hits)
        if self.phase is Phase.SHUTDOWN or HEALTHY in text:
            return
        if match := self._match(text, hits, here, quiet=quiet):
            self._keep(match)
        elif not quiet and _ERRORS.intersection(hits) and self._is_error(text):
            # Of a start the first error counts, the later ones follow from it; of a long life the last.
            if self.error is None or self.phase is Phase.SERVING:
                self.error = here
        else:
            self._learn(text, hits)
            return
        if len(self._said) < _REMEMBERED:
            self._said[text] = match is None

    def _is_error(self, text: str) -> bool:
        return bool(ERROR_LINE.match(text)) and not any(word in text for word in CASCADES)

    def _advance(self, text: str, hits: Sequence[str]) -> None:
        """Move the phase and the work on, and drop what the server has survived by getting there."""
        for key in hits:
            for frame, work in _FRAMES_OF[key]:
                if frame in text:
                    self._work = work
            for mark, phase in _MARKS_OF[key]:
                if mark in text and PHASES.index(phase) > PHASES.index(self.phase):
                    self._begin(phase)
        if any(mark in text for mark in NEW_ATTEMPT) and (self.root or self.follower or self.phase is not Phase.CONFIG):
            self._forget()
            self.facts.pop(_POOL, None)
            self.phase, self.shutdown = Phase.CONFIG, False
            self.standstill = Standstill()
        elif HEALTHY in text and self.follower is None:
            self.root = None
            self.details.clear()
            self._said.clear()

    def _begin(self, phase: Phase) -> None:
        self.phase = phase
        self._work = None
        self._said.clear()
        if phase is Phase.SERVING:
            self._forget()
        elif phase is Phase.SHUTDOWN:
            self.shutdown = True

    def _forget(self) -> None:
        """Drop the failures so far."""
        self._said.clear()
        self.root = self.follower = self.error = self._work = None
        self.details.clear()

    def _match(self, text: str, hits: Sequence[str], line: Line, *, quiet: bool) -> Match | None:
        """Return the first row that matches the line and means something in this phase."""
        rows = _ROWS_OF[hits[0]] if len(hits) == 1 else sorted({row for key in hits for row in _ROWS_OF[key]})
        for index in rows:
            row = ROWS[index]
            kind = row.serving if self.phase is Phase.SERVING else row.starting
            if kind is None or (quiet and not row.quiet) or row.key not in text:
                continue
            if found := row.pattern.search(text):
                return Match(row, line, self._above, self.phase, self._work, kind, *read_groups(found))
        return None

    def _keep(self, match: Match) -> None:
        """Keep the earliest root and the earliest follower; later lines of the root's class only add numbers."""
        if not match.row.root:
            self.follower = self.follower or match
        elif self.root is None or (self.root.row.cause == LINKS and _explains_broken_links(match)):
            self.root = match
        elif match.kind is self.root.kind:
            free, least = match.numbers.get("free_bytes"), self.root.numbers.get("free_bytes")
            if match.row is self.root.row and free is not None and least is not None and free < least:
                self.root = replace(self.root, numbers=match.numbers)  # the worst rank decides
            for name, value in match.numbers.items():
                self.details.setdefault(name, value)

    def _learn(self, text: str, hits: Sequence[str]) -> None:
        """Add the numbers and words of a line that is no failure."""
        for key in hits:
            for fact in _FACTS_OF[key]:
                if fact.key in text and (found := fact.pattern.search(text)):
                    numbers, words = read_groups(found)
                    if _POOL in numbers:  # of the ranks the poorest decides
                        numbers[_POOL] = min(numbers[_POOL], self.facts.get(_POOL, numbers[_POOL]))
                    self.facts |= numbers
                    self.words |= words


def _explains_broken_links(match: Match) -> bool:
    """Whether a line says what ended a rank, which leaves the others with errors of their links, often first."""
    return match.row.cause == "host" or match.kind not in _NO_MORE_THAN_LINKS


# What a key that stands in a line can lead to.
_ROWS_OF: Mapping[str, tuple[int, ...]] = {
    key: tuple(index for index, row in enumerate(ROWS) if key in row.key) for key in KEYS
}
_FACTS_OF: Mapping[str, tuple[Fact, ...]] = {key: tuple(fact for fact in FACTS if key in fact.key) for key in KEYS}
_MARKS_OF: Mapping[str, tuple[tuple[str, Phase], ...]] = {
    key: tuple((mark, phase) for mark, phase in MARKS if key in mark) for key in KEYS
}
_FRAMES_OF: Mapping[str, tuple[tuple[str, Work], ...]] = {
    key: tuple((frame, work) for frame, work in FRAMES.items() if key in frame) for key in KEYS
}
