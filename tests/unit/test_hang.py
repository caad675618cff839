"""A standstill: counted from pages that answer and show work, and from nothing else."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllmd.decide.hang import Silence, heard, limit_s
from vllmd.model.snapshot import Metrics, Snapshot
from vllmd.observe.scrape import parse_page

GAP_S = 20.0
STALL_S = 120.0
COUNTERS = {"prompt_tokens": 900.0, "generation_tokens": 40.0, "steps": 40.0, "requests_finished": 3.0}
SLEEPING_PAGE = """
vllm:num_requests_running{engine="0"} 2.0
vllm:num_requests_running{engine="1"} 2.0
vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="1",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="1",sleep_state="weights_offloaded"} 1.0
"""


def page(running: float = 4.0, waiting: float = 0.0, kv: float = 0.2, awake: float = 1.0, **moved: float) -> Metrics:
    """Return a page; `moved` is added to the counters."""
    gauges = {"requests_running": running, "requests_waiting": waiting, "kv_cache_usage": kv, "awake": awake}
    return Metrics(gauges, {name: value + moved.get(name, 0.0) for name, value in COUNTERS.items()})


def after(pages: Sequence[Metrics | None], every_s: float = 5.0, generation: int = 1) -> Silence:
    """Return the silence after readings of these pages."""
    silence = Silence()
    for number, metrics in enumerate(pages):
        snapshot = Snapshot(0.0, generation, metrics, None, monotonic_s=1000.0 + number * every_s)
        silence = heard(silence, snapshot, GAP_S)
    return silence


def test_work_without_any_movement_is_a_silence() -> None:
    """From the first to the last page that say the same."""
    silence = after([page()] * 31)
    assert silence.silent_s == 150.0
    assert silence.running == 4.0
    assert silence.silent_s > limit_s(silence, STALL_S)


def test_a_canary_is_work_that_no_page_shows() -> None:
    """A stopped engine does not count it: what stands still while one is under way is a silence."""
    silence = Silence()
    for number, asked in enumerate((False, True, True, True, False)):
        snapshot = Snapshot(0.0, 1, page(running=0.0), None, monotonic_s=5.0 * number)
        silence = heard(silence, snapshot, GAP_S, asked=asked)
        assert silence.silent_s == (0.0, 0.0, 5.0, 10.0, 0.0)[number]


def test_work_that_only_waits_counts() -> None:
    """An engine that takes nothing from its queue stands still, too."""
    assert after([page(running=0.0, waiting=3.0)] * 31).silent_s == 150.0


@pytest.mark.parametrize(
    "metrics",
    [
        page(running=0.0),
        page(awake=0.0),
        Metrics({"requests_running": 4.0}, {n: v for n, v in COUNTERS.items() if n != "steps"}),
        Metrics({"requests_running": 4.0}, {n: v for n, v in COUNTERS.items() if n != "generation_tokens"}),
        Metrics({"requests_waiting": 4.0}, COUNTERS),
        None,
    ],
    ids=["idle", "asleep", "no iterations", "no tokens", "no running", "no answer"],
)
def test_what_is_no_standstill_never_becomes_one(metrics: Metrics | None) -> None:
    """Idle, asleep, without the metrics that it takes, or without an answer: nothing is known for ever."""
    assert after([metrics] * 1000).silent_s == 0.0


def test_work_that_comes_after_a_long_idle_time_begins_at_zero() -> None:
    """An hour without a request says nothing about the request that came now."""
    assert after([*[page(running=0.0)] * 720, page(), page()]).silent_s == 5.0


def test_a_page_that_does_not_answer_begins_anew() -> None:
    """Only an unbroken row of pages counts, first and last one included."""
    assert after([*[page()] * 20, None, *[page()] * 3]).silent_s == 10.0
    assert after([*[page()] * 20, None]).silent_s == 0.0


def test_a_chunked_prefill_is_seen_by_its_cache() -> None:
    """The KV cache grows with each chunk, though no token is counted before the prompt is through."""
    assert after([page(kv=0.001 * step) for step in range(500)]).silent_s == 0.0


def test_an_honest_silence_that_ended_raises_the_limit() -> None:
    """After 100 s that ended by themselves, 120 s are no hang: three times as long may be."""
    later = page(generation_tokens=1.0)
    silence = after([*[page()] * 21, *[later] * 30])
    assert silence.longest_s == 100.0
    assert silence.silent_s == 145.0
    assert limit_s(silence, STALL_S) == 300.0


def test_an_honest_silence_is_remembered_although_a_page_was_missed() -> None:
    """It is no proof of a hang, which needs every page, but the next one may be as long."""
    silence = after([*[page()] * 10, None, *[page()] * 10, page(steps=1.0)])
    assert (silence.silent_s, silence.longest_s) == (0.0, 100.0)
    long_unseen = after([*[page()] * 10, *[None] * 6, *[page()] * 10, page(steps=1.0)])
    assert long_unseen.longest_s == 45.0


def test_a_silence_that_ends_with_the_last_request_is_remembered() -> None:
    """A prefill whose answer is one token leaves an idle server behind."""
    assert after([*[page()] * 21, page(running=0.0, prompt_tokens=9000.0)]).longest_s == 100.0


def test_steady_traffic_raises_no_limit() -> None:
    """Pages that all differ show no silence, however far apart they are."""
    assert after([page(steps=float(n)) for n in range(100)], every_s=15.0).longest_s == 0.0


def test_another_generation_begins_anew() -> None:
    """Nothing of the last launch counts, neither its silence nor its limit."""
    before = after([*[page()] * 21, *[page(steps=1.0)] * 5])
    silence = heard(before, Snapshot(0.0, 2, page(steps=1.0), None, monotonic_s=1130.0), GAP_S)
    assert (silence.silent_s, silence.longest_s) == (0.0, 0.0)


def test_a_clock_that_is_set_changes_nothing() -> None:
    """Only the monotonic time counts: a day forward is no silence, a day back ends none."""
    silence = Silence()
    for number, at_s in enumerate((1e9, 1e9 + 86400, 1e9 - 86400)):
        silence = heard(silence, Snapshot(at_s, 1, page(), None, monotonic_s=5.0 * number), GAP_S)
    assert silence.silent_s == 10.0


def test_a_time_in_which_nobody_looked_is_no_silence() -> None:
    """Host and daemon may have been frozen together."""
    silence = heard(after([page()] * 3), Snapshot(0.0, 1, page(), None, monotonic_s=5000.0), GAP_S)
    assert silence.silent_s == 0.0


def test_a_reading_without_a_time_says_nothing() -> None:
    """Without the monotonic time no span can be told."""
    assert heard(after([page()] * 3), Snapshot(5000.0, 1, page(), None), GAP_S).silent_s == 0.0


@given(
    moves=st.lists(st.sampled_from(sorted(COUNTERS)), min_size=2, max_size=60),
    every_s=st.floats(0.05, 60.0),
    running=st.floats(0.0, 500.0),
)
def test_no_alarm_while_any_counter_moves(moves: list[str], every_s: float, running: float) -> None:
    """One counter, whichever, that moves from page to page is life, at any load and interval."""
    totals = dict.fromkeys(COUNTERS, 0.0)
    pages = []
    for name in moves:
        totals[name] += 1.0
        pages.append(page(running=running, **totals))
    silence = after(pages, every_s)
    assert silence.silent_s == 0.0
    assert limit_s(silence, STALL_S) == STALL_S


def test_a_paused_server_is_no_hang() -> None:
    """Requests that somebody keeps waiting on purpose are no standstill, and raise no limit for a real one."""
    before = after([page()] * 21)
    paused = Snapshot(0.0, 1, page(), None, monotonic_s=1105.0, paused=True)
    silence = heard(before, paused, GAP_S)
    assert (silence.silent_s, silence.longest_s) == (0.0, 0.0)
    assert heard(before, replace(paused, paused=False), GAP_S).silent_s == 105.0


def test_a_compiler_at_work_explains_a_silence_for_no_longer_than_a_start_may_last() -> None:
    """A request that is the first of its kind waits for its kernel; one that is never built is a hang all the same."""
    silence, seen = Silence(), []
    for number in range(200):
        snapshot = Snapshot(0.0, 1, page(), None, monotonic_s=5.0 * number, compiling=number > 10)
        silence = heard(silence, snapshot, GAP_S, build_limit_s=600.0)
        seen.append(silence.silent_s)
    assert seen[10:12] == [50.0, 0.0]  # the compiler comes after 55 s
    assert set(seen[11:132]) == {0.0}  # and explains 600 s
    assert seen[-1] == 5.0 * (199 - 132)
    assert silence.longest_s == 0.0


def test_a_silence_begins_anew_when_a_kernel_is_built() -> None:
    """What moved in between ends the explanation, and the next compiler has all its time."""
    at = [page(), page(), page(steps=1.0), page(steps=1.0)]
    silence = Silence()
    for number, metrics in enumerate(at):
        snapshot = Snapshot(0.0, 1, metrics, None, monotonic_s=400.0 * number, compiling=number != 2)
        silence = heard(silence, snapshot, 500.0, build_limit_s=600.0)
        assert silence.silent_s == 0.0
    assert silence.built_from_s == 1200.0


def test_one_sleeping_engine_is_no_server_that_is_awake() -> None:
    """Its requests rest, so that nothing moves for them."""
    metrics = parse_page(SLEEPING_PAGE)
    assert metrics is not None
    assert metrics.gauges["awake"] == 0.0
