"""Reads fields of a status document that may come from another version or a damaged file: total, and escaped."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from vllmd.model.plain import plain

Fields = Mapping[str, Any]

_TEXT_LIMIT = 600


def text(fields: Fields, key: str, unknown: str = "-") -> str:
    """Return a field as one line of harmless text."""
    value = fields.get(key)
    return unknown if value is None or value == "" else plain(str(value), _TEXT_LIMIT)


def number(fields: Fields, key: str) -> float | None:
    """Return a field as a finite number; None for anything else."""
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def whole(fields: Fields, key: str) -> str:
    """Return a field as a whole number, "?" if it is none."""
    value = number(fields, key)
    return "?" if value is None else str(int(value))


def part(fields: Fields, key: str) -> Fields:
    """Return a field that is an object; an empty one for anything else."""
    value = fields.get(key)
    return value if isinstance(value, dict) else {}


def parts(fields: Fields, key: str) -> list[Fields]:
    """Return a field that is a list of objects, without what is not one."""
    value = fields.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def texts(fields: Fields, key: str) -> list[str]:
    """Return a field that is a list, as harmless texts."""
    value = fields.get(key)
    return [plain(str(item), _TEXT_LIMIT) for item in value] if isinstance(value, list) else []


def when(fields: Fields, key: str) -> datetime | None:
    """Return a field that is a time; None for anything else."""
    value = fields.get(key)
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def age_s(fields: Fields, key: str, now: datetime | None) -> float | None:
    """Return the seconds between a time of the document and `now`."""
    at = when(fields, key)
    return None if at is None or now is None else (now - at).total_seconds()
