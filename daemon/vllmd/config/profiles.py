"""Reads a profile of the policies from its file; every problem is named with its place, like the configuration's own.

A profile is TOML: `order`, the names of the policies in the order in which they are heard, and `[thresholds]`. What it
leaves out is the default profile's.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import vllmd_policies
from vllmd.config import values
from vllmd.config.point import point_at
from vllmd.config.sources import Source, file_source
from vllmd.config.toml_lines import KeyPath
from vllmd.config.values import Reader, WrongValueError
from vllmd.errors import ConfigError, Finding
from vllmd.model.settings import Settings
from vllmd.model.thresholds import Limits, Thresholds
from vllmd_policies.profile import POLICIES, Profile, in_order

FOLDER = Path(vllmd_policies.__file__).with_name("profiles")  # of those that come with vllmd
_SETTING = "policies.profile"
_TABLES = ("order", "thresholds")


def profile_of(settings: Settings) -> Profile:
    """Return the profile that the settings name. ConfigError: as for `load_profile`, with the place of the name."""
    try:
        return load_profile(settings.policies.profile)
    except ConfigError as error:
        named = f"{_SETTING} is set in {settings.origins.get(_SETTING, 'no file')}"
        findings = [
            point_at(finding, settings, _SETTING) if finding.file is None else replace(finding, notes=(named,))
            for finding in error.findings
        ]
        raise ConfigError(findings) from error


def load_profile(name_or_path: str) -> Profile:
    """Return a profile that comes with vllmd, by name, or the one in a file, by absolute path.

    ConfigError when there is none of this name, or its file cannot be read or holds what a profile cannot: unknown or
    repeated policies, unknown thresholds, values of a wrong kind or out of range.
    """
    if not name_or_path.startswith("/"):
        known = sorted(file.stem for file in FOLDER.glob("*.toml"))
        if name_or_path not in known:
            raise ConfigError([_unknown_profile(name_or_path, known)])
    source = file_source(Path(name_or_path) if name_or_path.startswith("/") else FOLDER / f"{name_or_path}.toml")
    if isinstance(source, Finding):
        raise ConfigError([source])
    order, found = _order(source)
    thresholds, wrong = _thresholds(source)
    if findings := [*_unknown_keys(source, source.data, _TABLES, ()), *found, *wrong]:
        raise ConfigError(findings)
    return Profile(policies=in_order(order), thresholds=thresholds)


def _unknown_profile(name: str, known: Sequence[str]) -> Finding:
    wanted = f"an absolute path, or one of {', '.join(known)}"
    hint = _meant(name, known) or f"write {wanted}"
    return Finding("E110", f"there is no profile {name!r}", _SETTING, name, wanted, hint=hint)


def _order(source: Source) -> tuple[tuple[str, ...], list[Finding]]:
    """Return the names of the policies that are heard, all of them where the file does not say."""
    written = source.data.get("order", list(POLICIES))
    if not isinstance(written, list) or not written:
        wrong = WrongValueError("is no list of policies", "an array of names", f"one or more of {', '.join(POLICIES)}")
        return (), [_wrong_value(source, ("order",), written, wrong)]
    findings = []
    for place, name in enumerate(written):
        problem = None
        if not isinstance(name, str) or name not in POLICIES:
            hint = _meant(name, tuple(POLICIES)) if isinstance(name, str) else ""
            problem = WrongValueError("names no policy", f"one of {', '.join(POLICIES)}", hint, code="E111")
        elif name in written[:place]:
            problem = WrongValueError("names a policy twice", "each policy once", code="E112")
        if problem is not None:
            findings.append(_wrong_value(source, ("order", place), name, problem))
    return tuple(written), findings


def _thresholds(source: Source) -> tuple[Thresholds, list[Finding]]:
    """Return the default thresholds with the file's in their place."""
    written = source.data.get("thresholds", {})
    if not isinstance(written, Mapping):
        wrong = WrongValueError("is not a table", "a table of thresholds", "write [thresholds]")
        return Thresholds(), [_wrong_value(source, ("thresholds",), written, wrong)]
    readers = threshold_readers()
    findings = list(_unknown_keys(source, written, tuple(readers), ("thresholds",)))
    read: dict[str, Any] = {}
    for name, value in written.items():
        try:
            if name in readers:
                read[name] = readers[name](value)
        except WrongValueError as wrong:
            findings.append(_wrong_value(source, ("thresholds", name), value, wrong))
    return replace(Thresholds(), **read), findings


def threshold_readers() -> Mapping[str, Reader]:
    """Return how the value of each threshold is read, by its name."""
    hints = get_type_hints(Thresholds, include_extras=True)
    return {name: _reader(*get_args(hint)) for name, hint in hints.items()}


def _reader(kind: object, limits: Limits) -> Reader:
    """Return the reader of a kind of number within its limits."""
    if get_origin(kind) is tuple:
        return partial(_rising, values.whole(int(limits.above) + 1, int(limits.up_to)))
    if limits.size:
        return values.size(int(limits.above) + 1, int(limits.up_to))
    if kind is int:
        return values.whole(int(limits.above) + 1, int(limits.up_to))
    return values.number(limits.above, limits.up_to)


def _rising(read: Reader, value: object) -> object:
    """Read an array of numbers, each larger than the one before it."""
    if not isinstance(value, list) or not value:
        raise WrongValueError("is not an array", "an array of rising whole numbers")
    numbers = tuple(read(number) for number in value)
    if list(numbers) != sorted(set(value)):
        raise WrongValueError("does not rise", "an array of rising whole numbers")
    return numbers


def _unknown_keys(
    source: Source, table: Mapping[str, object], known: Sequence[str], section: KeyPath
) -> Iterator[Finding]:
    for name in table:
        if name not in known:
            key = ".".join((*map(str, section), name))
            what = "threshold" if section else "key"
            finding = Finding(
                "E201", f"unknown {what} `{name}`", key, name, f"one of {', '.join(known)}", hint=_meant(name, known)
            )
            yield source.at_key(finding, (*section, name))


def _wrong_value(source: Source, path: KeyPath, value: object, wrong: WrongValueError) -> Finding:
    name = str(path[-1]) if len(path) > 1 and isinstance(path[-1], str) else str(path[0])
    finding = Finding(
        code=wrong.code,
        message=f"{name} {wrong.problem}",
        key=".".join(str(part) for part in path if isinstance(part, str)),
        found=source.written(path, value),
        wanted=wrong.wanted,
        hint=wrong.hint,
    )
    return source.at_value(finding, path)


def _meant(name: str, known: Sequence[str]) -> str:
    """Return the nearest known name as advice; nothing where none is near."""
    near = difflib.get_close_matches(name, known, 1)
    return f'did you mean "{near[0]}"?' if near else ""
