"""Reads the file that holds the server's environment variables."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from vllmd.config.sources import read_text
from vllmd.errors import ConfigError, Finding

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DOUBLE_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"\s*')
_SINGLE_QUOTED = re.compile(r"'([^']*)'\s*")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "t": "\t"}


@dataclass(frozen=True, slots=True)
class _Problem:
    """What is wrong with a line, and what was wanted instead."""

    message: str
    wanted: str


_NO_ASSIGNMENT = _Problem("the line assigns nothing", "NAME=VALUE")
_UNBALANCED = _Problem("the value's quotes do not match", "one pair of quotes around the whole value")


def read_env_file(path: Path) -> dict[str, str]:
    r"""Return the variables of a file of NAME=VALUE lines; a later line wins.

    Empty lines and lines that begin with # or ; are skipped, `export` in front of a name is allowed. Values may stand
    in '…' (taken as they are) or in "…" (with \n, \t, \" and \\); nothing is expanded. Raises ConfigError with
    every bad line; values are never quoted in it, they may be secrets.
    """
    text = read_text(path)
    if isinstance(text, Finding):
        raise ConfigError([replace(text, wanted="a readable file of NAME=VALUE lines")])
    variables: dict[str, str] = {}
    findings: list[Finding] = []
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#;":
            continue
        name, equals, written = stripped.removeprefix("export ").partition("=")
        name, value = name.strip(), _value(written.strip())
        if equals and _NAME.fullmatch(name) and isinstance(value, str):
            variables[name] = value
        else:
            findings.append(_bad_line(path, number, name if equals else "", value if equals else _NO_ASSIGNMENT))
    if findings:
        raise ConfigError(findings)
    return variables


def _value(written: str) -> str | _Problem:
    """Return what a value stands for, or what is wrong with it."""
    if "\0" in written:
        return _Problem("a value holds a NUL character", "text")
    if written[:1] == "'":
        match = _SINGLE_QUOTED.fullmatch(written)
        return match[1] if match else _UNBALANCED
    if written[:1] == '"':
        match = _DOUBLE_QUOTED.fullmatch(written)
        return _ESCAPE.sub(lambda m: _ESCAPED.get(m[1], m[1]), match[1]) if match else _UNBALANCED
    if re.search(r"\s#", written):
        return _Problem('" #" may be a comment or belong to the value', "the value in quotes, or the comment on a line")
    return written


def _bad_line(path: Path, number: int, name: str, problem: str | _Problem) -> Finding:
    """Return the finding of one line. It has no column, so that the line is not shown: it may hold a secret."""
    if isinstance(problem, str):
        problem = _Problem("the name before = is no variable's name", "letters, digits and underscores")
    shown = name if _NAME.fullmatch(name) else ""
    return Finding("E501", problem.message, shown, shown, problem.wanted, str(path), number)
