"""A way back from what did harm, which was called off: gone when it can be, and only where it may."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from house import ARGV, House, house, settings
from unit.test_loop import RUNTIME_OOM
from unit.test_loop_gate import NO_MEMORY, SLO, last_effect, slipping, taking_back
from vllmd.model.decision import Effect
from vllmd.model.orders import Pause
from vllmd.model.server import Left, ServerState
from vllmd.model.settings import Mode, Settings, Slo
from vllmd.supervisor import as_it_is

TOKENS = "max-num-batched-tokens"


def next_daemon(before: House, chosen: Settings | None = None, argv: tuple[str, ...] = ARGV) -> House:
    """Return the daemon after one that was killed; it takes the server over."""
    built = house(chosen or settings(SLO), argv, ledger=before.ledger)
    built.clock.at_s = before.clock.at_s + 1
    built.server.gateless = None
    assert before.server.living is not None
    built.server.left_behind = Left(before.server.living.generation)
    built.loop.begin()
    built.ready()
    return built


def pause(built: House) -> None:
    """Let the operator keep vllmd from restarting anything."""
    built.loop.pause(Pause(built.clock.now_s(), None, "root"))


def goes_back(built: House) -> bool:
    """Whether the next server, with the flags before, is prepared after another reading."""
    built.tick()
    prepared = built.server.prepared
    return prepared is not None and prepared.flags[TOKENS] == "2048"


def test_what_a_pause_gave_up_is_gone_after_it() -> None:
    """What did harm stays no longer than the operator wants."""
    built = taking_back()
    pause(built)
    assert (built.server.prepared, built.state) == (None, ServerState.SERVING)
    built.loop.resume("root")
    assert goes_back(built)
    built.at_gate()
    built.drained()
    assert built.flags[TOKENS] == "2048"


def test_it_follows_the_restart_that_took_its_place() -> None:
    """One that the operator orders has the flags in force, which did harm."""
    built = taking_back()
    built.loop.restart()
    built.at_gate()
    built.drained()
    built.ready()
    assert built.flags[TOKENS] == "1024"
    assert goes_back(built)


def test_a_crash_that_moved_another_flag_does_not_keep_it() -> None:
    """What the recovery set stays; what did harm goes."""
    built = taking_back()
    built.dies(0, *RUNTIME_OOM)
    built.tick(after_s=60.0)
    built.ready()
    moved = {name: value for name, value in built.flags.items() if value != taking_back().flags.get(name)}
    assert moved
    assert goes_back(built)
    assert built.server.prepared is not None
    assert {name: built.server.prepared.flags[name] for name in moved} == moved


@pytest.mark.parametrize("paused", [False, True])
def test_the_next_vllmd_goes_what_this_one_did_not_live_to_go(*, paused: bool) -> None:
    """It takes the server over that did harm; that the restart was not made is told."""
    before = taking_back()
    if paused:
        pause(before)
    built = next_daemon(before)
    assert last_effect(built).effect is Effect.CALLED_OFF
    built.loop.resume("root")
    assert built.flags[TOKENS] == "1024"
    assert goes_back(built)


def test_a_change_that_was_only_prepared_is_closed_by_the_next_vllmd() -> None:
    """It set nothing, and nothing is to be taken back."""
    built = next_daemon(slipping())
    assert last_effect(built).effect is Effect.CALLED_OFF
    assert [told.change_id for told in built.told[-1].flags if told.name == TOKENS] == [None]
    assert not goes_back(built)


def let_be(built: House) -> None:
    """Let the operator make latency advisory."""
    instance = built.loop.supervisor.instance
    chosen = replace(instance.settings, modes=replace(instance.settings.modes, latency=Mode.ADVISORY))
    built.loop.configure(replace(instance, settings=chosen), (), as_it_is)


def freeze(built: House) -> None:
    """Let the operator freeze the flag."""
    instance = built.loop.supervisor.instance
    guard = replace(instance.settings.guard, frozen=frozenset({TOKENS}))
    built.loop.configure(replace(instance, settings=replace(instance.settings, guard=guard)), (), as_it_is)


def forget(built: House) -> None:
    """Let the operator want all that was tried forgotten."""
    built.loop.forget("root")


@pytest.mark.parametrize("order", [let_be, freeze, forget])
def test_the_operator_has_the_last_word(order: Callable[[House], None]) -> None:
    """Where vllmd may not move the flag any more, or is to forget, it is left where it is."""
    built = taking_back()
    pause(built)
    order(built)
    built.loop.resume("root")
    assert not goes_back(built)
    assert (built.state, built.flags[TOKENS]) == (ServerState.SERVING, "1024")


@pytest.mark.parametrize("anew", [False, True])
def test_flags_that_failed_are_not_gone_back_to_again(*, anew: bool) -> None:
    """Else they would be prepared, and fail, for ever, or with each new vllmd."""
    built = taking_back()
    built.dies_beside(1, NO_MEMORY)
    built = next_daemon(built) if anew else built
    assert not goes_back(built)
    assert built.state == ServerState.SERVING


def test_what_was_taken_back_once_may_be_the_operators_own_wish() -> None:
    """His command has the value now, and the vllmd after that takes nothing of it back."""
    first = taking_back()
    first.at_gate()
    first.drained()
    first.ready()
    first.loop.stop()
    first.drained()
    own = (*ARGV[:-1], f"--{TOKENS}=1024")
    second = house(settings(Slo()), own, ledger=first.ledger)
    second.clock.at_s = first.clock.at_s + 1
    second.loop.begin()
    second.ready()
    assert second.flags[TOKENS] == "1024"
    assert not goes_back(next_daemon(second, settings(Slo()), own))
