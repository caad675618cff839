"""What one installed vLLM accepts on its command line."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Arity(StrEnum):
    """How many values an option takes on the command line."""

    NONE = "none"  # a bare switch
    BOOLEAN = "boolean"  # a switch that also exists as --no-NAME
    ONE = "one"  # exactly one value
    OPTIONAL = "optional"  # one value or none
    MANY = "many"  # one value or more, up to the next option
    APPEND = "append"  # one value each time it is given; repetitions add up


@dataclass(frozen=True, slots=True)
class Option:
    """One option of vLLM: its canonical name, every spelling, and how many values it takes.

    `name` is the canonical form: long, dashes, without the leading `--` (`gpu-memory-utilization`).
    `spellings` holds every option string as vLLM declares it, with dashes (`--tensor-parallel-size`, `-tp`).
    `is_json` marks an option that takes a JSON object and dotted keys (`-cc.mode`, `--kv-transfer-config.x`).
    `negations` are spellings that switch a BOOLEAN off besides `--no-NAME` (vLLM 0.33: `--disable-x` of `--enable-x`).
    """

    name: str
    spellings: tuple[str, ...]
    arity: Arity = Arity.ONE
    is_json: bool = False
    negations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where the argument parsers of vLLM's versions differ. The defaults are those of 0.32 and 0.33.

    `level_key` is None where `-O3` means `--optimization-level 3` (0.18 and later). Before, `-O` was a short form of
    `--compilation-config` and `-O3` set this key of it: `level` in 0.9.2, `mode` in 0.11.2.
    `suffixed_json` says that a dotted value like `80g` becomes a number (so in 0.26; a text in 0.18).
    `config_file_negates` says that False in a configuration file may become `--no-NAME` (so in 0.32; ignored in 0.26).
    """

    level_key: str | None = None
    suffixed_json: bool = True
    config_file_negates: bool = True


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All options of one installation. Empty (`options == {}`) when its source could not be read.

    `version` is vLLM's version, None if unknown; `origin` the package folder that was read, None if none was.
    """

    options: Mapping[str, Option]
    version: str | None = None
    origin: str | None = None
    dialect: Dialect = Dialect()

    def knows(self, name: str) -> bool:
        """Whether the option with this canonical name exists in this installation."""
        return name in self.options

    @property
    def readable(self) -> bool:
        """Whether the installation's options could be read at all."""
        return bool(self.options)
