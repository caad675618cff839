"""The loop: a latency decision that the running server takes at once costs nothing, and is judged like every other."""

from dataclasses import replace

import pytest

from fakes import FakeLive, MemoryLedger, Traffic
from house import ARGV, CATALOGUE, House, house, settings
from unit.test_knobs import changes, set_live
from unit.test_loop import SLO, effects, serve
from vllmd.model.argv import parse_command
from vllmd.model.decision import (
    Action,
    Change,
    Hold,
    HoldReason,
    Outcome,
)
from vllmd.model.flags import BATCHED_TOKENS
from vllmd.model.live import Live
from vllmd.model.orders import Pause
from vllmd.model.server import Left, ServerState
from vllmd.model.settings import Bounds, Budget, Guard, Mode, Modes
from vllmd.supervisor import as_it_is
from vllmd_policies import BUILT_IN


def begun(
    latency: Mode = Mode.ACTIVE, budget: Budget | None = None, ledger: MemoryLedger | None = None, tokens: int = 2048
) -> House:
    """Return a house whose server serves, and takes tokens and sequences live."""
    built = house(settings(SLO, latency, budget), ledger=ledger)
    built.server.live.offer(max_num_batched_tokens=tokens, max_num_seqs=64)
    built.loop.begin()
    built.ready()
    return built


def next_server(built: House, tokens: int = 2048) -> None:
    """Let another server come to serve, whose block is a new one."""
    built.server.live = FakeLive()
    built.server.live.offer(max_num_batched_tokens=tokens, max_num_seqs=64)
    built.ready()


def next_daemon(before: House, *, server_lives: bool = True, latency: Mode = Mode.ACTIVE) -> House:
    """Return the daemon after one that was killed; it takes the server over, or launches one."""
    built = house(settings(SLO, latency), ledger=before.ledger)
    built.clock.at_s = before.clock.at_s + 1
    if server_lives:
        assert before.server.living is not None
        built.server.left_behind = Left(before.server.living.generation)
        built.server.live = before.server.live
    else:
        built.server.live.offer(max_num_batched_tokens=2048, max_num_seqs=64)
    built.loop.begin()
    built.ready()
    return built


def asked(built: House) -> int | None:
    """Return the tokens that the engine is asked for; None is what was launched."""
    return built.server.live.offered.knobs[BATCHED_TOKENS].asked


def last_hold(built: House) -> HoldReason | None:
    """Return why nothing is done now."""
    last = built.told[-1].last_decision
    return last.reason if isinstance(last, Hold) else None


def moved(change: Change) -> dict[str, tuple[object, object]]:
    """Return what a change moves."""
    return dict(change.flags_after.differences(change.flags_before))


def slip(built: House, tokens: int) -> None:
    """Let the target slip until so many tokens are asked for."""
    traffic, began_s = Traffic(built.clock, share_slow=0.05), built.clock.at_s
    while asked(built) != tokens:
        serve(built, 0.05, 5, traffic)
        assert built.clock.at_s - began_s < 400


def mended(ledger: MemoryLedger | None = None) -> House:
    """Return a house in which a slip was mended live, and verified."""
    built = begun(ledger=ledger)
    slip(built, 1024)
    serve(built, share_slow=0.002, seconds=65)
    assert effects(built) == ["better"]
    return built


def test_a_slip_is_mended_in_the_running_server_and_verified() -> None:
    """One live change, the same server, no restart counted, and what it brought."""
    built = mended()
    assert len(built.server.launches) == 1
    assert built.state == ServerState.SERVING
    (change,) = changes(built)
    assert (change.action, moved(change)) == (Action.LIVE, {BATCHED_TOKENS: ("2048", "1024")})
    assert built.told[-1].budget.restarts_hour == 0
    (outcome,) = [e for _, e in built.ledger.entries if isinstance(e, Outcome)]
    assert (outcome.generation, outcome.served, outcome.outage_s) == (1, True, 0.0)
    live = built.told[-1].live
    assert live is not None
    assert [(order.flag, order.value, order.by) for order in live.orders] == [(BATCHED_TOKENS, 1024, change.id)]
    assert built.flags[BATCHED_TOKENS] == "2048"


def test_the_next_step_begins_at_what_is_in_force() -> None:
    """2048 to 1024 to 512, all in one server, whatever the restart budget says; each on readings of its own value."""
    built = begun(budget=Budget(restarts_per_hour=0, soak_s=60.0))
    for _ in range(3):
        serve(built, share_slow=0.05, seconds=125)
        serve(built, share_slow=0.02, seconds=70)
    first, second, *_ = changes(built)
    assert moved(first) == {BATCHED_TOKENS: ("2048", "1024")}
    assert moved(second) == {BATCHED_TOKENS: ("1024", "512")}
    assert second.at_s - first.at_s >= 60 + 2 * 0.9 * SLO.judge_window_s
    assert len(built.server.launches) == 1


def test_what_did_harm_is_taken_back_live_and_not_tried_again() -> None:
    """The launched value again in the same server; the value is barred, also for the next daemon."""
    built = begun()
    slip(built, 1024)
    serve(built, share_slow=0.2, seconds=65)
    assert asked(built) is None
    change, back = changes(built)
    assert (back.action, back.proposal.policy, moved(back)) == (
        Action.LIVE,
        "rollback",
        {BATCHED_TOKENS: ("1024", "2048")},
    )
    assert change.id in back.proposal.reason
    assert effects(built) == ["worse", "serving"]
    for daemon in (built, next_daemon(built)):
        serve(daemon, share_slow=0.05, seconds=300)
        assert last_hold(daemon) is HoldReason.ALREADY_TRIED
    assert len(built.server.launches) == 1


def test_a_second_step_that_did_harm_goes_back_to_the_first() -> None:
    """What was in force before it, not what was launched."""
    built = mended()
    slip(built, 512)
    serve(built, share_slow=0.2, seconds=65)
    assert asked(built) == 1024


def test_where_the_flag_is_not_live_the_restart_is_as_before() -> None:
    """The running generation is asked, and only it."""
    built = begun()
    built.server.live.offered = Live.nothing("the server has not loaded vllmd_shim")
    serve(built, share_slow=0.05, seconds=125)
    assert built.state == ServerState.DRAINING
    assert [change.action for change in changes(built)] == [Action.RESTART]
    assert built.flags[BATCHED_TOKENS] == "1024"
    assert built.told[-1].budget.restarts_hour == 1


def test_advice_says_that_it_would_cost_nothing() -> None:
    """And of a server that cannot do it, it does not."""
    for offers in (True, False):
        built = begun(Mode.ADVISORY)
        if not offers:
            built.server.live.offered = Live.nothing("the server has not loaded vllmd_shim")
        serve(built, share_slow=0.05, seconds=400)
        (advice,) = changes(built)
        assert (advice.action, moved(advice)) == (Action.ADVISE, {BATCHED_TOKENS: ("2048", "1024")})
        assert ("would cost nothing" in advice.proposal.reason) is offers
        assert built.server.live.asked == {}


def test_the_next_launch_keeps_its_capacity_and_gets_the_value_again() -> None:
    """After a crash: launched as before, and governed once it serves, without a new decision."""
    built = mended()
    built.dies(0, "nothing that says why")
    next_server(built)
    assert [launch.flags[BATCHED_TOKENS] for launch in built.server.launches] == ["2048", "2048"]
    assert asked(built) == 1024
    assert [c.action for c in changes(built)] == [Action.LIVE, Action.RETRY]
    built.tick()
    serve(built, share_slow=0.05, seconds=125)
    assert moved(changes(built)[-1]) == {BATCHED_TOKENS: ("1024", "512")}


def test_a_launch_with_no_more_than_the_value_needs_nothing() -> None:
    """A recovery may have lowered what is launched below what was decided."""
    built = mended()
    built.dies(0, "nothing that says why")
    next_server(built, tokens=768)
    assert asked(built) is None
    assert len(changes(built)) == 2


def test_a_launch_to_which_it_cannot_be_said_again_loses_it_with_a_word() -> None:
    """And then a slip is mended by a restart, as without the shim."""
    built = mended()
    built.dies(0, "nothing that says why")
    built.server.live.offered = Live.nothing("engine.shim is off")
    built.ready()
    lost = changes(built)[-1]
    assert lost.action is Action.LIVE
    assert "engine.shim is off" in lost.proposal.reason
    assert moved(lost) == {}
    serve(built, share_slow=0.05, seconds=300)
    assert moved(changes(built)[-1]) == {BATCHED_TOKENS: ("2048", "1024")}
    assert changes(built)[-1].action is Action.RESTART


@pytest.mark.parametrize("server_lives", [True, False])
def test_the_next_daemon_knows_what_is_in_force(*, server_lives: bool) -> None:
    """It is asked for once; with the server gone as well, the first launch gets it again."""
    built = mended()
    later = next_daemon(built, server_lives=server_lives)
    later.tick()
    assert asked(later) == 1024
    assert later.server.live.asked == {BATCHED_TOKENS: 1024}
    assert len(changes(later)) == 1
    assert effects(later) == ["better"]
    serve(later, share_slow=0.05, seconds=200)
    assert moved(changes(later)[-1]) == {BATCHED_TOKENS: ("1024", "512")}


def test_a_soak_that_vllmd_did_not_live_to_see_is_unknown() -> None:
    """The server that was taken over keeps the value, and no other change is made on top of it."""
    built = begun()
    slip(built, 1024)
    later = next_daemon(built)
    assert effects(later) == ["unknown"]
    serve(later, share_slow=0.05, seconds=300)
    assert asked(later) == 1024
    assert last_hold(later) is HoldReason.COOLDOWN
    assert len(changes(later)) == 1


def test_a_new_server_of_a_new_daemon_does_not_get_what_was_not_verified() -> None:
    """It begins with what was known to be good, and that is on record."""
    built = mended()
    slip(built, 512)
    later = next_daemon(built, server_lives=False)
    assert asked(later) == 1024
    assert effects(later) == ["better", "unknown", "serving"]
    assert moved(changes(later)[-1]) == {BATCHED_TOKENS: ("512", "1024")}


def test_harm_that_vllmd_did_not_come_to_take_back_is_taken_back_by_the_next() -> None:
    """Killed between the verdict and the order: the verdict is on record, and the value still in force."""
    built = begun()
    slip(built, 1024)
    serve(built, share_slow=0.2, seconds=65)
    worse = next(i for i, (_, e) in enumerate(built.ledger.entries) if getattr(e, "effect", None) == "worse")
    del built.ledger.entries[worse + 1 :]
    built.server.live.ask(BATCHED_TOKENS, 1024)
    later = next_daemon(built)
    assert asked(later) is None
    assert moved(changes(later)[-1]) == {BATCHED_TOKENS: ("1024", "2048")}


def test_the_operators_value_wins_and_is_not_taken_back() -> None:
    """While it stands nothing is decided; at its end the decided value is in force again, and soaks anew."""
    built = begun()
    slip(built, 1024)
    traffic = Traffic(built.clock, share_slow=0.2)
    set_live(built, BATCHED_TOKENS, 1536, 60)
    serve(built, 0.2, 55, traffic)
    assert asked(built) == 1536
    assert effects(built) == []
    serve(built, 0.2, 10, traffic)
    assert asked(built) == 1024
    assert [moved(change)[BATCHED_TOKENS] for change in changes(built)] == [
        ("2048", "1024"),
        ("1024", "1536"),
        ("1536", "1024"),
    ]
    assert "what was decided" in changes(built)[-1].proposal.reason


@pytest.mark.parametrize("value", [None, 2048])
def test_the_operator_ends_what_was_decided(value: int | None) -> None:
    """A trial of it is given up, and the value is not decided again until he says so."""
    built = begun()
    slip(built, 1024)
    set_live(built, BATCHED_TOKENS, value)
    assert asked(built) is None
    serve(built, share_slow=0.05, seconds=400)
    assert effects(built) == ["unknown"]
    assert last_hold(built) is HoldReason.ALREADY_TRIED
    assert asked(built) is None
    built.loop.forget("root")
    slip(built, 1024)


def test_a_pause_keeps_what_is_set_and_sets_nothing() -> None:
    """Neither a step nor its taking back; a launch in it is governed as before."""
    built = begun()
    slip(built, 1024)
    built.loop.pause(Pause(built.clock.now_s(), None, "root"))
    serve(built, share_slow=0.2, seconds=200)
    assert (asked(built), effects(built)) == (1024, [])
    built.loop.restart()
    built.drained()
    next_server(built)
    assert asked(built) == 1024


def test_a_clock_that_is_set_lets_it_soak_anew() -> None:
    """Spans across that moment mean nothing."""
    built = begun()
    slip(built, 1024)
    serve(built, share_slow=0.2, seconds=50)
    built.clock.set_by_s += 86400
    built.loop.clock_was_set(86400)
    traffic = Traffic(built.clock, share_slow=0.002)
    serve(built, 0.002, 50, traffic)
    assert effects(built) == []
    serve(built, 0.002, 15, traffic)
    assert effects(built) == ["better"]


def reload(built: House, guard: Guard | None = None, modes: Modes | None = None, *argv: str) -> None:
    """Let the operator narrow a guard, change a mode or write another command, and reload."""
    instance = built.loop.supervisor.instance
    chosen = replace(instance.settings, guard=guard or instance.settings.guard, modes=modes or instance.settings.modes)
    command = parse_command(argv, 2, CATALOGUE) if argv else instance.command
    built.loop.configure(replace(instance, settings=chosen, command=command), BUILT_IN, as_it_is)


def test_a_guard_that_becomes_narrower_brings_the_value_back_into_it() -> None:
    """At once and live; a trial of the value is given up."""
    built = begun()
    slip(built, 1024)
    reload(built, Guard({BATCHED_TOKENS: Bounds(1536, None)}))
    built.tick()
    assert asked(built) == 1536
    assert moved(changes(built)[-1]) == {BATCHED_TOKENS: ("1024", "1536")}
    assert effects(built) == ["unknown"]
    reload(built, Guard({BATCHED_TOKENS: Bounds(4096, None)}))
    built.tick()
    assert asked(built) is None
    recorded = len(changes(built))
    built.tick()
    assert len(changes(built)) == recorded


@pytest.mark.parametrize("frozen", [True, False])
def test_what_is_to_be_left_alone_stays_until_the_next_launch(*, frozen: bool) -> None:
    """A frozen flag, and a mode that is active no more: the running server is not touched, the next gets nothing."""
    built = mended()
    if frozen:
        reload(built, Guard({BATCHED_TOKENS: Bounds(256, None)}, frozenset({BATCHED_TOKENS})))
    else:
        reload(built, None, Modes(Mode.ACTIVE, Mode.ADVISORY))
    built.tick()
    assert asked(built) == 1024
    built.dies(0, "nothing that says why")
    next_server(built)
    assert asked(built) is None
    assert ("left alone" if frozen else "advisory") in changes(built)[-1].proposal.reason


def test_another_command_of_the_operators_ends_it() -> None:
    """What he has written otherwise counts as written."""
    built = mended()
    reload(built, None, None, *ARGV[:-1], "--max-num-batched-tokens=4096")
    built.loop.restart()
    built.drained()
    next_server(built, tokens=4096)
    assert asked(built) is None
    assert built.flags[BATCHED_TOKENS] == "4096"
    assert "another value" in changes(built)[-1].proposal.reason


def test_another_vllm_begins_without_it() -> None:
    """What was found for one installation says little about another; the policies find it again at no cost."""
    built = mended()
    instance = built.loop.supervisor.instance
    upgraded = replace(instance, catalogue=replace(instance.catalogue, version="0.34.0"))
    built.loop.configure(upgraded, BUILT_IN, as_it_is)
    built.loop.restart()
    built.drained()
    next_server(built)
    assert asked(built) is None
    assert "vLLM are others" in changes(built)[-1].proposal.reason


def test_what_is_forgotten_stays_in_force_and_is_not_of_the_next_daemons_launch() -> None:
    """As with flags that were moved by a restart."""
    built = mended()
    built.clock.at_s += 1
    built.loop.forget("root")
    built.tick()
    assert asked(built) == 1024
    assert asked(next_daemon(built)) == 1024
    assert asked(next_daemon(built, server_lives=False)) is None
