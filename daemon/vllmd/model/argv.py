"""The server's command as a value: every way an operator may write an option becomes one canonical form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from vllmd.errors import CommandError
from vllmd.model.argv_reading import ADD_UP, Reading, UnknownOption, canonical_name, canonical_value
from vllmd.model.argv_tokens import plain_tokens
from vllmd.model.flags import Flags, FlagValue
from vllmd.model.options import Arity, Catalogue

__all__ = ["Command", "UnknownOption", "canonical_name", "parse_command"]


@dataclass(frozen=True, slots=True)
class Command:
    """A parsed command line of the server. Command lines that vLLM would understand alike are equal.

    `program` is what comes before the options (`vllm serve`, `python -m …`), `model` is None where vLLM would take its
    default. `flags` holds every option, unknown ones too, so that nothing of the operator's is lost. `positionals` are
    words besides the model, `misuses` sentences about stray words and about missing or superfluous values.
    """

    program: tuple[str, ...]
    model: str | None
    flags: Flags
    unknown: tuple[UnknownOption, ...] = ()
    positionals: tuple[str, ...] = ()
    misuses: tuple[str, ...] = ()
    catalogue: Catalogue = field(default_factory=lambda: Catalogue({}), repr=False, compare=False)

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that vLLM would refuse about this command line, as sentences without full stops."""
        return (*(option.sentence() for option in self.unknown), *self.misuses)

    def argv(self) -> tuple[str, ...]:
        """Return the canonical argv: program, model, options under their long names."""
        model: tuple[str, ...] = ()
        if self.model is not None:
            model = (self.model,) if _takes_word(self.program) else ("--model", self.model)
        options = (part for name, value in self.flags.items() for part in self._rendered(name, value))
        return (*self.program, *model, *self.positionals, *options)

    def with_changes(self, changes: Mapping[str, FlagValue | None]) -> "Command":
        """Return the command with these options set, or removed where the value is None. Names are canonical.

        Raises CommandError for an option that this vLLM does not have, unless the operator's own argv holds it.
        """
        for name, value in changes.items():
            if (
                value is not None
                and name not in self.flags
                and self.catalogue.readable
                and not self.catalogue.knows(name)
            ):
                raise CommandError(f"vLLM {self.catalogue.version or '(version unknown)'} has no option --{name}")
        settled = {name: self._settled(name, value) for name, value in changes.items()}
        return replace(self, flags=self.flags.changed(settled))

    def _settled(self, name: str, value: FlagValue | None) -> FlagValue | None:
        """Return a new value in its canonical form; a switch without a --no- form is off by not being there."""
        option = self.catalogue.options.get(name)
        if option is None or value is None:
            return value
        if value is False and option.arity is not Arity.BOOLEAN:
            return None
        return canonical_value(option, value)

    def _rendered(self, name: str, value: FlagValue) -> tuple[str, ...]:
        """Return the tokens of one option."""
        spelling = name if name.startswith("-") else f"--{name}"
        match value:
            case bool():
                return (spelling,) if value else (f"--no-{name}",)
            case str():
                return _pair(spelling, value)
            case tuple():
                option = self.catalogue.options.get(name)
                adds_up = option.arity is Arity.APPEND if option else name in ADD_UP
                if adds_up or len(value) == 1:
                    return tuple(part for item in value for part in _pair(spelling, item))
                return (spelling, *value)


def parse_command(argv: Sequence[str], program_length: int, catalogue: Catalogue) -> Command:
    """Return the command of an operator's argv, read the way this vLLM would read it.

    `program_length` is the number of leading words that name the program. With an empty catalogue the reading is
    generic: an option takes the words after it that do not begin with a dash, and nothing is unknown.
    """
    program, words = tuple(argv[:program_length]), argv[program_length:]
    reading = Reading(catalogue, takes_word=_takes_word(program))
    if reading.takes_word:
        reading.model, words = _moved_model(words)
    reading.read(plain_tokens(words, catalogue.dialect, declares_o="-O" in reading.index))
    return Command(
        program=program,
        model=reading.model,
        flags=Flags(tuple(reading.flags.items())),
        unknown=tuple(dict.fromkeys(reading.unknown)),
        positionals=tuple(reading.positionals),
        misuses=tuple(reading.misuses),
        catalogue=catalogue,
    )


def _takes_word(program: Sequence[str]) -> bool:
    """Whether the model is a word of its own (`vllm serve MODEL`) and not an option (`--model MODEL`)."""
    return tuple(program[-1:]) == ("serve",)


def _moved_model(words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return the model of `--model MODEL` and the other words: `vllm serve` puts it in front of all words (0.11 on)."""
    for place, word in enumerate(words):
        if word == "--model" and place + 1 < len(words) and not words[place + 1].startswith("-"):
            return words[place + 1], (*words[:place], *words[place + 2 :])
        if word.startswith("--model=") and word != "--model=":
            return word.removeprefix("--model="), (*words[:place], *words[place + 1 :])
    return None, words


def _pair(spelling: str, value: str) -> tuple[str, ...]:
    """Return an option with one value: in one token where argparse would not take the second for a value."""
    return (f"{spelling}={value}",) if not value or value.startswith("-") else (spelling, value)
