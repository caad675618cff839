"""Draws findings the way compilers do: code, message, place, the line itself, a caret with the advice."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from vllmd.config.masking import TextMasker
from vllmd.config.sources import read_text
from vllmd.errors import Finding, Severity
from vllmd.model.plain import plain

# Returns the text of a file, None where it cannot be read (now).
TextReader = Callable[[str], str | None]

_RESET = "\x1b[0m"
_STYLES = {Severity.ERROR: "\x1b[1;31m", Severity.WARNING: "\x1b[1;33m"}
_WIDTH = 100  # columns of a quoted line
_BEFORE = 20  # columns shown before the place in a line that is longer
_SENTENCE = 1000  # characters of a message or a note


def file_text(file: str) -> str | None:
    """Return the text of a file as the configuration's reader sees it."""
    text = read_text(Path(file))
    return text if isinstance(text, str) else None


def render(findings: Iterable[Finding], *, color: bool = False, text_of: TextReader = file_text) -> str:
    """Return findings as text for a person, a blank line between them."""
    return "\n\n".join(_render(finding, text_of, color=color) for finding in findings)


def summary(findings: Sequence[Finding], files: int) -> str:
    """Return the last line: how many errors and warnings, in how many files."""
    counts = Counter(finding.severity for finding in findings)
    parts = [_count(counts[severity], severity.value) for severity in Severity if counts[severity]]
    return f"{', '.join(parts) or 'No problem'} in {_count(files, 'file')}. Nothing was changed."


def as_json(finding: Finding) -> dict[str, object]:
    """Return a finding as an object of vllmd.check/v1; null is unknown."""
    return {
        "severity": finding.severity.value,
        "code": finding.code,
        "message": finding.message,
        "key": finding.key or None,
        "found": finding.found or None,
        "wanted": finding.wanted or None,
        "hint": finding.hint or None,
        "notes": list(finding.notes),
        "file": finding.file,
        "line": finding.line,
        "column": finding.column,
    }


def _render(finding: Finding, text_of: TextReader, *, color: bool) -> str:
    head = f"{finding.severity.value}[{finding.code}]"
    if color:
        head = f"{_STYLES[finding.severity]}{head}{_RESET}"
    lines = [f"{head}: {_safe(finding.message)}", f"  --> {_safe(_place(finding))}"]
    gutter = " " * (len(str(finding.line or 0)) + 2)
    if finding.severity is Severity.ERROR:
        lines += _excerpt(finding, gutter, text_of) or [f"{gutter}= {_safe(_advice(finding))}"]
    return "\n".join(lines + [f"{gutter}= {_safe(note)}" for note in finding.notes])


def _place(finding: Finding) -> str:
    parts = (finding.file or "command line", finding.line, finding.column)
    return ":".join(str(part) for part in parts if part is not None)


def _advice(finding: Finding) -> str:
    return finding.hint or f"wanted {finding.wanted}"


def _excerpt(finding: Finding, gutter: str, text_of: TextReader) -> list[str]:
    """Return the line in question with a caret under its fault; nothing where there is no line to show.

    A finding without a column asks for none to be shown.
    """
    if finding.file is None or finding.line is None or finding.column is None:
        return []
    text = text_of(finding.file)
    lines = (text or "").replace("\r\n", "\n").split("\n")
    if text is None or finding.line > len(lines):
        return []
    line, masker = lines[finding.line - 1], TextMasker(text)
    start, end = finding.column - 1, finding.column - 1 + finding.width
    whole, upto_start, upto_end = (masker.mask(part) for part in (line, line[:start], line[:end]))
    before = _shown(whole[: len(upto_start)])
    fault = _shown(whole[len(upto_start) : len(upto_end)])
    after = _shown(whole[len(upto_end) :])
    if len(before) + len(fault) > _WIDTH:
        before = f"…{before[-_BEFORE:]}"
    shown = before + fault + after
    shown = shown if len(shown) <= _WIDTH else f"{shown[:_WIDTH]}…"
    carets = "^" * max(1, min(len(fault), _WIDTH - len(before)))
    return [
        f"{gutter}|",
        f" {finding.line} | {shown}".rstrip(),
        f"{gutter}| {' ' * len(before)}{carets} {_safe(_advice(finding))}",
    ]


def _shown(text: str) -> str:
    return plain(text.replace("\t", "    "), len(text) * 10)


def _safe(text: str) -> str:
    return plain(text, _SENTENCE)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
