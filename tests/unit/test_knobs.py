"""Live values that the operator sets: refused in plain words, or in force until their end; and what they keep quiet."""

import pytest

from fakes import FakeLive, MemoryLedger, Traffic
from house import House, house, settings
from unit.test_loop import SLO, begun, effects, serve
from vllmd.errors import ControlError
from vllmd.model.decision import Change, Effect
from vllmd.model.flags import BATCHED_TOKENS, MAX_NUM_SEQS
from vllmd.model.live import Live
from vllmd.model.orders import Pause, SetLive
from vllmd.model.server import Left
from vllmd.model.settings import Slo
from vllmd.operator import live_commands
from vllmd.report.control import Peer

ROOT = Peer(1, 0, 0)


def serving(ledger: MemoryLedger | None = None) -> House:
    """Return a house whose server serves and offers 2048 tokens and 64 sequences."""
    built = house(settings(Slo()), ledger=ledger)
    built.server.live.offer(max_num_batched_tokens=2048, max_num_seqs=64)
    built.loop.begin()
    built.ready()
    return built


def set_live(built: House, flag: str, value: object, for_s: object = None) -> dict[str, object]:
    """Ask for a value as the command line does."""
    commands = live_commands(built.loop, built.clock, lambda: built.told[-1])
    return dict(commands["set"].answer({"flag": flag, "value": value, "for_s": for_s}, ROOT))


def changes(built: House) -> list[Change]:
    """Return the changes on record."""
    return [entry for _, entry in built.ledger.entries if isinstance(entry, Change)]


def test_a_value_is_set_told_and_recorded() -> None:
    """The engine is asked, the status says by whom and until when, history has it, and no server is restarted."""
    built = serving()
    answer = set_live(built, BATCHED_TOKENS, 256, 600)
    assert built.server.live.asked == {BATCHED_TOKENS: 256}
    status = built.told[-1].live
    assert status is not None
    (order,) = status.orders
    assert (order.value, order.by, order.until_s) == (256, "root", built.clock.now_s() + 600)
    (change,) = changes(built)
    assert change.id == answer["id"]
    moved = change.flags_after.differences(change.flags_before)
    assert moved == {BATCHED_TOKENS: ("2048", "256")}
    assert len(built.server.launches) == 1
    assert built.flags[BATCHED_TOKENS] == "2048"


def test_its_time_over_it_is_what_was_launched_again() -> None:
    """By itself, on record, and only after its time."""
    built = serving()
    set_live(built, BATCHED_TOKENS, 256, 60)
    built.tick(after_s=59)
    assert built.server.live.asked == {BATCHED_TOKENS: 256}
    built.tick(after_s=1)
    assert built.server.live.asked == {BATCHED_TOKENS: None}
    assert [c.flags_after[BATCHED_TOKENS] for c in changes(built)] == ["256", "2048"]
    assert built.told[-1].live is not None
    assert built.told[-1].live.orders == ()
    built.tick()
    assert len(changes(built)) == 2


def test_the_operator_ends_it_himself() -> None:
    """Null is what was launched; a second end is refused."""
    built = serving()
    set_live(built, MAX_NUM_SEQS, 4)
    set_live(built, MAX_NUM_SEQS, None)
    assert built.server.live.asked == {MAX_NUM_SEQS: None}
    with pytest.raises(ControlError, match="nothing was set"):
        set_live(built, MAX_NUM_SEQS, None)


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("max-model-len", 1, "only --max-num-batched-tokens and --max-num-seqs"),
        (BATCHED_TOKENS, 4096, "1 to 2048"),
        (BATCHED_TOKENS, 0, "1 to 2048"),
        (BATCHED_TOKENS, "256", "whole number"),
        (BATCHED_TOKENS, True, "whole number"),
        (7, 1, "a flag's name"),
    ],
)
def test_what_cannot_be_set_is_refused_with_the_reason(flag: str, value: object, said: str) -> None:
    """Another flag, more than was launched, no number: nothing is asked of the engine."""
    built = serving()
    with pytest.raises(ControlError, match=said):
        set_live(built, flag, value)
    assert built.server.live.asked == {}
    assert changes(built) == []


def test_what_the_server_does_not_offer_is_refused_with_its_reason() -> None:
    """A server without the shim, and one that does not serve yet."""
    built = house(settings(Slo()))
    built.loop.begin()
    with pytest.raises(ControlError, match="starting"):
        set_live(built, BATCHED_TOKENS, 256)
    built.ready()
    with pytest.raises(ControlError, match="has not loaded vllmd_shim"):
        set_live(built, BATCHED_TOKENS, 256)


def test_a_length_that_is_none_is_refused() -> None:
    """As for a pause."""
    built = serving()
    with pytest.raises(ControlError, match="for_s"):
        set_live(built, BATCHED_TOKENS, 256, "10m")


def test_a_restart_begins_with_what_was_launched() -> None:
    """The order ends with its generation, and does not come back at its end."""
    built = serving()
    set_live(built, BATCHED_TOKENS, 256, 600)
    built.dies(1)
    built.tick(after_s=60)
    built.server.live = FakeLive()
    built.server.live.offer(max_num_batched_tokens=2048, max_num_seqs=64)
    built.ready()
    built.tick()
    assert built.server.live.asked == {}
    assert built.told[-1].live is not None
    assert built.told[-1].live.orders == ()
    recorded = len(changes(built))
    built.tick(after_s=600)
    assert len(changes(built)) == recorded


def taken_over(before: House, generation: int = 1) -> House:
    """Return the next daemon, which takes the server of the one before over."""
    built = house(settings(Slo()), ledger=before.ledger)
    built.clock.at_s, built.clock.set_by_s = before.clock.at_s, before.clock.set_by_s
    built.server.left_behind = Left(generation)
    built.server.live = before.server.live
    built.loop.begin()
    built.ready()
    return built


def test_the_next_daemon_knows_what_is_set_and_ends_it_in_time() -> None:
    """It is in the ledger, with its generation."""
    built = serving()
    set_live(built, BATCHED_TOKENS, 256, 600)
    later = taken_over(built)
    later.tick()
    assert later.told[-1].live is not None
    assert [order.value for order in later.told[-1].live.orders] == [256]
    later.tick(after_s=600)
    assert later.server.live.asked == {BATCHED_TOKENS: None}


def test_what_nobody_knows_to_have_asked_for_is_taken_back() -> None:
    """A ledger that lost the order must not leave a server throttled for ever."""
    built = serving()
    set_live(built, BATCHED_TOKENS, 256)
    built.ledger.entries[:] = [(t, e) for t, e in built.ledger.entries if not isinstance(e, SetLive)]
    later = taken_over(built)
    later.tick()
    assert later.server.live.asked == {BATCHED_TOKENS: None}


GONE = Live.nothing("its block is lost")


@pytest.mark.parametrize("by_operator", [True, False])
def test_what_cannot_be_reached_any_more_is_dropped_with_the_reason(*, by_operator: bool) -> None:
    """By the operator's word or by itself, once; no value that nobody has seen in force is on record."""
    built = serving()
    set_live(built, MAX_NUM_SEQS, 4)
    built.server.live.offered = GONE
    if by_operator:
        set_live(built, MAX_NUM_SEQS, None)
    for _ in range(2):
        built.tick()
    _, end = changes(built)
    assert end.proposal.reason == "cannot be reached any more: its block is lost"
    assert end.flags_before == end.flags_after
    assert end.flags_after[MAX_NUM_SEQS] == "4"
    assert built.told[-1].live is not None
    assert built.told[-1].live.orders == ()
    assert built.server.live.asked == {MAX_NUM_SEQS: None}
    for value in (None, 8):
        with pytest.raises(ControlError, match="without a restart: its block is lost"):
            set_live(built, MAX_NUM_SEQS, value)


def test_an_order_ends_with_its_server() -> None:
    """Its time is over while none runs: nothing is recorded of it, for nothing moves."""
    built = serving()
    set_live(built, MAX_NUM_SEQS, 4, 60)
    built.loop.pause(Pause(built.clock.now_s(), None, "root"))
    built.dies(1)
    built.server.live.offered = GONE
    built.tick(after_s=60)
    built.tick()
    assert len(changes(built)) == 1


def test_a_new_server_is_not_taken_for_the_one_before() -> None:
    """Before the first reading of it, nothing is told to be set, nothing can be ended, and what is set then stays."""
    built = serving()
    set_live(built, MAX_NUM_SEQS, 4)
    built.loop.restart()
    built.server.live = FakeLive()
    built.server.live.offer(max_num_batched_tokens=2048, max_num_seqs=64)
    built.drained()
    built.ready()
    assert built.told[-1].live is not None
    assert built.told[-1].live.orders == ()
    assert built.loop.knobs.hold(100.0) is None
    with pytest.raises(ControlError, match="nothing was set"):
        set_live(built, MAX_NUM_SEQS, None)
    set_live(built, MAX_NUM_SEQS, 8)
    built.tick()
    assert built.server.live.asked == {MAX_NUM_SEQS: 8}


def test_the_launched_value_itself_is_the_end() -> None:
    """As a number it means the same as `launched`: no order stands after it, and there is none to end then."""
    built = serving()
    set_live(built, MAX_NUM_SEQS, 4)
    set_live(built, MAX_NUM_SEQS, 64, 600)
    assert built.server.live.asked == {MAX_NUM_SEQS: None}
    assert built.told[-1].live is not None
    assert built.told[-1].live.orders == ()
    with pytest.raises(ControlError, match="nothing was set"):
        set_live(built, MAX_NUM_SEQS, 64)


@pytest.mark.parametrize("by_s", [-86400.0, 86400.0])
def test_an_order_is_as_long_as_it_was_to_be_though_the_clock_is_set(by_s: float) -> None:
    """Also before that is noticed; its end is told, and known to the next daemon, by the new time."""
    built = serving()
    set_live(built, MAX_NUM_SEQS, 4, 60)
    built.clock.set_by_s += by_s
    built.tick(after_s=20)
    built.loop.clock_was_set(by_s)
    built.tick(after_s=20)
    assert built.told[-1].live is not None
    (order,) = built.told[-1].live.orders
    assert order.until_s == built.clock.now_s() + 20
    later = taken_over(built)
    later.tick(after_s=19)
    assert built.server.live.asked == {MAX_NUM_SEQS: 4}
    later.tick(after_s=1)
    assert built.server.live.asked == {MAX_NUM_SEQS: None}


def test_nothing_is_tuned_by_readings_of_another_value() -> None:
    """While a value is set, and until a whole window of readings is of the launched one, tuning holds."""
    built = serving()
    knobs = built.loop.knobs
    assert knobs.hold(100.0) is None
    set_live(built, BATCHED_TOKENS, 256, 600)
    hold = knobs.hold(100.0)
    assert hold is not None
    assert (hold.reason, hold.until_s) == ("live_set", built.clock.now_s() + 600)
    set_live(built, BATCHED_TOKENS, None)
    assert knobs.hold(100.0) is not None
    built.tick(after_s=100)
    assert knobs.hold(100.0) is None


@pytest.mark.parametrize("paused", [True, False])
def test_a_change_under_verification_is_judged_without_what_was_set(*, paused: bool) -> None:
    """Its soak begins anew when the hold is over: what another value brought says nothing of it."""
    built = begun()
    serve(built, share_slow=0.05, seconds=200)
    built.drained()
    built.server.live.offer(max_num_batched_tokens=1024, max_num_seqs=64)
    built.ready()
    traffic = Traffic(built.clock, share_slow=0.002)
    serve(built, 0.002, 30, traffic)
    set_live(built, MAX_NUM_SEQS, 4, 60)
    if paused:
        built.loop.pause(Pause(built.clock.now_s(), built.clock.now_s() + 30, "root"))
    held_s = 60 + 2.2 * SLO.judge_window_s
    serve(built, 0.002, held_s + 50, traffic)
    assert effects(built) == []
    serve(built, 0.002, 100, traffic)
    assert effects(built) == [Effect.BETTER]


def test_setting_a_value_does_not_close_the_crash_breaker() -> None:
    """Only a restart that the operator asks for lets the crashes before it no longer count."""
    built = serving()
    built.dies(1)
    built.tick(after_s=60)
    built.ready()
    before = built.told[-1].budget.crashes
    set_live(built, BATCHED_TOKENS, 256)
    later = taken_over(built, generation=2)
    assert before == 1
    assert later.told[-1].budget.crashes == 1
