"""Durations and sizes, as operators write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllmd.config.buckets import EDGES_S
from vllmd.config.durations import parse_duration, parse_size, show_duration, show_size


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("500ms", 0.5),
        ("75ms", 0.075),
        ("0.5s", 0.5),
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("1h30m", 5400),
        ("1d2h3m4s5ms", 93784.005),
        (0.8, 0.8),
        (30, 30),
        (-1, -1),
    ],
)
def test_durations_are_read_in_seconds(written: object, seconds: float) -> None:
    """Every unit counts, units add up, and a bare number is seconds."""
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written",
    [
        *("", "1sec", "30", "s", "-5s", "1 s", "5M", "1.s", ".5s", "30m1h", "1h1h", "٣s", "1e3s", "\n5s", "5s\n"),
        *("9" * 400 + "d", True, None, [], {}, float("inf"), float("nan"), 10**400),
    ],
)
def test_what_is_no_duration_is_not_guessed(written: object) -> None:
    """Unknown units, bare numbers in quotes, wrong order, booleans and infinities are refused."""
    assert parse_duration(written) is None


@pytest.mark.parametrize("edge", sorted({edge for edges in EDGES_S.values() for edge in edges}))
def test_a_bucket_edge_survives_being_written_in_milliseconds(edge: float) -> None:
    """A limit written in ms equals the histogram's edge to the last bit, so that no rounding moves it off the edge."""
    assert parse_duration(f"{round(edge * 1000)}ms") == edge


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.075, "75ms"), (1, "1s"), (90, "90s"), (300, "5m"), (5400, "90m"), (86400, "1d"), (0, "0s")],
)
def test_durations_are_shown_as_they_are_written(seconds: float, shown: str) -> None:
    """The largest unit that fits evenly is used."""
    assert show_duration(seconds) == shown


@given(st.integers(min_value=1, max_value=10**7))
def test_a_shown_duration_reads_back(milliseconds: int) -> None:
    """What is shown can be written into the configuration again and means nearly the same."""
    seconds = milliseconds / 1000
    assert parse_duration(show_duration(seconds)) == pytest.approx(seconds, rel=1e-5)


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [
        ("256MiB", 256 * 2**20),
        ("2GiB", 2**31),
        ("1GB", 10**9),
        ("1.5 KiB", 1536),
        ("1TiB", 2**40),
        ("3kB", None),
        ("100B", 100),
        (1024, 1024),
        ("12", None),
        ("MiB", None),
        ("9" * 400 + "TiB", None),
        (True, None),
        (1.5, None),
        (None, None),
    ],
)
def test_sizes_are_read_in_bytes(written: object, size_bytes: int | None) -> None:
    """Binary and decimal units are told apart; a text without a unit is refused."""
    assert parse_size(written) == size_bytes


@given(st.integers(min_value=0, max_value=2**50))
def test_a_shown_size_reads_back(size_bytes: int) -> None:
    """What is shown can be written into the configuration again and means the same."""
    assert parse_size(show_size(size_bytes)) == size_bytes
