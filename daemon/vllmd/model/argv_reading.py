"""One pass over plain option tokens: which option each stands for, and how many words belong to it.

The rules are argparse's (CPython 3.10 to 3.13, `_parse_optional` and `consume_optional`), because vLLM's parser is one.
"""

import difflib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from vllmd.model.argv_tokens import canonical_json, dashed, is_value
from vllmd.model.flags import FlagValue
from vllmd.model.options import Arity, Catalogue, Option

# Without a readable catalogue the last repetition counts, except for these, which add up in every version.
ADD_UP = frozenset({"middleware"})


@dataclass(frozen=True, slots=True)
class UnknownOption:
    """An option that the installed vLLM does not accept.

    `text` is its name as the operator wrote it, `nearest` the most similar spelling that exists (None: none is
    similar), `candidates` what an abbreviation could stand for (empty unless it is ambiguous).
    """

    text: str
    nearest: str | None = None
    candidates: tuple[str, ...] = ()

    def sentence(self) -> str:
        """Return what is wrong, in one sentence without a full stop."""
        if self.candidates:
            return f"{self.text} is ambiguous: it could be {', '.join(self.candidates)}"
        hint = f"; did you mean {self.nearest}?" if self.nearest else ""
        return f"this vLLM has no option {self.text}{hint}"


@dataclass(frozen=True, slots=True)
class Match:
    """What one part of an argv stands for: an option, whether this spelling switches it off, the value attached."""

    option: Option
    negative: bool
    value: str | None


class SpellingIndex:
    """Looks option strings up as argparse does: exact ones first, then unambiguous abbreviations."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._meanings: dict[str, tuple[Option, bool]] = {}
        for option in catalogue.options.values():
            self._meanings |= dict.fromkeys(option.spellings, (option, False))
            self._meanings |= dict.fromkeys(option.negations, (option, True))
            if option.arity is Arity.BOOLEAN:
                long = (s.removeprefix("--") for s in option.spellings if s.startswith("--"))
                self._meanings |= dict.fromkeys([f"--no-{name}" for name in long], (option, True))

    def __contains__(self, spelling: str) -> bool:
        """Whether this is an option string of the installation."""
        return spelling in self._meanings

    def find(self, part: str) -> Match | UnknownOption:
        """Return what a part of an argv that begins with a dash stands for."""
        name, equals, attached = part.partition("=")
        value = attached if equals else None
        if part in self:
            return Match(*self._meanings[part], None)
        if name in self:
            return Match(*self._meanings[name], value)
        if part.startswith("--"):
            candidates = tuple(sorted(s for s in self._meanings if s.startswith(name)))
        else:
            if part[:2] in self:
                return Match(*self._meanings[part[:2]], part[2:])  # -n2
            candidates = tuple(sorted(s for s in self._meanings if s.startswith(part)))
        if len(candidates) == 1:
            return Match(*self._meanings[candidates[0]], value)
        return UnknownOption(name, None, candidates)

    def nearest(self, spelling: str) -> str | None:
        """Return the most similar option string, None if none is similar."""
        close = difflib.get_close_matches(spelling, self._meanings, n=1)
        return close[0] if close else None


class Reading:
    """What the tokens say. `takes_word` says whether the model may be a word of its own (`vllm serve MODEL`)."""

    def __init__(self, catalogue: Catalogue, *, takes_word: bool) -> None:
        self.index = SpellingIndex(catalogue)
        self.takes_word = takes_word
        self.generic = not catalogue.readable
        self.model: str | None = None
        self.flags: dict[str, FlagValue] = {}
        self.unknown: list[UnknownOption] = []
        self.positionals: list[str] = []
        self.misuses: list[str] = []

    def read(self, tokens: Sequence[str]) -> None:
        """Read all tokens in order."""
        rest = deque(tokens)
        while rest:
            part = rest.popleft()
            if part == "--":
                for word in rest:
                    self._word(word)
                return
            match self._classify(part):
                case None:
                    self._word(part)
                case Match() as found:
                    self._option(found, part, rest)
                case UnknownOption() as unknown:
                    self._unknown(unknown, part, rest)

    def _classify(self, part: str) -> Match | UnknownOption | None:
        """Return what a part stands for; None for a word."""
        if not part.startswith("-") or part == "-":
            return None
        found = self.index.find(part)
        if isinstance(found, UnknownOption) and not found.candidates and is_value(part):
            return None
        return found

    def _take(self, rest: deque[str], limit: int | None = None) -> tuple[str, ...]:
        """Take the words that come next, at most `limit`."""
        taken: list[str] = []
        while rest and len(taken) != limit and rest[0] != "--" and self._classify(rest[0]) is None:
            taken.append(rest.popleft())
        return tuple(taken)

    def _word(self, word: str) -> None:
        """Take a word that belongs to no option: the model, or a stray one."""
        if self.takes_word and self.model is None and not word.startswith("-"):
            self.model = word
            return
        self.positionals.append(word)
        if not self.takes_word:
            model = "in this form the model is given by --model"
        else:
            model = "is no name of a model" if self.model is None else f"the model is {self.model!r}"
        self.misuses.append(f"{word!r} belongs to no option, and {model}")

    def _option(self, match: Match, part: str, rest: deque[str]) -> None:
        """Take an option of the catalogue with the words that belong to it."""
        option = match.option
        attached = () if match.value is None else (match.value,)
        match option.arity:
            case Arity.NONE | Arity.BOOLEAN:
                if attached and option.name != "help":  # --help=all
                    self.misuses.append(f"--{option.name} takes no value, found {match.value!r}")
                self._store(option.name, not match.negative)
            case Arity.ONE:
                values = self._wanted(attached or self._take(rest, 1), part)
                self._store(option.name, canonical_value(option, values[0]) if values else True)
            case Arity.OPTIONAL:
                values = attached or self._take(rest, 1)
                self._store(option.name, values[0] if values else True)
            case Arity.MANY:
                self._store(option.name, self._wanted(attached or self._take(rest), part) or True)
            case Arity.APPEND:
                self._append(option.name, self._wanted(attached or self._take(rest, 1), part))
            case _ as never:
                assert_never(never)

    def _unknown(self, unknown: UnknownOption, part: str, rest: deque[str]) -> None:
        """Take an option that the catalogue lacks and the words after it; one word where the model may still follow."""
        name, equals, attached = part.partition("=")
        if not name.strip("-"):
            self._word(part)  # -=x names nothing
            return
        if "." in part and isinstance(self.index.find(part.partition(".")[0]), Match):
            self.misuses.append(f"{part} expects a value")  # -cc.mode at the very end
        elif not self.generic:
            nearest = None if unknown.candidates else self.index.nearest(unknown.text)
            self.unknown.append(UnknownOption(unknown.text, nearest, unknown.candidates))
        undecided = self.takes_word and self.model is None
        values = (attached,) if equals else self._take(rest, 1 if undecided else None)
        name = canonical_name(name)
        if name in ADD_UP:
            self._append(name, values)
        elif values:
            self._store(name, values[0] if len(values) == 1 else values)
        elif name.startswith("no-"):
            self._store(name.removeprefix("no-"), value=False)
        else:
            self._store(name, value=True)

    def _wanted(self, values: tuple[str, ...], part: str) -> tuple[str, ...]:
        """Return the values, and note it where there are none."""
        if not values:
            self.misuses.append(f"{part} expects a value")
        return values

    def _append(self, name: str, values: tuple[str, ...]) -> None:
        """Add values to those that the option has already."""
        old = self.flags.get(name)
        self._store(name, (*old, *values) if isinstance(old, tuple) else values)

    def _store(self, name: str, value: FlagValue) -> None:
        """Set an option; the last setting counts, except for the model as a word, which comes before --model."""
        if name == "help":
            self.misuses.append("--help only prints the options and ends")
        if name == "model" and isinstance(value, str):
            if not self.takes_word or self.model is None:
                self.model = value
        else:
            self.flags[name] = value


def canonical_value(option: Option, value: FlagValue) -> FlagValue:
    """Return a value in the form that its option has in Flags: one JSON text, a tuple for several values."""
    if not isinstance(value, str):
        return value
    if option.arity in (Arity.MANY, Arity.APPEND):
        return (value,)
    return canonical_json(value) if option.is_json else value


def canonical_name(text: str) -> str:
    """Return the canonical form of an option's name: long, with dashes, without leading ones (`max-num-seqs`).

    Takes `--max_num_seqs`, `max_num_seqs=8`, `max-num-seqs`. A short form (`-tp`) keeps its dash: only a catalogue
    knows what it stands for.
    """
    name = text.partition("=")[0].strip()
    if name.startswith("-") and not name.startswith("--"):
        return name
    return dashed("--" + name.removeprefix("--")).removeprefix("--")
