"""The loop over days and daemons: what crashed is not run again, what served is, and a pause is kept."""

from dataclasses import replace

import pytest

from fakes import MemoryLedger, reading
from house import House, house, settings
from unit.test_loop import NO_POOL, RUNTIME_OOM, SLO, changes, serve
from vllmd.model.decision import Action, Effect, Hold, HoldReason, Verification
from vllmd.model.failure import FailureClass
from vllmd.model.orders import Pause
from vllmd.model.server import Exited, ServerState
from vllmd.model.settings import Budget, Mode, Modes, Settings, Slo
from vllmd.model.tried import Good

UTILIZATION = "gpu-memory-utilization"
DAY_S = 86400.0
BATCHED_TOKENS = "max-num-batched-tokens"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
TARGETED = settings(SLO)
CALM = settings(Slo(), budget=Budget(soak_s=60.0))


def begun(chosen: Settings = CALM, ledger: MemoryLedger | None = None) -> House:
    """Return a house whose first launch serves."""
    built = house(chosen, ledger=ledger)
    built.loop.begin()
    built.ready()
    return built


def recovered() -> House:
    """Return a house that serves at a lower utilization, after an OOM."""
    built = begun()
    built.clock.at_s += 60
    built.dies(0, *RUNTIME_OOM)
    assert float(str(built.flags[UTILIZATION])) < 0.9
    built.ready()
    return built


def serve_for(built: House, seconds: float) -> None:
    """Let the server serve for a while, then read it."""
    built.clock.at_s += seconds
    built.tick(reading(built.clock.now_s(), 0, {0.025: 100.0}), after_s=0.0)


def tuned() -> House:
    """Return a house that serves with the batched tokens that a latency target moved, verified."""
    built = house(TARGETED)
    built.loop.begin()
    built.ready()
    serve(built, share_slow=0.05, seconds=200)
    built.drained()
    built.ready()
    serve(built, share_slow=0.002, seconds=200)
    assert built.flags[BATCHED_TOKENS] == "1024"
    return built


def paused(built: House, *, for_s: float | None = 3600.0, keeps_recovery: bool = False) -> House:
    """Pause a house."""
    now_s = built.clock.now_s()
    built.loop.pause(Pause(now_s, None if for_s is None else now_s + for_s, "anna", "driver upgrade", keeps_recovery))
    return built


def test_the_next_daemon_begins_with_the_flags_that_served_last() -> None:
    """It does not crash first with the operator's flags, and says why not."""
    first = recovered()
    later = house(CALM, ledger=first.ledger)
    later.loop.begin()
    assert later.flags[UTILIZATION] == first.flags[UTILIZATION]
    assert changes(later)[-1].action is Action.REMEMBER
    assert "generation 2 served" in changes(later)[-1].proposal.reason
    later.ready()
    assert [e.generation for _, e in later.ledger.entries if isinstance(e, Good)] == [1, 2, 3]


def test_a_new_command_of_the_operator_is_launched_as_it_is() -> None:
    """The last good flags belong to the command that they were found for."""
    later = house(CALM, ("vllm", "serve", "model", "--gpu-memory-utilization=0.85"), recovered().ledger)
    later.loop.begin()
    assert later.flags[UTILIZATION] == "0.85"


def test_without_leave_to_move_memory_flags_the_command_is_launched_as_it_is() -> None:
    """Memory mode governs what is remembered, too."""
    observing = replace(CALM, modes=Modes(Mode.ADVISORY, Mode.ACTIVE))
    later = house(observing, ledger=recovered().ledger)
    later.loop.begin()
    assert later.flags[UTILIZATION] == "0.9"


def test_what_the_operator_wants_forgotten_is_not_remembered() -> None:
    """The next daemon begins with the operator's flags."""
    first = recovered()
    first.clock.at_s += 1
    first.loop.forget("anna")
    later = house(CALM, ledger=first.ledger)
    later.loop.begin()
    assert later.flags[UTILIZATION] == "0.9"


def test_a_remedy_that_crashed_under_an_earlier_daemon_is_not_tried_again() -> None:
    """The ban outlives the daemon: the same OOM, and the computed remedy is the one that failed before."""
    first = recovered()
    remedy = first.flags[UTILIZATION]
    first.clock.at_s += 1
    first.dies(1, NO_POOL)
    later = begun(ledger=first.ledger)
    later.clock.at_s += 60
    launches = len(later.server.launches)
    later.dies(0, *RUNTIME_OOM)
    tried = [launch.flags[UTILIZATION] for launch in later.server.launches[launches:]]
    assert remedy not in tried


def test_after_a_quiet_day_one_step_back_is_tried_and_found_good() -> None:
    """Half of the way, watched for its soak; the verification is that it serves."""
    built = recovered()
    lowered = float(str(built.flags[UTILIZATION]))
    serve_for(built, DAY_S - 60)
    assert built.state == ServerState.SERVING
    serve_for(built, 120)
    assert built.state == ServerState.DRAINING
    built.drained()
    assert lowered < float(str(built.flags[UTILIZATION])) < 0.9
    built.ready()
    serve_for(built, 61)
    verification = built.ledger.entries[-2][1]
    assert isinstance(verification, Verification)
    assert verification.effect is Effect.SERVING
    assert isinstance(built.ledger.entries[-1][1], Good)


def test_a_clock_that_is_set_makes_no_quiet_day() -> None:
    """A machine without a clock of its own boots in 1970 and learns the time while the server serves."""
    built = recovered()
    built.clock.set_by_s = 50 * 365 * DAY_S
    serve_for(built, 60)
    assert built.state == ServerState.SERVING
    serve_for(built, DAY_S)
    assert built.state == ServerState.DRAINING


def test_a_step_back_counts_for_the_budget_of_the_next_daemon_and_the_operators_restart_does_not() -> None:
    """Both are restarts, and only one was vllmd's own."""
    built = recovered()
    serve_for(built, DAY_S + 60)
    built.drained()
    built.ready()
    built.loop.restart()
    later = house(CALM, ledger=built.ledger)
    later.clock.at_s = built.clock.at_s + 60
    later.loop.begin()
    assert later.told[-1].budget.restarts_day == built.told[-1].budget.restarts_day == 1


def test_a_step_back_that_crashes_is_taken_back_and_not_tried_again() -> None:
    """The operator pays for it once."""
    built = recovered()
    lowered = built.flags[UTILIZATION]
    serve_for(built, DAY_S + 60)
    built.drained()
    built.ready()
    built.dies(0, *RUNTIME_OOM)
    assert built.flags[UTILIZATION] == lowered
    built.ready()
    serve_for(built, DAY_S + 60)
    assert built.state == ServerState.SERVING
    last = built.told[-1].last_decision
    assert isinstance(last, Hold)
    assert last.reason is HoldReason.ALREADY_TRIED


def test_what_a_target_moved_is_not_stepped_back_however_much_happened_since() -> None:
    """Two dozen other decisions later, and under the next daemon, it is still known why the flag was moved."""
    built = tuned()
    tuned_to = built.flags[BATCHED_TOKENS]
    for _ in range(24):
        built.dies(1, ECC)
        built.tick(after_s=400)
        built.ready()
        serve_for(built, 1200)
    serve_for(built, DAY_S + 60)
    assert built.state == ServerState.SERVING
    assert built.flags[BATCHED_TOKENS] == tuned_to
    later = house(TARGETED, ledger=built.ledger)
    later.clock.at_s = built.clock.at_s + 1
    later.loop.begin()
    later.ready()
    assert later.flags[BATCHED_TOKENS] == tuned_to
    serve_for(later, DAY_S + 60)
    assert later.state == ServerState.SERVING


@pytest.mark.parametrize(("forgets", "harmful"), [(False, True), (True, False)])
def test_what_did_harm_is_known_to_the_next_daemon_unless_forgotten(*, forgets: bool, harmful: bool) -> None:
    """A value that was taken back is barred until the operator says otherwise."""
    built = house(TARGETED)
    built.loop.begin()
    built.ready()
    serve(built, share_slow=0.05, seconds=200)
    built.drained()
    built.dies(1, NO_POOL)
    built.ready()
    built.clock.at_s += 1
    if forgets:
        built.loop.forget("anna")
    later = house(TARGETED, ledger=built.ledger)
    later.clock.at_s = built.clock.at_s + 1
    later.loop.begin()
    later.ready()
    serve(later, share_slow=0.05, seconds=400)
    assert (later.state == ServerState.SERVING) is harmful


def test_what_crashed_under_another_vllm_is_tried_again() -> None:
    """An upgrade under a running vllmd ends the bans of the version before: two steps lead back to what crashed."""
    built = recovered()
    older = built.loop.supervisor.instance
    built.loop.supervisor.configure(replace(older, catalogue=replace(older.catalogue, version="0.34.0")))
    built.loop.restart()
    built.drained()
    built.ready()
    for _ in range(2):
        serve_for(built, DAY_S + 60)
        built.drained()
        built.ready()
        serve_for(built, 61)
    assert built.flags[UTILIZATION] == "0.9"


@pytest.mark.parametrize("for_s", [3600.0, None])
def test_in_a_pause_a_crash_is_not_answered_until_its_end(for_s: float | None) -> None:
    """The server stays down and says why; the operator's word, or the end of the pause, recovers it."""
    built = paused(begun(), for_s=for_s)
    built.dies(0, *RUNTIME_OOM)
    assert built.state == ServerState.HELD
    assert "paused by anna (driver upgrade)" in built.loop.supervisor.life.message
    built.tick(after_s=3601)
    if for_s is None:
        assert built.state == ServerState.HELD
        assert built.loop.resume("anna")
    assert built.state == ServerState.STARTING
    assert float(str(built.flags[UTILIZATION])) < 0.9
    assert not built.loop.resume("anna")


def test_a_pause_may_keep_the_recovery() -> None:
    """Then only voluntary changes wait."""
    built = paused(begun(), keeps_recovery=True)
    built.dies(0, *RUNTIME_OOM)
    assert built.state == ServerState.STARTING


def test_a_second_pause_that_keeps_the_recovery_recovers_what_the_first_kept_down() -> None:
    """The last word counts, for a server that is down already, too."""
    built = paused(begun())
    built.dies(0, *RUNTIME_OOM)
    assert built.state == ServerState.HELD
    paused(built, keeps_recovery=True)
    assert built.state == ServerState.STARTING


def test_a_pause_stops_a_launch_that_waits_and_its_end_begins_it() -> None:
    """A backoff is not slept through."""
    built = begun()
    for _ in range(3):
        built.dies(1, ECC)
        if built.state == ServerState.BACKOFF:
            break
        built.ready()
    assert built.state == ServerState.BACKOFF
    paused(built)
    built.tick(after_s=600)
    assert built.state == ServerState.HELD
    built.loop.resume("anna")
    built.tick(after_s=600)
    assert built.state == ServerState.STARTING


def test_in_a_pause_nothing_is_stepped_back() -> None:
    """It is counted why."""
    built = paused(recovered(), for_s=None)
    serve_for(built, DAY_S + 60)
    assert built.state == ServerState.SERVING
    last = built.told[-1].last_decision
    assert isinstance(last, Hold)
    assert last.reason is HoldReason.PAUSED


def test_a_pause_outlives_the_daemon() -> None:
    """The next daemon launches, which was asked for, and changes nothing."""
    later = begun(ledger=paused(begun()).ledger)
    later.dies(0, *RUNTIME_OOM)
    assert later.state == ServerState.HELD


def test_the_operators_restart_is_carried_out_in_a_pause() -> None:
    """A pause binds vllmd, not the operator."""
    built = paused(begun())
    built.dies(0, *RUNTIME_OOM)
    assert built.loop.restart() is not None
    assert built.state == ServerState.STARTING
    built.ready()
    serve_for(built, 7200)
    assert built.state == ServerState.SERVING


def test_a_kill_that_the_kernel_counted_is_no_fault_of_the_flags() -> None:
    """Nothing was printed; the count says why the engine is gone, and no flag of the GPU's memory moves."""
    built = begun()
    launch = built.server.ended()
    built.log[:] = ["INFO:     Application startup complete."]
    built.loop.on_event(Exited(launch, -9, asked=False, oom_kills=1))
    failure = built.told[-1].last_failure
    assert failure is not None
    assert failure.kind is FailureClass.HOST_OOM
    assert built.flags[UTILIZATION] == "0.9"
    assert changes(built)[-1].action is Action.RETRY
    assert built.state == ServerState.BACKOFF
