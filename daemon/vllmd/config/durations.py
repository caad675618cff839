"""Durations and sizes as operators write them: "500ms", "1h30m", "256MiB"."""

import itertools
import math
import re

_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", re.ASCII)
_DURATION = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]i?)?B", re.ASCII)
_ORDER = ("d", "h", "m", "s", "ms")


def parse_duration(value: object) -> float | None:
    """Return seconds of a number or of a text like "500ms", "30s", "1h30m"; None for anything else.

    Units: ms, s, m, h, d, each once at most, the larger first.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return _finite(value)
    if not isinstance(value, str) or not _DURATION.fullmatch(value):
        return None
    parts = _PART.findall(value)
    places = [_ORDER.index(unit) for _, unit in parts]
    if any(later <= earlier for earlier, later in itertools.pairwise(places)):
        return None
    return _finite(sum(_seconds(float(number), unit) for number, unit in parts))


def _seconds(number: float, unit: str) -> float:
    """Return the seconds of one part. Division keeps "75ms" equal to the bucket edge 0.075, to the last bit."""
    return number / 1000 if unit == "ms" else number * _UNITS_S[unit]


def show_duration(seconds: float) -> str:
    """Return a duration as it is written in the configuration, in the one unit that reads best: "1.5h", "75ms"."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    unit = next((u for u, size in _UNITS_S.items() if seconds >= size and seconds % size == 0), "s")
    return f"{seconds / _UNITS_S[unit]:g}{unit}"


def parse_size(value: object) -> int | None:
    """Return bytes of a whole number or of a text like "256MiB", "1GB"; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    number, prefix = match.groups()
    base = 1024 if prefix and prefix.endswith("i") else 1000
    size = _finite(float(number) * base ** " KMGT".index((prefix or " ")[0]))
    return None if size is None else round(size)


def show_size(size_bytes: int) -> str:
    """Return a size as it is written in the configuration, in the largest binary unit that fits evenly: "256MiB"."""
    for power, prefix in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if size_bytes and size_bytes % 1024**power == 0:
            return f"{size_bytes // 1024**power}{prefix}B"
    return f"{size_bytes}B"


def _finite(number: float) -> float | None:
    """Return the number as a float; None for infinity, NaN and what no float can hold."""
    try:
        return float(number) if math.isfinite(number) else None
    except OverflowError:
        return None
