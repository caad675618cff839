"""A restart whose next server is prepared beside the serving one: its steps, and each way back from them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fakes import Traffic
from house import House, house, settings
from vllmd.model.decision import Change, Effect, Outcome, Target, Verification
from vllmd.model.failure import Failure
from vllmd.model.orders import Pause
from vllmd.model.server import Left, ServerState
from vllmd.model.settings import Slo
from vllmd.supervisor import as_it_is

SLO = Slo((Target("itl_p99", "itl", 0.99, 0.05),), judge_window_s=60.0, min_requests=200)
REFUSED = "ValueError: max_num_batched_tokens (1024) must be greater than or equal to max_num_seqs (2048)."
PORT_TAKEN = "OSError: [Errno 98] Address already in use"
NO_MEMORY = "(EngineCore pid=7) ERROR 11-29 17:00:00 [core.py:1] ValueError: No available memory for the cache blocks."


def slipping() -> House:
    """Return a house whose server slips, and whose next one, with fewer batched tokens, is prepared beside it."""
    built = house(settings(SLO))
    built.server.gateless = None
    built.loop.begin()
    built.clock.at_s += 30
    built.ready()
    traffic = Traffic(built.clock, share_slow=0.05)
    while built.server.prepared is None:
        built.tick(traffic.read(0))
        assert built.clock.at_s < 1_000_300, "no restart was decided"
    return built


def taking_back() -> House:
    """Return a house whose change did harm, and whose next server, with the flags before it, is prepared beside it."""
    built = slipping()
    built.at_gate()
    built.drained()
    built.ready()
    traffic = Traffic(built.clock, share_slow=0.5)
    while built.server.prepared is None:
        built.tick(traffic.read(0))
        assert built.clock.at_s < 1_001_000, "nothing was taken back"
    assert built.server.prepared.flags["max-num-batched-tokens"] == "2048"
    return built


def ordered() -> House:
    """Return a house whose operator asked for a restart."""
    built = house(settings(Slo()))
    built.server.gateless = None
    built.loop.begin()
    built.clock.at_s += 30
    built.ready()
    built.loop.restart()
    return built


def last_effect(built: House) -> Verification:
    """Return the last verification."""
    return [e for _, e in built.ledger.entries if isinstance(e, Verification)][-1]


def of_kind(built: House, kind: type) -> list[object]:
    """Return the recorded entries of one kind."""
    return [e for _, e in built.ledger.entries if isinstance(e, kind)]


def test_the_server_serves_while_the_next_one_is_prepared() -> None:
    """It is not drained, nothing else is decided, and the status says how long that has taken."""
    built = slipping()
    assert not built.server.stopping
    assert (built.state, built.flags["max-num-batched-tokens"]) == (ServerState.SERVING, "2048")
    built.tick(after_s=12.0)
    assert built.told[-1].message == "serving; the next start is prepared beside it (D1), 12 s"
    assert built.told[-1].generation == 1
    assert len(of_kind(built, Change)) == 1


def test_from_its_gate_it_takes_the_servers_place() -> None:
    """Prepared, at the gate, drained, launched as the same generation, verified as any other."""
    built = slipping()
    prepared = built.server.prepared
    assert prepared is not None
    built.clock.at_s += 40
    built.at_gate()
    assert (built.state, built.server.waiting) == (ServerState.DRAINING, True)
    built.clock.at_s += 1
    built.drained()
    assert built.server.living == prepared
    assert (built.state, built.flags["max-num-batched-tokens"]) == (ServerState.STARTING, "1024")
    built.clock.at_s += 2
    built.ready()
    record = built.told[-1].decisions[-1]
    assert record.outcome is not None
    assert (record.outcome.served, record.outcome.outage_s, record.outcome.generation) == (True, 3.0, 2)
    assert built.told[-1].message == "serving"


def test_one_that_ends_before_its_gate_leaves_the_server_alone() -> None:
    """It is diagnosed by its own log, remembered as failed and not tried again; nothing was restarted."""
    built = slipping()
    built.dies_beside(1, REFUSED)
    assert (built.state, built.flags["max-num-batched-tokens"]) == (ServerState.SERVING, "2048")
    assert not built.server.stopping
    (failure,) = of_kind(built, Failure)
    (outcome,) = of_kind(built, Outcome)
    assert isinstance(failure, Failure)
    assert isinstance(outcome, Outcome)
    assert (failure.generation, outcome.served, outcome.generation) == (2, False, 2)
    assert last_effect(built).effect is Effect.FAILED
    assert "D1 failed beside it" in built.told[-1].message
    traffic = Traffic(built.clock, share_slow=0.05)
    for _ in range(60):
        built.tick(traffic.read(0))
    assert (len(built.server.launches), built.server.prepared) == (1, None)


def test_one_that_misses_its_gate_is_started_when_the_server_has_ended() -> None:
    """The change goes on without the gate, as another generation, and the status says why."""
    built = slipping()
    built.misses_gate("it was not at its gate within engine.park_timeout (300 s)")
    assert (built.state, built.server.waiting) == (ServerState.DRAINING, True)
    assert "park_timeout" in built.told[-1].message
    built.drained()
    assert built.server.living is not None
    assert (built.server.living.generation, built.flags["max-num-batched-tokens"]) == (3, "1024")
    built.ready()
    assert built.told[-1].decisions[-1].outcome is not None


def test_one_that_cannot_share_the_port_is_started_when_the_server_has_ended() -> None:
    """No fault of its flags: the change goes on without the gate."""
    built = slipping()
    built.dies_beside(1, PORT_TAKEN)
    assert (built.state, built.server.waiting) == (ServerState.DRAINING, True)
    assert "failed beside this one" in built.told[-1].message
    assert of_kind(built, Failure) == []


def test_one_that_cannot_share_the_parked_port_gets_it_and_is_started_again() -> None:
    """The port is parked no longer, and nobody is asked to free it."""
    built = ordered()
    built.at_gate()
    built.drained()
    assert built.server.parked
    built.dies(1, PORT_TAKEN)
    assert not built.server.parked
    assert built.state in {ServerState.BACKOFF, ServerState.STARTING}
    built.tick(after_s=60.0)
    assert (built.state, len(built.server.launches)) == (ServerState.STARTING, 3)


def test_without_a_gate_the_server_is_drained_at_once_and_that_is_told() -> None:
    """As ever, with the reason in the message."""
    built = house(settings(Slo()))
    built.server.gateless = "memory is short"
    built.loop.begin()
    built.ready()
    built.loop.restart()
    assert built.state == ServerState.DRAINING
    assert "memory is short" in built.told[-1].message


def test_a_start_is_not_restarted_beside_itself() -> None:
    """A server that does not serve yet is stopped first."""
    built = house(settings(Slo()))
    built.server.gateless = None
    built.loop.begin()
    built.loop.restart()
    assert (built.state, built.server.prepared) == (ServerState.DRAINING, None)


def test_a_stop_ends_both() -> None:
    """The server is drained, what is beside it goes, and nothing follows."""
    built = slipping()
    built.loop.stop()
    assert built.server.prepared is None
    built.drained()
    assert built.state == ServerState.STOPPED


def test_a_stop_calls_the_change_off() -> None:
    """It is told, and the next vllmd finds nothing that is open."""
    built = slipping()
    built.loop.stop()
    assert last_effect(built).effect is Effect.CALLED_OFF
    assert "vllmd is stopped" in last_effect(built).message


def test_one_that_fails_for_no_reason_of_its_flags_is_not_prepared_for_ever() -> None:
    """Each costs the host a start, and counts in the budget as any restart that was decided."""
    built, failed = slipping(), 0
    traffic = Traffic(built.clock, share_slow=0.05)
    until_s = built.clock.at_s + 3600
    while built.clock.at_s < until_s:
        if built.server.prepared is not None:
            built.dies_beside(1, "nothing that says why")
            failed += 1
        built.tick(traffic.read(0))
    assert failed == built.told[-1].budget.restarts_hour == built.told[-1].budget.restarts_hour_limit


def test_a_stop_while_the_server_makes_room_ends_both() -> None:
    """One that waits at its gate is launched by nobody."""
    built = slipping()
    built.at_gate()
    built.loop.stop()
    assert built.server.prepared is None
    built.drained()
    assert (built.state, len(built.server.launches)) == (ServerState.STOPPED, 1)


def test_a_pause_gives_it_up() -> None:
    """Its change was not carried out, did no harm, and is decided anew when the pause is over."""
    built = slipping()
    built.loop.pause(Pause(built.clock.now_s(), None, "root"))
    assert (built.server.prepared, built.state) == (None, ServerState.SERVING)
    assert built.told[-1].message == "serving"
    assert last_effect(built).effect is Effect.CALLED_OFF
    assert "paused by root" in last_effect(built).message
    assert [told.change_id for told in built.told[-1].flags if told.name == "max-num-batched-tokens"] == [None]


def test_a_pause_lets_a_server_that_makes_room_go_on() -> None:
    """The drain runs, and so does the change: it is verified as any other."""
    built = slipping()
    built.at_gate()
    prepared = built.server.prepared
    built.loop.pause(Pause(built.clock.now_s(), None, "root"))
    assert [e for e in of_kind(built, Verification) if e] == []
    built.drained()
    assert built.server.living == prepared
    built.ready()
    assert built.flags["max-num-batched-tokens"] == "1024"


def test_a_way_back_that_fails_beside_the_server_is_gone_without_the_gate() -> None:
    """What did harm must not stay because two servers were too many; the value before it is not to blame."""
    built = taking_back()
    built.dies_beside(-9, "Killed")
    assert built.state == ServerState.DRAINING
    built.drained()
    assert built.flags["max-num-batched-tokens"] == "2048"


def test_a_restart_that_was_not_made_is_not_told_as_made() -> None:
    """Vllmd died while the next server was prepared: the one that it takes over is the one of before."""
    built = ordered()
    assert built.server.prepared is not None
    after = house(settings(Slo()), ledger=built.ledger)
    assert built.server.living is not None
    after.server.left_behind = Left(built.server.living.generation)
    after.loop.begin()
    after.ready()
    assert of_kind(after, Outcome) == []


def test_another_order_takes_its_place() -> None:
    """The operator's restart has the flags in force, and what was prepared for the change goes."""
    built = slipping()
    built.loop.restart()
    assert built.server.prepared is not None
    assert (built.server.prepared.generation, built.server.prepared.flags) == (3, built.flags)
    built.at_gate()
    built.drained()
    built.ready()
    assert built.flags["max-num-batched-tokens"] == "2048"


@pytest.mark.parametrize("build", [slipping, ordered])
def test_a_crash_of_the_server_gives_it_up(build: Callable[[], House]) -> None:
    """The server is started again as after any crash; the change that was under way is blamed for nothing."""
    built = build()
    built.dies(0, "nothing that says why")
    assert built.server.prepared is None
    assert last_effect(built).effect is Effect.CALLED_OFF
    assert built.flags["max-num-batched-tokens"] == "2048"
    built.clock.at_s += 60
    built.tick()
    assert built.server.living is not None
    assert built.server.living.generation == 3


def test_an_order_that_fails_beside_a_soaking_change_lets_it_soak_anew() -> None:
    """The change under verification is judged by what is served from then on."""
    built = slipping()
    built.at_gate()
    built.drained()
    built.ready()
    built.loop.restart()
    built.dies_beside(1, NO_MEMORY)
    traffic = Traffic(built.clock, share_slow=0.002)
    for _ in range(40):
        built.tick(traffic.read(0))
    assert last_effect(built).effect is Effect.BETTER


def test_what_comes_late_of_one_that_was_given_up_is_ignored() -> None:
    """Its gate, and its end, were on their way."""
    built = slipping()
    prepared = built.server.prepared
    built.loop.pause(Pause(built.clock.now_s(), None, "root"))
    built.server.prepared = prepared
    built.at_gate()
    built.misses_gate("too late")
    assert (built.state, built.server.stopping) == (ServerState.SERVING, False)


def test_limits_that_were_changed_meanwhile_are_those_of_the_next_server() -> None:
    """SIGHUP while it is prepared: its command is the one before, its targets are the new ones."""
    built = slipping()
    instance = built.loop.supervisor.instance
    built.loop.configure(replace(instance, settings=settings(Slo())), (), as_it_is)
    built.at_gate()
    built.drained()
    assert built.loop.supervisor.instance.settings.slo == Slo()
    assert built.flags["max-num-batched-tokens"] == "1024"
