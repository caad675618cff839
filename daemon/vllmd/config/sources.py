"""Where settings come from: each file, environment variable and command-line option is one source."""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from vllmd.config.masking import TextMasker
from vllmd.config.toml_lines import KeyPath, Located, Span, locate
from vllmd.errors import Finding

ENVIRONMENT_PREFIX = "VLLMD__"
COMMAND_LINE = "command line"  # the origin of what an operator typed
_FILE_LIMIT_BYTES = 2**20  # a configuration is a few KB: more is another kind of file
_WRITTEN_LIMIT = 80  # characters of a value that a message quotes
_SYNTAX = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)", re.DOTALL)
_BARE_WORD = re.compile(r"[A-Za-z/][A-Za-z0-9_./:-]*")


@dataclass(frozen=True, slots=True)
class Source:
    """One source of settings, as nested tables. `name` is the file or the variable; None: the command line.

    `places` is empty where there is no text to point into.
    """

    name: str | None
    data: Mapping[str, object]
    places: Mapping[KeyPath, Located] = field(default_factory=dict)
    masker: TextMasker = field(default_factory=TextMasker)

    @property
    def word(self) -> str:
        """What a note calls this source."""
        if self.name is None:
            return "the command line"
        return "this file" if self.places else "this variable"

    def origin(self, path: KeyPath) -> str:
        """Return where a key is set, as "FILE:LINE"."""
        place = self.places.get(path)
        return f"{self.name}:{place.key.line}" if place else self.name or COMMAND_LINE

    def written(self, path: KeyPath, value: object) -> str:
        """Return a value as its author wrote it: the first line, cut, without secrets."""
        place = self.places.get(path)
        text = place.text if place and place.text else _as_text(value)
        first = self.masker.mask(text).split("\n", 1)[0]
        return first if len(first) <= _WRITTEN_LIMIT else f"{first[:_WRITTEN_LIMIT]}…"

    def at_key(self, finding: Finding, path: KeyPath) -> Finding:
        """Return the finding with the place of a key."""
        place = self.places.get(path)
        return self._at(finding, place.key if place else None)

    def at_value(self, finding: Finding, path: KeyPath) -> Finding:
        """Return the finding with the place of a value."""
        place = self.places.get(path)
        return self._at(finding, place.value if place else None)

    def _at(self, finding: Finding, span: Span | None) -> Finding:
        if span is None:
            return replace(finding, file=self.name)
        return replace(finding, file=self.name, line=span.line, column=span.column, width=span.width)


def file_source(path: Path) -> Source | Finding:
    """Read a TOML file; a Finding says why it cannot be read or parsed."""
    text = read_text(path)
    if isinstance(text, Finding):
        return text
    try:
        return Source(str(path), tomllib.loads(text), locate(text), TextMasker(text))
    except RecursionError:
        return Finding("E101", "tables or arrays are nested too deeply", "", "", "a configuration", str(path))
    except ValueError as error:  # TOMLDecodeError, and a number with more digits than Python converts
        return _syntax_finding(path, text, str(error))


def read_text(path: Path) -> str | Finding:
    """Return the text of a file; a Finding says why there is none."""
    try:
        if path.exists() and not path.is_file():
            return _unreadable(path, "a directory" if path.is_dir() else "not a regular file")
        with path.open("rb") as file:
            raw = file.read(_FILE_LIMIT_BYTES + 1)
    except OSError as error:
        return _unreadable(path, (error.strerror or str(error)).lower())
    except ValueError:
        return _unreadable(path, "no valid file name")
    if len(raw) > _FILE_LIMIT_BYTES:
        return _unreadable(path, "larger than 1 MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{error.object[error.start]:02x}"
        return Finding(
            "E103", f"the text is not UTF-8: {found} in line {line}", "", found, "UTF-8 text", str(path), line
        )


def _unreadable(path: Path, why: str) -> Finding:
    return Finding("E102", f"the file cannot be read: {why}", "", why, "a readable TOML file", str(path))


def _syntax_finding(path: Path, text: str, error: str) -> Finding:
    """Turn tomllib's message into a finding; "end of document" is the place after the last character."""
    match = _SYNTAX.fullmatch(error)
    lines = text.replace("\r\n", "\n").split("\n")
    if match is None:
        return Finding("E101", f"not valid TOML: {error}", "", "", "valid TOML", str(path))
    if match["line"] is None:
        line, column = len(lines), len(lines[-1]) + 1
    else:
        line, column = int(match["line"]), int(match["column"])
    whole = lines[line - 1] if line <= len(lines) else ""
    masker = TextMasker(text)
    rest = masker.mask(whole)[len(masker.mask(whole[: column - 1])) :]
    word = _BARE_WORD.match(rest) if match["what"] == "Invalid value" else None
    return Finding(
        code="E101",
        message=f"not valid TOML: {match['what'][:1].lower()}{match['what'][1:]}",
        key="",
        found=rest[:_WRITTEN_LIMIT],
        wanted="valid TOML",
        file=str(path),
        line=line,
        column=column,
        hint=f'text needs quotes: "{word[0]}"' if word else "the text makes no sense from here on",
        width=len(word[0]) if word else 1,
    )


def environment_sources(environ: Mapping[str, str]) -> tuple[Source, ...]:
    """Return one source for each variable VLLMD__SECTION__KEY, in the order of their names."""
    return tuple(
        _single(f"environment {name}", name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"), _typed(environ[name]))
        for name in sorted(environ)
        if name.startswith(ENVIRONMENT_PREFIX)
    )


def override_sources(overrides: Mapping[str, object]) -> tuple[Source, ...]:
    """Return one source for each option of the command line, given as {"section.key": value}."""
    return tuple(_single(None, key.split("."), value) for key, value in overrides.items())


def _single(name: str | None, names: list[str], value: object) -> Source:
    """Return a source with one value."""
    return Source(name, _nested(names, value), masker=TextMasker(_as_text(value)))


def _as_text(value: object) -> str:
    """Return a value as text, for where nobody wrote it as TOML."""
    return json.dumps(value, default=str, ensure_ascii=False)


def _nested(names: list[str], value: object) -> dict[str, object]:
    first, *rest = names
    return {first: _nested(rest, value) if rest else value}


def _typed(text: str) -> object:
    """Return the value of a variable: as TOML where it is TOML (3, true, ["a"], "quoted"), else as plain text."""
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = table["value"]
    return value if len(table) == 1 and isinstance(value, bool | int | float | list | dict | str) else text
