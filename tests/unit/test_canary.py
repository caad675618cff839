"""A rest: counted from pages that answer, show no request, and stay as they were."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllmd.decide.canary import Rest, bar, is_due, rested
from vllmd.model.flags import Flags
from vllmd.model.snapshot import Metrics, Snapshot

GAP_S = 20.0
COUNTERS = {"prompt_tokens": 900.0, "generation_tokens": 40.0, "steps": 40.0}


def page(running: float = 0.0, waiting: float = 0.0, awake: float = 1.0, steps: float = 40.0) -> Metrics:
    """Return a page, of an idle server by default."""
    gauges = {"requests_running": running, "requests_waiting": waiting, "kv_cache_usage": 0.0, "awake": awake}
    return Metrics(gauges, {**COUNTERS, "steps": steps})


def after(pages: Sequence[Metrics | None], every_s: float = 5.0) -> Rest:
    """Return the rest after readings of these pages."""
    rest = Rest()
    for number, metrics in enumerate(pages):
        rest = rested(rest, Snapshot(0.0, 1, metrics, None, monotonic_s=1000.0 + number * every_s), GAP_S)
    return rest


def test_a_canary_is_due_when_the_server_has_rested_long_enough() -> None:
    """From the first to the last page without a request, and not before."""
    assert not is_due(after([page()] * 12), 60.0)
    assert is_due(after([page()] * 13), 60.0)


@pytest.mark.parametrize(
    "metrics",
    [
        page(running=1.0),
        page(waiting=1.0),
        page(awake=0.0),
        Metrics({"requests_running": 0.0}, COUNTERS),
        Metrics({"requests_running": 0.0, "requests_waiting": 0.0}, {"steps": 40.0}),
        None,
    ],
    ids=["running", "waiting", "asleep", "no waiting", "no tokens", "no answer"],
)
def test_what_is_no_rest_never_brings_a_canary(metrics: Metrics | None) -> None:
    """With work, asleep, without the metrics that it takes, or without an answer: none is due for ever."""
    assert not is_due(after([metrics] * 1000), 60.0)


@pytest.mark.parametrize("other", [page(steps=41.0), page(running=1.0), None])
def test_anything_that_happens_begins_the_rest_anew(other: Metrics | None) -> None:
    """A request between two readings, one that runs, or a page that was missed."""
    assert not is_due(after([*[page()] * 20, other, *[page()] * 5]), 60.0)


def test_another_launch_begins_anew() -> None:
    """The rest of the last launch says nothing about this one, whose page may read the same."""
    rest = rested(after([page()] * 20), Snapshot(0.0, 2, page(), None, monotonic_s=1100.0), GAP_S)
    assert rest.rest_s == 0.0


def test_a_time_in_which_nobody_looked_is_no_rest() -> None:
    """Host and daemon may have been frozen together."""
    assert after([page(), page()], every_s=600.0).rest_s == 0.0


def test_a_server_that_may_be_put_to_sleep_is_never_asked() -> None:
    """Its weights may leave the device between the page and the canary."""
    assert bar(Flags((("enable-sleep-mode", True),))) is not None
    assert bar(Flags((("enable-sleep-mode", False),))) is None
    assert bar(Flags()) is None


@given(steps=st.lists(st.integers(0, 1), max_size=80))
def test_no_canary_is_due_within_its_time_after_a_movement(steps: list[int]) -> None:
    """However requests come, the last one of them is as long ago as was asked for."""
    total, last_s = 0.0, 0.0
    pages = []
    for number, step in enumerate(steps):
        total += step
        last_s = number * 5.0 if step else last_s
        pages.append(page(steps=total))
    due = is_due(after(pages), 60.0)
    assert due == (bool(pages) and (len(pages) - 1) * 5.0 - last_s >= 60.0)
