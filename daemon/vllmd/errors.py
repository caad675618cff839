"""The errors of vllmd. Expected failures of the server are values (`model.failure`), not exceptions."""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

# What the kernel says where a process or the host has no descriptor, or no memory for one: those of accept(2).
_USED_UP = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class VllmdError(Exception):
    """Every error that vllmd raises on purpose."""


class Severity(StrEnum):
    """How much a finding matters: an error stops `vllmd run`, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of the configuration or of the command line, with its place.

    `file` is None for the command line, and names the variable for the environment. `line` and `column` count from 1
    and are None when unknown; `width` is how many characters the offending text spans there. `notes` say what else
    bears on it, one line each. `found` never holds a secret.
    """

    code: str
    message: str
    key: str
    found: str
    wanted: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    hint: str = ""
    severity: Severity = Severity.ERROR
    width: int = 1
    notes: tuple[str, ...] = ()


class ConfigError(VllmdError):
    """The configuration cannot be used; `findings` says why, all problems at once."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("; ".join(f"{_place(f)}{f.message}" for f in findings))
        self.findings = tuple(findings)


def _place(finding: Finding) -> str:
    """Return where a problem is, to stand before it; empty where it has no place."""
    if finding.file is None:
        return ""
    return f"{finding.file}: " if finding.line is None else f"{finding.file}:{finding.line}: "


class CommandError(VllmdError):
    """The server's command cannot be run by vllmd (not vLLM's own, an option it does not know, …)."""


class InstanceBusyError(VllmdError):
    """Another vllmd already runs this instance."""


class ControlError(VllmdError):
    """The daemon could not be asked, or refused."""


def used_up(error: object) -> bool:
    """Whether an error says that the host has no more to give."""
    return isinstance(error, OSError) and error.errno in _USED_UP
