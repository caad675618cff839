"""Canaries through the loop: when one is wanted, and what follows when it does not come back."""

from dataclasses import replace

import pytest

from house import ARGV, House, house, settings
from vllmd.model.canary import CanaryOrder, CanaryReply, CanaryResult
from vllmd.model.decision import Hold, HoldReason
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.orders import Pause
from vllmd.model.server import ServerState
from vllmd.model.settings import Engine, Slo
from vllmd.model.snapshot import Metrics, Snapshot

COUNTERS = {"prompt_tokens": 900.0, "generation_tokens": 40.0, "steps": 40.0}
IDLE = Metrics({"requests_running": 0.0, "requests_waiting": 0.0}, COUNTERS)
ASLEEP = replace(IDLE, gauges={**IDLE.gauges, "awake": 0.0})


def begun(canary_s: float | None = 60.0, argv: tuple[str, ...] = ARGV) -> House:
    """Return a house whose first launch serves."""
    built = house(replace(settings(Slo()), engine=Engine(canary_s=canary_s)), argv)
    built.loop.begin()
    built.clock.at_s += 30
    built.ready()
    return built


def rest(built: House, seconds: float, metrics: Metrics | None = IDLE, *, paused: bool | None = None) -> None:
    """Hand in pages that all say the same, one every 5 s."""
    for _ in range(int(seconds / 5)):
        built.clock.at_s += 5
        now_s, monotonic_s = built.clock.now_s(), built.clock.monotonic_s()
        built.tick(Snapshot(now_s, 0, metrics, None, monotonic_s=monotonic_s, paused=paused), after_s=0.0)


def order(built: House) -> CanaryOrder | None:
    """Return the canary that is to be under way."""
    return built.loop.stall.canary.order


def comes_back(built: House, result: CanaryResult = CanaryResult.ANSWERED, reason: str = "") -> None:
    """Let the canary under way come to its end."""
    under_way = order(built)
    assert under_way is not None
    built.loop.stall.canary.answered(CanaryReply(under_way.number, result, reason))


def failures(built: House) -> list[Failure]:
    """Return the recorded failures."""
    return [e for _, e in built.ledger.entries if isinstance(e, Failure)]


def test_a_server_that_rests_is_sent_a_canary_and_again_after_as_long() -> None:
    """After 60 s of rest, and not before; the next one when it has rested for as long since the answer."""
    built = begun()
    rest(built, 60)
    assert order(built) is None
    rest(built, 5)
    assert order(built) == CanaryOrder(1, 1, 240.0)
    comes_back(built)
    assert order(built) is None
    rest(built, 60)
    assert order(built) is None
    rest(built, 5)
    assert order(built) == CanaryOrder(2, 1, 240.0)
    built.tick()
    assert built.told[-1].canaries == {"answered": 1}


def test_without_the_key_there_is_none() -> None:
    """Off is the default: an hour of rest brings no request."""
    assert Engine().canary_s is None
    built = begun(canary_s=None)
    rest(built, 3600)
    assert order(built) is None


def test_a_canary_that_does_not_come_back_is_a_hang() -> None:
    """Found after the limit from its sending; the same flags again, as after every first hang."""
    built = begun()
    rest(built, 65 + 120)
    assert built.server.hung is None
    rest(built, 5)
    assert built.server.hung is not None
    assert built.server.hung.reason == "no token for a canary and no step for 125 s, while it was idle"
    assert order(built) is None
    flags = built.flags
    built.hung()
    (failure,) = failures(built)
    assert failure.kind is FailureClass.HANG
    assert (built.state, built.flags) == (ServerState.STARTING, flags)
    assert built.told[-1].canaries == {"silent": 1}


def test_a_second_hang_that_a_canary_finds_tries_eager_mode() -> None:
    """Whoever noticed it, a hang is a hang."""
    built = begun()
    for _ in range(2):
        rest(built, 190)
        built.hung()
        built.clock.at_s += 600
        built.loop.look()
        built.ready()
    assert built.flags["enforce-eager"] is True


def test_an_engine_that_moves_is_waited_for() -> None:
    """A canary in a queue behind others: as long as tokens come, nothing hangs."""
    built = begun()
    rest(built, 65)
    for step in range(60):
        busy = {"requests_running": 4.0, "requests_waiting": 1.0}
        rest(built, 5, Metrics(busy, {**COUNTERS, "steps": 41.0 + step}))
    assert built.server.hung is None
    assert order(built) is not None


@pytest.mark.parametrize("metrics", [ASLEEP, None], ids=["asleep", "no page"])
def test_a_server_of_which_nothing_is_known_does_not_hang(metrics: Metrics | None) -> None:
    """A canary under way is no proof while the server sleeps or shows no page."""
    built = begun()
    rest(built, 65)
    rest(built, 600, metrics)
    assert built.server.hung is None


def test_a_server_that_somebody_paused_is_let_go() -> None:
    """Its own /pause keeps the canary waiting on purpose: it is given up, and a paused server is sent none."""
    built = begun()
    rest(built, 65 + 65)
    assert built.loop.stall.suspects
    rest(built, 600, paused=True)
    assert built.server.hung is None
    assert order(built) is None


def test_a_paused_vllmd_sends_none() -> None:
    """Also with --keep-recovery; when the pause ends, the rest that is there counts."""
    built = begun()
    built.loop.pause(Pause(built.clock.now_s(), None, "anna", "driver", keeps_recovery=True))
    rest(built, 600)
    assert order(built) is None
    built.loop.resume("anna")
    rest(built, 5)
    assert order(built) is not None


def test_a_hang_that_a_canary_shows_in_a_pause_is_only_told() -> None:
    """Hands off holds here, too."""
    built = begun()
    rest(built, 65)
    built.loop.pause(Pause(built.clock.now_s(), None, "anna", "driver"))
    rest(built, 150)
    assert built.server.hung is None
    last = built.told[-1].last_decision
    assert isinstance(last, Hold)
    assert last.reason is HoldReason.HANGS


def test_a_refused_canary_is_the_last_one_of_its_launch() -> None:
    """A model that generates nothing, or a key that is not known: no hang, and no second try before the next launch."""
    built = begun()
    rest(built, 65)
    comes_back(built, CanaryResult.REFUSED, "/v1/models answered 401")
    rest(built, 3600)
    assert order(built) is None
    assert built.server.hung is None
    built.dies(-9, "Killed")
    built.clock.at_s += 600
    built.loop.look()
    built.ready()
    rest(built, 65)
    assert order(built) is not None


def test_a_lost_canary_is_no_hang_and_another_one_follows() -> None:
    """A connection that broke says nothing about the engine."""
    built = begun()
    rest(built, 65)
    comes_back(built, CanaryResult.LOST, "ReadError")
    rest(built, 65)
    assert built.server.hung is None
    assert order(built) is not None


def test_a_server_that_is_left_is_let_go() -> None:
    """While it drains no canary is wanted, so that none is in the way of its end."""
    built = begun()
    rest(built, 65)
    built.loop.stop()
    assert order(built) is None


def test_an_answer_to_an_earlier_canary_says_nothing() -> None:
    """It was given up: the one under way is waited for."""
    built = begun()
    rest(built, 65)
    built.loop.stall.canary.answered(CanaryReply(0, CanaryResult.REFUSED, "late"))
    assert order(built) is not None


def test_a_server_that_may_be_put_to_sleep_is_sent_none() -> None:
    """Asking an engine whose weights are gone could end it."""
    built = begun(argv=(*ARGV, "--enable-sleep-mode"))
    rest(built, 600)
    assert order(built) is None
