"""What every text page is drawn with: glyphs, colours, columns, and numbers as people read them. Pure."""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

WIDTH = 100
_LABEL_WIDTH = 17
_GIB = 2**30
_THOUSAND = 1000.0
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


class Style(StrEnum):
    """How a piece of text is meant; the value is its ANSI sequence (SGR)."""

    PLAIN = ""
    BOLD = "\x1b[1m"
    DIM = "\x1b[2m"
    GOOD = "\x1b[32m"
    WARN = "\x1b[33m"
    BAD = "\x1b[31m"
    ID = "\x1b[36m"
    COMMAND = "\x1b[22m"  # to be typed, and so never cut, however long a path in it is


_RESET = "\x1b[0m"
_GLYPHS: Mapping[str, tuple[str, str, Style]] = {
    "ok": ("●", "OK", Style.GOOD),
    "attention": ("▲", "WARN", Style.WARN),
    "failed": ("✖", "FAIL", Style.BAD),
    "stopped": ("○", "OFF", Style.DIM),
}
_UNKNOWN_GLYPH = ("?", "?", Style.DIM)
# What the page itself draws beyond ASCII; text that is not ours is escaped instead.
_ASCII = {"·": "|", "│": "|", "…": "~"}

Span = tuple[str, Style]
Row = Sequence[Span]


@dataclass(frozen=True, slots=True)
class Look:
    """How pages are drawn here. The glyph carries the meaning, colour only repeats it."""

    ascii: bool = False
    colour: bool = False

    def glyph(self, health: str) -> Span:
        """Return the mark of a health."""
        fine, plain_, style = _GLYPHS.get(health, _UNKNOWN_GLYPH)
        return (plain_ if self.ascii else fine, style)

    def render(self, rows: Iterable[Row]) -> str:
        """Return rows as lines of at most 100 columns, but for commands."""
        return "".join(self._line(row) + "\n" for row in rows)

    def _line(self, row: Row) -> str:
        """Return one line: clipped first, then coloured, so that no escape is ever cut."""
        left, parts = WIDTH, []
        for text, style in row:
            spelled = self._spelled(text)
            shown = spelled if style is Style.COMMAND else _clipped(spelled, left)
            left -= len(shown)
            parts.append(f"{style}{shown}{_RESET}" if self.colour and style and shown.strip() else shown)
        line = "".join(parts)
        return line.rstrip()

    def _spelled(self, text: str) -> str:
        """Return text in the characters that this terminal has."""
        if not self.ascii:
            return text
        for fine, plain_ in _ASCII.items():
            text = text.replace(fine, plain_)
        return text.encode("ascii", "backslashreplace").decode("ascii")


def _clipped(text: str, columns: int) -> str:
    """Return at most this many columns of a text, with a mark where something is missing."""
    if len(text) <= columns:
        return text
    return text[: columns - 1] + "~" if columns > 0 else ""


def labelled(label: str, text: str, style: Style = Style.PLAIN, limit: int = 4) -> list[Row]:
    """Return a text behind its label, wrapped over at most `limit` lines."""
    lines = textwrap.wrap(text, WIDTH - _LABEL_WIDTH, max_lines=limit, placeholder=" ...", break_on_hyphens=False)
    labels = [label, *[""] * len(lines)]
    return [[tag(name), (line, style)] for name, line in zip(labels, lines or [""], strict=False)]


def tag(label: str) -> Span:
    """Return the first column of a row."""
    return (f"  {label:<{_LABEL_WIDTH - 2}}", Style.BOLD)


def columns(cells: Iterable[tuple[str, int, Style]]) -> Row:
    """Return cells padded to their widths."""
    return [(f"{_clipped(text, width - 1):<{width}}", style) for text, width, style in cells]


def duration(seconds: float | None) -> str:
    """Return a length of time: days and hours, hours and minutes, minutes, or seconds."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    left = int(max(0.0, seconds))
    found = []
    for unit, name in _UNITS:
        count, left = divmod(left, unit)
        found += [f"{count} {name}"] if count else []
    return " ".join(found[:2] if found[0].endswith(("d", "h")) else found[:1]) if found else "0 s"


def clock(at: datetime | None) -> str:
    """Return a time in UTC, to the second."""
    return "unknown" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def latency(low_s: float | None, high_s: float | None) -> str:
    """Return a latency of which only bounds may be known."""
    if low_s is None and high_s is None:
        return "-"
    if high_s is None:
        return f"> {_seconds(low_s or 0.0)}"
    if low_s is None or low_s == high_s:
        return _seconds(high_s)
    if high_s < 1.0:
        return f"{low_s * 1000:.4g}..{high_s * 1000:.4g} ms"
    return f"{low_s:.4g}..{high_s:.4g} s"


def _seconds(value: float) -> str:
    """Return seconds, as milliseconds below one."""
    return f"{value * 1000:.4g} ms" if value < 1.0 else f"{value:.3g} s"


def share(low: float | None, high: float | None) -> str:
    """Return a share of which only bounds may be known, rounded down: 99.999 % is not 100 %."""
    if low is None or high is None:
        return "-"
    if low == high:
        return f"{_percent(low)} %"
    return f"{_percent(low)}..{_percent(high)} %"


def _percent(value: float) -> str:
    """Return a ratio in per cent, two decimals."""
    return f"{math.floor(value * 10_000 + 1e-6) / 100:.2f}"


def gib(size_bytes: float | None) -> str:
    """Return a size in GiB, without the unit."""
    return "?" if size_bytes is None else f"{size_bytes / _GIB:.1f}"


def rate(value: float | None) -> str:
    """Return a rate in three digits, thousands as k."""
    if value is None:
        return "?"
    return f"{value / _THOUSAND:.1f}k" if value >= _THOUSAND else f"{value:.3g}"
