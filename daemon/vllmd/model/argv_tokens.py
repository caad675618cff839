"""The operator's tokens brought into plain argparse form, the way vLLM's own parser does it before it parses.

The steps and their order: FlexibleArgumentParser.parse_args of vLLM 0.9.2 to 0.33 (utils/argparse_utils.py).
"""

import json
import re
from collections.abc import Sequence

from vllmd.model.options import Dialect

_SUFFIXED = re.compile(r"(\d+)(\.\d+)?([kKmMgGtT])")
_FACTORS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_NAME = re.compile(r"--[^.=]*")
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")  # what argparse takes for a value although it begins with a dash
_LEVELS = frozenset("0123")

Json = dict[str, object]


def dashed(part: str) -> str:
    """Return an option with the underscores of its name turned into dashes; dotted keys and values do not change."""
    if not part.startswith("--"):
        return part
    return _NAME.sub(lambda name: name[0].replace("_", "-"), part, count=1)


def is_value(part: str) -> bool:
    """Whether argparse takes a part that is no known option for a value."""
    return not part.startswith("-") or part == "-" or bool(_NEGATIVE_NUMBER.fullmatch(part)) or " " in part


def canonical_json(text: str) -> str:
    """Return a JSON object or list in one form (sorted keys, no blanks); any other text as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return dump_json(value) if isinstance(value, (dict, list)) else text


def dump_json(value: object) -> str:
    """Return a value as JSON in its one form."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def plain_tokens(tokens: Sequence[str], dialect: Dialect, *, declares_o: bool) -> list[str]:
    """Return the tokens with dashed names, `-O3` written out, and all dotted options gathered at the end as JSON.

    Dotted options replace a JSON text of the same option, as they do in vLLM: they come last and the last one counts.
    `declares_o` says whether `-O` is an option string of this installation.
    """
    spelled: list[str] = []
    for place, part in enumerate(tokens):
        following = tokens[place + 1] if place + 1 < len(tokens) else ""
        spelled += _spelled(part, following, dialect, declares_o=declares_o)
    return _gathered(spelled, dialect)


def _spelled(part: str, following: str, dialect: Dialect, *, declares_o: bool) -> list[str]:
    """Write one part out: `-O3`, `-O=3` and `-O 3` become the option that they stand for in this version."""
    bare = part == "-O" and following in _LEVELS
    attached = part.startswith("-O") and part != "-O"
    if not (bare or attached):
        return [dashed(part)]
    level = part[2:].removeprefix("=")
    if dialect.level_key is not None:
        key = f"-O.{dialect.level_key}"
        if bare:
            return [key]
        return [part] if part.startswith("-O.") else [f"{key}={level}"]
    if declares_o:
        return [part]
    return ["--optimization-level"] if bare else ["--optimization-level", level]


def _gathered(tokens: Sequence[str], dialect: Dialect) -> list[str]:
    """Take the dotted options out and put each name back at the end with one JSON object."""
    kept: list[str] = []
    objects: dict[str, Json] = {}
    rest = iter(tokens)
    for part in rest:
        path, equals, text = part.partition("=")
        if not path.startswith("-") or "." not in path or _NEGATIVE_NUMBER.fullmatch(path) or " " in path:
            kept.append(part)
            continue
        value = text if equals else next(rest, None)
        if value is None:
            kept.append(part)  # a dotted option without a value: reported as unknown
            continue
        name, *keys = path.removesuffix("+").split(".")
        leaf = list(value.split(",")) if path.endswith("+") else _dotted_value(value, dialect)
        _merge(objects.setdefault(name, {}), _nested(keys, leaf))
    return kept + [part for name, value in objects.items() for part in (name, dump_json(value))]


def _dotted_value(text: str, dialect: Dialect) -> object:
    """Return the value of a dotted option: JSON, else a number with vLLM's suffixes, else the text itself."""
    try:
        value: object = json.loads(text)
    except ValueError:
        number = _suffixed(text) if dialect.suffixed_json else None
        return text if number is None else number
    return value


def _suffixed(text: str) -> int | None:
    """Return a whole number as vLLM's human_readable_int reads it (`80g`, `25.6k`, `007`), None for anything else."""
    number = _SUFFIXED.fullmatch(text.strip())
    if number is None:
        return int(text) if text.strip().isdecimal() else None
    whole, decimals, suffix = number.groups()
    if decimals and suffix.isupper():
        return None  # binary suffixes take no decimals
    return int(float(whole + (decimals or "")) * _FACTORS[suffix])


def _nested(keys: Sequence[str], leaf: object) -> Json:
    """Return {a: {b: leaf}} for the keys a, b."""
    first, *rest = keys
    return {first: _nested(rest, leaf) if rest else leaf}


def _merge(into: Json, update: Json) -> None:
    """Merge objects key by key: objects merge, lists add up, anything else is replaced."""
    for key, value in update.items():
        old = into.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            _merge(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            into[key] = [*old, *value]
        else:
            into[key] = value
