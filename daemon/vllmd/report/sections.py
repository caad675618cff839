"""A page of titled sections, drawn for a terminal or written as Markdown for a ticket. Pure."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from vllmd.model.plain import plain
from vllmd.report.drawing import WIDTH, Look, Row, Style

_INDENT = "  "
_MOST_LINES = 6  # of one paragraph on a terminal
_LONGEST = 2000  # characters of one line in Markdown
_MARKUP = re.compile(r"([\\`*_\[\]<>|~#&$]|^[+-])")


class Kind(Enum):
    """What a line is: a sentence of vllmd's, words of the server's log, or a command to type with its purpose."""

    FACT = auto()
    QUOTE = auto()
    COMMAND = auto()


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a section; `note` says what a command is for."""

    text: str
    kind: Kind = Kind.FACT
    style: Style = Style.PLAIN
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Lines under a title."""

    title: str
    lines: tuple[Line, ...]


def quote(text: str) -> Line:
    """Return words of the server's log."""
    return Line(text, Kind.QUOTE, Style.DIM)


def command(text: str, note: str = "") -> Line:
    """Return a command to type."""
    return Line(text, Kind.COMMAND, note=note)


def as_page(heading: str, sections: Sequence[Section], look: Look) -> str:
    """Return the page for a terminal, at most 100 columns wide."""
    rows: list[Row] = [[(heading, Style.BOLD)]]
    for section in sections:
        rows += [[], [(section.title, Style.BOLD)]]
        rows += [row for line in section.lines for row in _rows(line)]
    return look.render(rows)


def as_markdown(heading: str, sections: Sequence[Section]) -> str:
    """Return the same as Markdown; what the server's log says is code, and so never markup."""
    blocks = [f"### {_escaped(heading)}\n"]
    for section in sections:
        lines = "\n".join(f"- {_markdown(line)}" for line in section.lines)
        blocks.append(f"**{_escaped(section.title)}**\n\n{lines}\n")
    return "\n".join(blocks)


def _rows(line: Line) -> list[Row]:
    """Return one line, wrapped; a command stays whole, and what it is for goes below where it finds no room."""
    if line.kind is Kind.COMMAND:
        typed, note = f"{_INDENT}`{plain(line.text, _LONGEST)}`", plain(line.note)
        if not note or len(typed) + len(note) < WIDTH:
            return [[(f"{typed} {note}".rstrip(), Style.COMMAND)]]
        return [[(typed, Style.COMMAND)], [(_INDENT * 2 + note, line.style)]]
    wrapped = textwrap.wrap(
        plain(line.text, _LONGEST),
        WIDTH - len(_INDENT),
        subsequent_indent=_INDENT,
        max_lines=_MOST_LINES,
        placeholder=" ...",
        break_on_hyphens=False,
    )
    return [[(_INDENT + part, line.style)] for part in wrapped]


def _markdown(line: Line) -> str:
    """Return a line as Markdown."""
    match line.kind:
        case Kind.FACT:
            return _escaped(line.text)
        case Kind.QUOTE:
            return _code(line.text)
        case Kind.COMMAND:
            return _code(line.text) + (f" {_escaped(line.note)}" if line.note else "")


def _escaped(text: str) -> str:
    """Return text in which nothing is markup."""
    return _MARKUP.sub(r"\\\1", plain(text, _LONGEST))


def _code(text: str) -> str:
    """Return text as code, behind more backticks than it holds in a row."""
    shown = plain(text, _LONGEST)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    edge = " " if "`" in shown else ""
    return f"{fence}{edge}{shown}{edge}{fence}"
