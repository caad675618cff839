"""Reads the numbers of a log line, named by the groups of its pattern, and writes them for people."""

import re
from collections.abc import Mapping

MIB = 2**20
GIB = 2**30
# No longer than what anybody prints, so that nothing computed from it overflows.
NUMBER = r"-?\d{1,12}(?:\.\d{1,6})?"
SIZE = r"\d{1,12}(?:\.\d{1,6})? (?:bytes|[KMGT]iB)"  # as torch writes sizes: "448.00 MiB"
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": MIB, "GiB": GIB, "TiB": 2**40}
_LARGEST = 1e24  # a trillion TiB; more is no number of a computer
_PLAIN = frozenset(
    {"utilization", "dummy_requests", "seqs", "concurrency", "heads", "ranks", "devices", "shards", "shards_done"}
)  # ratios and counts


def read_groups(found: re.Match[str]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the numbers and the words that a match names.

    The end of a group's name says what it is: `free_gib` and `tried_size` become free_bytes and tried_bytes,
    `fitting_tokens` stays a number, everything else is a word.
    """
    numbers: dict[str, float] = {}
    words: dict[str, str] = {}
    for name, text in found.groupdict().items():
        if text is None:
            continue
        stem, _, unit = name.rpartition("_")
        if unit == "gib":
            _put(numbers, f"{stem}_bytes", text, GIB)
        elif unit == "size":
            amount, _, unit = text.partition(" ")
            _put(numbers, f"{stem}_bytes", amount, _UNITS[unit])
        elif unit in {"tokens", "s"} or name in _PLAIN:
            _put(numbers, name, text, 1)
        else:
            words[name] = text
    return numbers, words


def show_bytes(size: float) -> str:
    """Return a size as an operator reads it: "2.88 GiB", "448 MiB"."""
    return f"{size / MIB:.0f} MiB" if 0 < abs(size) < GIB else f"{round(size / GIB, 2)} GiB"


def show_numbers(numbers: Mapping[str, float]) -> dict[str, str]:
    """Return every number as text; `free_bytes` becomes `free`, which then holds its unit."""
    return {name.removesuffix("_bytes"): _show(name, value) for name, value in numbers.items()}


def _show(name: str, value: float) -> str:
    return show_bytes(value) if name.endswith("_bytes") else f"{value:.10g}"


def _put(numbers: dict[str, float], name: str, text: str, factor: int) -> None:
    """Add a number if it is one that can be computed with."""
    value = float(text) * factor
    if abs(value) <= _LARGEST:
        numbers[name] = value
