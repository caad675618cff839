"""Where each key of a TOML text stands: tomllib reads the values but drops their positions."""

import bisect
import re
import tomllib
from dataclasses import dataclass

# Names of tables and keys, and indexes of arrays: ("engine", "argv", 2).
KeyPath = tuple[str | int, ...]

_BLANK = re.compile(r"[ \t]*")
_BETWEEN = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})'  # a multi-line string may end in quotes of its own
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:[^"\\]|\\.)*"'
    r"|'[^']*'",
    re.DOTALL,
)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\n]+")


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one line: line and column count from 1, `width` is in characters and at least 1."""

    line: int
    column: int
    width: int


@dataclass(frozen=True, slots=True)
class Located:
    """Where a key and its value stand, and the value as written.

    A value of several lines spans its first one. For a table's header the value is the key itself, its text is empty;
    for an element of an array the key is the value.
    """

    key: Span
    value: Span
    text: str = ""


def locate(text: str) -> dict[KeyPath, Located]:
    """Return the place of every table, key and array element of a TOML text that tomllib accepts.

    A table that is written several times is where it was written first.
    """
    reader = _Reader(text.replace("\r\n", "\n"))
    reader.document()
    return reader.found


class _Reader:
    """Walks a valid TOML text once, from the front, noting where keys and values stand."""

    def __init__(self, text: str) -> None:
        self.found: dict[KeyPath, Located] = {}
        self._text = text
        self._at = 0
        self._line_starts = [0, *(m.end() for m in re.finditer("\n", text))]
        self._table_arrays: dict[KeyPath, int] = {}  # the index of the last table of each [[array]]

    def document(self) -> None:
        """Read headers and pairs up to the end."""
        table: KeyPath = ()
        self._skip(_BETWEEN)
        while self._at < len(self._text):
            if self._next() == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BETWEEN)

    def _header(self) -> KeyPath:
        """Read [table] or [[array of tables]]; return the path of the table that follows."""
        brackets = "[[" if self._text.startswith("[[", self._at) else "["
        self._at += len(brackets)
        path: KeyPath = ()
        parts = self._key()
        for position, (name, span) in enumerate(parts, start=1):
            path = (*path, name)
            self.found.setdefault(path, Located(span, span))
            if brackets == "[[" and position == len(parts):
                self._table_arrays[path] = self._table_arrays.get(path, -1) + 1
            if path in self._table_arrays:
                path = (*path, self._table_arrays[path])
                self.found.setdefault(path, Located(span, span))
        self._at += len(brackets)
        return path

    def _pair(self, table: KeyPath) -> None:
        """Read KEY = VALUE, dotted keys included."""
        path = table
        parts = self._key()
        for name, span in parts:
            path = (*path, name)
            self.found.setdefault(path, Located(span, span))
        self._at += 1  # the equals sign
        self._skip(_BLANK)
        value, written = self._value(path)
        self.found[path] = Located(parts[-1][1], value, written)

    def _key(self) -> list[tuple[str, Span]]:
        """Read a key: its parts, each with its place, up to what follows the key."""
        parts = []
        while True:
            self._skip(_BLANK)
            start = self._at
            quoted = self._next() in "\"'"
            self._skip(_STRING if quoted else _BARE_KEY)
            raw = self._text[start : self._at]
            name = tomllib.loads(f"key = {raw}")["key"] if quoted else raw
            parts.append((name, self._span(start)))
            self._skip(_BLANK)
            if self._next() != ".":
                return parts
            self._at += 1

    def _value(self, path: KeyPath) -> tuple[Span, str]:
        """Read a value of any kind; return its place and its text."""
        start = self._at
        match self._next():
            case '"' | "'":
                self._skip(_STRING)
            case "[":
                self._array(path)
            case "{":
                self._inline_table(path)
            case _:
                self._skip(_SCALAR)
                self._at = start + len(self._text[start : self._at].rstrip())
        return self._span(start), self._text[start : self._at]

    def _array(self, path: KeyPath) -> None:
        self._at += 1
        index = 0
        while self._more("]"):
            element = (*path, index)
            span, written = self._value(element)
            self.found[element] = Located(span, span, written)
            index += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._at += 1
        while self._more("}"):
            self._pair(path)

    def _more(self, close: str) -> bool:
        """Step over what separates elements; say whether another one follows, or step over the closing sign."""
        self._skip(_BETWEEN)
        if self._next() == ",":
            self._at += 1
            self._skip(_BETWEEN)
        if self._next() != close:
            return True
        self._at += 1
        return False

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, pattern: re.Pattern[str]) -> None:
        if match := pattern.match(self._text, self._at):
            self._at = match.end()

    def _span(self, start: int) -> Span:
        """Return the stretch from `start` to here, or to the end of its line."""
        line = bisect.bisect_right(self._line_starts, start)
        line_start = self._line_starts[line - 1]
        line_end = self._line_starts[line] - 1 if line < len(self._line_starts) else len(self._text)
        return Span(line, start - line_start + 1, max(1, min(self._at, line_end) - start))
