"""The times of a start's phases: seen as they begin, kept for their fingerprint, and what they let expect."""

from house import house, settings
from vllmd.decide.start_times import begun, expected, expected_s, reached
from vllmd.model.server import Phase, ServerState
from vllmd.model.settings import Slo
from vllmd.model.start_times import Started

START = ((Phase.CONFIG, 21.0), (Phase.LOADING, 5.0), (Phase.PROFILING, 9.0), (Phase.CAPTURE, 8.0), (Phase.WARMUP, 16.0))


def test_a_phase_takes_until_the_next_one_is_seen() -> None:
    """The whole is their sum, whatever was seen between."""
    times, now_s = begun(100.0), 100.0
    for number, (phase, seconds) in enumerate(START):
        now_s += seconds
        following = START[number + 1][0] if number + 1 < len(START) else Phase.SERVING
        times = reached(reached(times, phase, now_s - 1.0), following, now_s)
    assert dict(times.took_s) == dict(START)
    assert times.elapsed_s(now_s) == sum(seconds for _, seconds in START)


def test_a_phase_that_was_not_seen_has_no_time_of_its_own() -> None:
    """Two of them began between two looks: what they took is the earlier one's."""
    times = reached(reached(begun(0.0), Phase.LOADING, 20.0), Phase.WARMUP, 31.0)
    assert dict(times.took_s) == {Phase.CONFIG: 20.0, Phase.LOADING: 11.0}


def test_one_slow_start_among_three_expects_nothing() -> None:
    """A cold compile cache, once."""
    starts = [{Phase.CONFIG: 20.0, Phase.PROFILING: seconds} for seconds in (9.0, 75.0, 11.0)]
    assert expected(starts) == {Phase.CONFIG: 20.0, Phase.PROFILING: 11.0}
    assert expected_s(starts) == 31.0
    assert (expected([]), expected_s([])) == ({}, None)


def test_the_next_start_says_how_long_it_takes() -> None:
    """After one that served: how long it has been under way, and how long it takes in all; also in another daemon."""
    first = house(settings(Slo()))
    first.loop.begin()
    first.clock.at_s += 31
    first.loop.look()
    assert first.told[-1].message == "starting (first): reading its configuration"
    first.ready()
    assert [dict(e.took_s) for _, e in first.ledger.entries if isinstance(e, Started)] == [{Phase.CONFIG: 31.0}]
    first.loop.restart()
    first.drained()
    first.clock.at_s += 12
    first.loop.look()
    assert first.told[-1].message == "starting (admin): reading its configuration, 12 s of about 31 s"

    second = house(settings(Slo()), ledger=first.ledger)
    second.loop.begin()
    second.loop.look()
    assert second.told[-1].message == "starting (first): reading its configuration, 0 s of about 31 s"
    assert second.told[-1].start_times.expected_by_phase_s == {Phase.CONFIG: 31.0}


def test_a_start_that_fails_lets_expect_nothing() -> None:
    """It took as long as it took to fail."""
    built = house(settings(Slo()))
    built.loop.begin()
    built.clock.at_s += 5
    built.dies(1, "Killed")
    assert not [e for _, e in built.ledger.entries if isinstance(e, Started)]
    assert built.loop.supervisor.start.progress.expected_s is None
    assert built.state != ServerState.SERVING
