"""The loop: decisions become launches, and never two servers."""

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fakes import Traffic
from house import ARGV, House, house, settings
from vllmd.model.decision import Action, Change, Effect, Hold, HoldReason, Target, Verification
from vllmd.model.server import LaunchRefused, ServerState, StartStalled
from vllmd.model.settings import Budget, Mode, Slo

SLO = Slo((Target("itl_p99", "itl", 0.99, 0.05),), judge_window_s=60.0, min_requests=200)
RUNTIME_OOM = (
    "INFO:     Application startup complete.",
    (
        "(EngineCore pid=7) ERROR 11-29 17:00:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. "
        "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is free."
    ),
)

POOL_TOO_SMALL = (
    "(EngineCore pid=7) INFO 11-29 17:00:00 [gpu_worker.py:1] Available KV cache memory: 2.00 GiB",
    (
        "(EngineCore pid=7) ERROR 11-29 17:00:00 [core.py:1] ValueError: To serve at least one request with the "
        "models's max seq len (32768), (4.00 GiB KV cache is needed, which is larger than the available KV cache "
        "memory (2.00 GiB). Based on the available memory, the estimated maximum model length is 16384."
    ),
)
NO_POOL = "(EngineCore pid=7) ERROR 11-29 17:00:00 [core.py:1] ValueError: No available memory for the cache blocks."


def begun(latency: Mode = Mode.ACTIVE, budget: Budget | None = None) -> House:
    """Return a house whose first launch serves."""
    built = house(settings(SLO, latency, budget))
    built.loop.begin()
    built.clock.at_s += 30
    built.ready()
    return built


def serve(built: House, share_slow: float, seconds: float, traffic: Traffic | None = None) -> None:
    """Serve a steady load for a while, reading every 5 s; `traffic` goes on with one."""
    traffic = traffic or Traffic(built.clock, share_slow)
    for _ in range(int(seconds / 5)):
        if built.state != ServerState.SERVING:
            return
        built.clock.at_s += 5
        built.tick(traffic.read(0), after_s=0.0)


def changes(built: House) -> list[Change]:
    """Return the recorded changes."""
    return [e for _, e in built.ledger.entries if isinstance(e, Change)]


def effects(built: House) -> list[Effect]:
    """Return the effects of the recorded verifications."""
    return [e.effect for _, e in built.ledger.entries if isinstance(e, Verification)]


def test_the_first_launch_is_the_baseline_with_a_drain() -> None:
    """VLLM's default would abort requests in flight, so that a drain is added where there is one."""
    built = begun()
    assert built.server.launches[0].argv == (*_canonical(ARGV), "--shutdown-timeout", "60")
    assert built.state == ServerState.SERVING


def test_a_slip_ends_in_one_restart_with_fewer_batched_tokens_that_is_verified() -> None:
    """Slip, decision, drained restart, soak, verification: the whole flow."""
    built = begun()
    serve(built, share_slow=0.05, seconds=200)
    assert built.state == ServerState.DRAINING
    built.drained()
    assert built.state == ServerState.STARTING
    assert built.flags["max-num-batched-tokens"] == "1024"
    built.clock.at_s += 20
    built.ready()
    serve(built, share_slow=0.002, seconds=200)
    assert effects(built) == [Effect.BETTER]
    assert [c.action for c in changes(built)] == [Action.RESTART]
    assert len(built.server.launches) == 2
    record = built.told[-1].decisions[-1]
    assert record.outcome is not None
    assert record.outcome.served
    assert record.outcome.outage_s == 20.0
    assert record.verification is not None


def test_a_change_that_did_harm_is_taken_back_and_never_tried_again() -> None:
    """Worse after the soak: back to the flags before, and the same step is barred."""
    built = begun()
    serve(built, share_slow=0.05, seconds=200)
    built.drained()
    built.ready()
    serve(built, share_slow=0.2, seconds=100)
    assert built.state == ServerState.DRAINING
    built.drained()
    built.ready()
    assert built.flags["max-num-batched-tokens"] == "2048"
    assert [c.action for c in changes(built)] == [Action.RESTART, Action.ROLLBACK]
    serve(built, share_slow=0.05, seconds=300)
    assert built.state == ServerState.SERVING
    last = built.told[-1].last_decision
    assert isinstance(last, Hold)
    assert last.reason is HoldReason.ALREADY_TRIED


def test_a_change_that_does_not_come_to_serve_is_taken_back() -> None:
    """The fallback is launched at once, whatever the reason was."""
    built = begun()
    serve(built, share_slow=0.05, seconds=200)
    built.drained()
    built.dies(1, "ValueError: max_num_batched_tokens (1024) must be greater than or equal to max_num_seqs (2048).")
    assert built.state == ServerState.STARTING
    assert built.flags["max-num-batched-tokens"] == "2048"
    assert effects(built) == [Effect.FAILED]


def test_advice_is_given_once_and_nothing_restarts() -> None:
    """In advisory mode the same decision is recorded, and the server is left alone."""
    built = begun(Mode.ADVISORY)
    serve(built, share_slow=0.05, seconds=400)
    assert [c.action for c in changes(built)] == [Action.ADVISE]
    assert changes(built)[0].flags_after["max-num-batched-tokens"] == "1024"
    assert len(built.server.launches) == 1


def test_a_spent_budget_holds() -> None:
    """With no restarts left the slip is told and not acted on."""
    built = begun(budget=Budget(restarts_per_hour=0, soak_s=60.0))
    serve(built, share_slow=0.05, seconds=200)
    last = built.told[-1].last_decision
    assert isinstance(last, Hold)
    assert last.reason is HoldReason.BUDGET
    assert built.state == ServerState.SERVING


def test_nothing_is_decided_on_metrics_of_the_past() -> None:
    """Once the metrics cannot be read, the last window decides nothing more, however it looked."""
    built = begun(budget=Budget(restarts_per_hour=0, soak_s=60.0))
    serve(built, share_slow=0.05, seconds=200)
    built.tick()
    last = built.told[-1].last_decision
    assert isinstance(last, Hold)
    assert last.reason is HoldReason.BLIND


def test_a_runtime_oom_lowers_the_utilization_and_serves_again() -> None:
    """Exit code 0 after an OOM is a crash all the same; the new utilization comes from the numbers printed."""
    built = begun()
    built.dies(0, *RUNTIME_OOM)
    assert built.state == ServerState.STARTING
    lowered = built.flags.number("gpu-memory-utilization")
    assert lowered is not None
    assert 0.85 <= lowered <= 0.89
    built.ready()
    assert effects(built) == [Effect.SERVING]


def test_what_was_too_low_is_not_tried_again() -> None:
    """After the pool was too small at 0.86, no OOM lowers the utilization to that again."""
    built = house(settings(SLO), (*ARGV[:3], "--gpu-memory-utilization=0.86"))
    built.loop.begin()
    built.dies(1, *POOL_TOO_SMALL)
    raised = built.flags.number("gpu-memory-utilization")
    assert raised is not None
    assert raised > 0.86
    built.ready()
    built.dies(0, *RUNTIME_OOM)
    after = built.flags.number("gpu-memory-utilization")
    assert after is not None
    assert after > 0.86
    assert built.state == ServerState.STARTING


def test_a_dead_end_goes_back_to_the_flags_that_served() -> None:
    """Flags of ours that do not start, with no remedy left, are left for those that served last."""
    built = begun()
    served = built.flags
    built.dies(0, *RUNTIME_OOM)
    assert built.flags != served
    while built.flags != served:  # in between it may try more utilization, up to the guard
        assert len(built.server.launches) < 12
        if built.state == ServerState.STARTING:
            built.dies(1, NO_POOL)
        else:
            assert built.state == ServerState.BACKOFF
            built.tick(after_s=60.0)
    assert [c.action for c in changes(built)][-1] is Action.ROLLBACK


def test_a_restart_during_a_soak_begins_it_anew() -> None:
    """What the operator restarts is still verified, and still taken back when it did harm."""
    built = begun()
    serve(built, share_slow=0.05, seconds=200)
    built.drained()
    built.ready()
    built.loop.restart()
    built.drained()
    built.ready()
    serve(built, share_slow=0.2, seconds=100)
    assert built.state == ServerState.DRAINING
    assert [c.action for c in changes(built)][-1] is Action.ROLLBACK


def test_no_change_is_made_on_top_of_one_that_could_not_be_verified() -> None:
    """Without a verdict the next step down would be a guess on a guess."""
    built = begun()
    serve(built, share_slow=0.05, seconds=200)
    built.drained()
    built.ready()
    for _ in range(60):
        built.tick()
    serve(built, share_slow=0.2, seconds=400)
    assert effects(built) == [Effect.UNKNOWN]
    last = built.told[-1].last_decision
    assert isinstance(last, Hold)
    assert last.reason is HoldReason.COOLDOWN


def test_an_end_without_a_cause_is_a_crash_and_waits_longer_each_time() -> None:
    """Any exit that was not asked for is answered by a launch; the second within ten minutes waits."""
    built = begun()
    built.dies(0, "INFO:     Application startup complete.")
    assert built.state == ServerState.STARTING
    built.ready()
    built.dies(0, "INFO:     Application startup complete.")
    assert built.state == ServerState.BACKOFF
    built.tick(after_s=1.0)
    assert built.state == ServerState.STARTING


def test_ten_good_minutes_start_the_wait_anew() -> None:
    """After a good run the next crash is answered at once."""
    built = begun()
    built.dies(0, "INFO:     Application startup complete.")
    built.ready()
    built.tick(after_s=601.0)
    built.dies(0, "INFO:     Application startup complete.")
    assert built.state == ServerState.STARTING


def test_a_taken_port_is_held_and_the_operator_can_launch_again() -> None:
    """Nothing is retried while a foreign process has the port; a restart that is asked for tries again."""
    built = house(settings(SLO))
    built.loop.begin()
    generation = built.server.ended()
    built.loop.on_event(LaunchRefused(generation, "port-taken", "port 8000 is taken by pid 5 nginx, which is not ours"))
    assert built.state == ServerState.HELD
    assert "pid 5 nginx" in built.told[-1].message
    built.tick(after_s=3600.0)
    assert len(built.server.launches) == 1
    built.loop.restart()
    assert built.state == ServerState.STARTING


def test_an_executable_that_is_gone_for_a_moment_is_tried_again() -> None:
    """An upgrade replaces files: a launch that cannot be spawned is retried with a growing wait, until the breaker."""
    built = house(settings(SLO))
    built.loop.begin()
    for _ in range(4):
        built.loop.on_event(LaunchRefused(built.server.ended(), "spawn-failed", "vllm cannot be started: no such file"))
        assert built.state in {ServerState.STARTING, ServerState.BACKOFF}
        built.tick(after_s=10.0)
    built.loop.on_event(LaunchRefused(built.server.ended(), "spawn-failed", "vllm cannot be started: no such file"))
    assert built.state == ServerState.HELD


def test_a_stalled_start_is_launched_again() -> None:
    """A start without progress is the host's fault until it repeats."""
    built = house(settings(SLO))
    built.loop.begin()
    built.loop.on_event(StartStalled(built.server.ended(), 1200.0))
    assert built.state == ServerState.STARTING


def test_a_stalled_start_whose_log_names_a_cause_is_that_failure() -> None:
    """A host that cannot pin its memory never finishes a start, and no further start heals it."""
    built = house(settings(SLO))
    built.loop.begin()
    built.log[:] = ["(Worker pid=7) WARNING 09-16 13:18:12 [gpu_worker.py:208] cudaHostRegister failed for rank=0"]
    built.loop.on_event(StartStalled(built.server.ended(), 1200.0))
    assert built.state == ServerState.HELD
    assert "could not pin the memory" in built.told[-1].message


def test_a_stop_while_draining_for_a_restart_stays_stopped() -> None:
    """The operator's stop wins over a restart that is under way."""
    built = begun()
    built.loop.restart()
    built.loop.stop()
    built.drained()
    assert built.state == ServerState.STOPPED
    assert built.server.living is None


def test_connections_wait_for_the_next_launch_and_for_nothing_else() -> None:
    """They wait through a restart, also through a next server that fails; not for one that is stopped or held."""
    built = begun()
    built.loop.restart()
    assert built.server.waiting
    built.loop.stop()
    assert not built.server.waiting
    built = begun()
    built.loop.restart()
    built.drained()
    assert built.state == ServerState.STARTING
    assert built.server.waiting
    built.loop.on_event(LaunchRefused(built.server.ended(), "port-taken", "pid 5 nginx has it", "pid 5 nginx"))
    assert built.state == ServerState.HELD
    assert not built.server.waiting


def test_events_of_an_earlier_launch_are_ignored() -> None:
    """A late word about generation 1 does not touch generation 2."""
    built = begun()
    built.dies(0)
    built.loop.on_event(LaunchRefused(1, "port-taken", "late"))
    assert built.state == ServerState.STARTING


def test_no_secret_of_the_argv_is_told_or_stored() -> None:
    """Keys in the operator's argv appear in no status and in no entry of the ledger."""
    built = house(settings(SLO), (*ARGV, "--api-key", "s3cr3t-planted-value"))
    built.loop.begin()
    built.ready()
    serve(built, share_slow=0.05, seconds=200)
    built.drained()
    built.dies(1, "error: --api-key s3cr3t-planted-value is odd", "ValueError: s3cr3t-planted-value")
    assert "s3cr3t-planted-value" in built.server.launches[0].argv
    assert "s3cr3t-planted-value" not in repr(built.ledger.entries)
    assert "s3cr3t-planted-value" not in repr(built.told)


def take(built: House, step: str) -> None:
    """Let one thing happen, if it can."""
    stopping = built.server.stopping
    match step, built.server.living is not None:
        case "ready", True:
            built.ready()
        case "dies", True if not stopping:
            built.dies(1, "something unheard of")
        case "oom", True if not stopping:
            built.dies(0, *RUNTIME_OOM)
        case "drained", True if stopping:
            built.drained()
        case "refused", True if not stopping:
            built.loop.on_event(LaunchRefused(built.server.ended(), "spawn-failed", "no such file"))
        case "restart", _:
            built.loop.restart()
        case "stop", _:
            built.loop.stop()
        case "slip", _:
            serve(built, share_slow=0.2, seconds=150)
        case _:
            built.tick(after_s=400.0)


STEPS = ("ready", "dies", "oom", "drained", "tick", "restart", "stop", "slip", "refused")


@hypothesis_settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=40))
def test_never_two_servers_whatever_happens(steps: list[str]) -> None:
    """In any order of events a launch begins only when no server lives; the fake refuses a second one."""
    built = house(settings(SLO))
    built.loop.begin()
    for step in steps:
        take(built, step)
    alive = {ServerState.STARTING, ServerState.SERVING, ServerState.DRAINING}
    assert (built.server.living is not None) == (built.state in alive)


@pytest.mark.parametrize("state", ["held", "backoff"])
def test_a_stop_without_a_server_is_done_at_once(state: str) -> None:
    """There is nothing to drain when nothing lives."""
    built = house(settings(SLO))
    built.loop.begin()
    if state == "held":
        built.loop.on_event(LaunchRefused(built.server.ended(), "port-taken", "taken"))
    else:
        built.dies(1, "odd")
        built.dies(1, "odd")
    assert built.state == state
    built.loop.stop()
    assert built.state == ServerState.STOPPED


def _canonical(argv: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part for word in argv for part in (word.split("=", 1) if word.startswith("--") else (word,)))
