"""Somebody sets the clock: nothing is judged across that moment, and what was long ago stays as long ago."""

import pytest

from fakes import Traffic
from house import House
from unit.test_loop import begun, changes, effects, serve
from vllmd.model.decision import Action, Effect, Hold, HoldReason
from vllmd.model.server import ServerState
from vllmd.model.settings import Budget


def set_clock(built: House, by_s: float) -> None:
    """Set the time of day, as the daemon notices it."""
    built.clock.set_by_s += by_s
    built.loop.clock_was_set(by_s)


@pytest.mark.parametrize("by_s", [-86400.0, -3600.0, -30.0, 30.0, 3600.0, 86400.0])
def test_a_soak_begins_anew_and_comes_to_its_end(by_s: float) -> None:
    """A change is verified by what is seen after that moment, neither at once nor never."""
    built = begun()
    serve(built, share_slow=0.05, seconds=200)
    built.drained()
    built.ready()
    serve(built, share_slow=0.002, seconds=30)
    set_clock(built, by_s)
    serve(built, share_slow=0.002, seconds=50)
    assert effects(built) == []
    serve(built, share_slow=0.002, seconds=100)
    assert effects(built) == [Effect.BETTER]


@pytest.mark.parametrize("by_s", [-86400.0, -30.0, 3600.0])
def test_a_slip_is_judged_by_readings_of_one_clock(by_s: float) -> None:
    """Two windows must agree, both of them after that moment."""
    built = begun()
    traffic = Traffic(built.clock, share_slow=0.05)
    serve(built, 0.05, 100, traffic)
    set_clock(built, by_s)
    serve(built, 0.05, 100, traffic)
    assert changes(built) == []
    serve(built, 0.05, 100, traffic)
    assert [change.action for change in changes(built)] == [Action.RESTART]


@pytest.mark.parametrize("by_s", [-86400.0, 86400.0])
def test_the_budget_and_the_breaker_count_what_was_just_now(by_s: float) -> None:
    """A clock that is set gives no restart back, and forgets no crash."""
    built = begun(budget=Budget(restarts_per_hour=1, soak_s=60.0))
    serve(built, share_slow=0.05, seconds=200)
    built.drained()
    built.ready()
    serve(built, share_slow=0.002, seconds=200)
    set_clock(built, by_s)
    serve(built, share_slow=0.05, seconds=400)
    last = built.told[-1].last_decision
    assert isinstance(last, Hold)
    assert last.reason is HoldReason.BUDGET
    for _ in range(4):
        built.dies(1, "nothing that says why")
        built.tick(after_s=30)
        built.ready()
    set_clock(built, by_s)
    built.dies(1, "nothing that says why")
    assert built.state == ServerState.HELD
