"""A server that hangs: ended once, started again with the same flags, the second time in eager mode."""

from dataclasses import replace

from house import ARGV, House, house, settings
from vllmd.model.decision import Action, Change, Hold, HoldReason
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.live import Heartbeat
from vllmd.model.orders import Pause
from vllmd.model.server import Hung, Phase, ServerState
from vllmd.model.settings import Guard, Slo
from vllmd.model.snapshot import Activity, Metrics, Snapshot

STUCK = Metrics(
    {"requests_running": 4.0, "requests_waiting": 1.0},
    {"prompt_tokens": 900.0, "generation_tokens": 40.0, "steps": 40.0},
)
BEAT = Heartbeat(steps=40, step_s=1.0, longest_s=0.3, running=4, waiting=1, tokens=4, own_s=0.0, pid=7)
STILL = Activity(50.0, stopped=True)


def begun() -> House:
    """Return a house whose first launch serves."""
    built = house(settings(Slo()))
    built.loop.begin()
    built.clock.at_s += 30
    built.ready()
    return built


def stand_still(built: House, seconds: float) -> None:
    """Hand in pages that show work and no movement, one every 5 s."""
    for _ in range(int(seconds / 5)):
        built.clock.at_s += 5
        reading = Snapshot(built.clock.now_s(), 0, STUCK, None, monotonic_s=built.clock.monotonic_s())
        built.tick(reading, after_s=0.0)


def miss_beats(built: House, seconds: int, activity: Activity | None = STILL) -> None:
    """Look every second at a heartbeat that stands still, and hand in a reading where it is near its limit."""
    for _ in range(seconds):
        built.clock.at_s += 1
        built.loop.stall.feel(BEAT, 1)
        if built.loop.stall.suspects:
            reading = Snapshot(built.clock.now_s(), 0, STUCK, None, monotonic_s=built.clock.monotonic_s())
            built.tick(replace(reading, activity=activity, beat=BEAT), after_s=0.0)


def changes(built: House) -> list[Change]:
    """Return the recorded changes."""
    return [e for _, e in built.ledger.entries if isinstance(e, Change)]


def failures(built: House) -> list[Failure]:
    """Return the recorded failures."""
    return [e for _, e in built.ledger.entries if isinstance(e, Failure)]


def hang(built: House) -> None:
    """Let the server hang until it is found, ended, started again, and serves."""
    stand_still(built, 130)
    built.hung()
    built.clock.at_s += 600  # whatever the wait before the next launch is
    built.loop.look()
    built.ready()


def test_a_hang_is_found_after_the_limit_and_not_before() -> None:
    """After 120 s of standing still the server is ended; the state stays until its end is there."""
    built = begun()
    stand_still(built, 120)
    assert built.server.hung is None
    stand_still(built, 10)
    assert built.server.hung is not None
    assert built.server.hung.reason == "no token and no step for 125 s with 4 requests running"
    assert built.state == ServerState.SERVING
    assert len(built.server.launches) == 1


def test_a_hang_is_found_by_its_heartbeat_long_before_that() -> None:
    """After 5 s in which none of its processes did anything, and not before; what is told says so."""
    built = begun()
    miss_beats(built, 6)
    assert built.server.hung is None
    miss_beats(built, 1)
    assert built.server.hung is not None
    assert built.server.hung.reason.startswith("no heartbeat of its engine for 6.0 s with 4 requests running")
    built.hung()
    assert [change.action for change in changes(built)] == [Action.RETRY]


def test_a_heartbeat_that_was_read_by_nobody_says_nothing() -> None:
    """Whether it is paused, sleeps or computes is asked before it is ended."""
    built = begun()
    miss_beats(built, 100, activity=None)
    assert built.server.hung is None


def test_a_heartbeat_of_workers_that_are_elsewhere_is_not_used() -> None:
    """Under Ray the engine waits for processes that are not seen."""
    built = house(settings(Slo()), (*ARGV, "--distributed-executor-backend", "ray"))
    built.loop.begin()
    built.ready()
    miss_beats(built, 100)
    assert built.server.hung is None


def test_a_paused_vllmd_leaves_a_missing_heartbeat_alone() -> None:
    """It is told, as what the page shows is."""
    built = begun()
    built.loop.pause(Pause(built.clock.now_s(), None, "anna", "driver"))
    miss_beats(built, 20)
    assert built.server.hung is None
    last = built.told[-1].last_decision
    assert isinstance(last, Hold)
    assert (last.reason, last.message[:12]) == (HoldReason.HANGS, "no heartbeat")


def test_a_server_is_asked_whether_it_is_paused_before_the_limit() -> None:
    """From half the limit on, so that the answer is there in time; not after it moved again."""
    built = begun()
    stand_still(built, 60)
    assert not built.loop.stall.suspects
    stand_still(built, 10)
    assert built.loop.stall.suspects


def test_a_paused_server_is_asked_until_it_goes_on() -> None:
    """So that the time in which somebody kept it paused never counts as an honest silence of the engine."""
    built = begun()
    stand_still(built, 70)
    for _ in range(100):
        built.clock.at_s += 5
        reading = Snapshot(built.clock.now_s(), 0, STUCK, None, monotonic_s=built.clock.monotonic_s(), paused=True)
        built.tick(reading, after_s=0.0)
        assert built.loop.stall.suspects
    stand_still(built, 120)
    assert built.server.hung is None
    stand_still(built, 10)
    assert built.server.hung is not None


def test_after_a_hang_the_same_flags_are_launched() -> None:
    """It is a failure of the class hang while serving, and no flag is to blame."""
    built = begun()
    flags = built.flags
    stand_still(built, 130)
    built.hung()
    (failure,) = failures(built)
    assert (failure.kind, failure.phase, failure.generation) == (FailureClass.HANG, Phase.SERVING, 1)
    assert failure.numbers["silent_s"] == 125.0
    assert built.state == ServerState.STARTING
    assert built.flags == flags
    assert [c.action for c in changes(built)] == [Action.RETRY]


def test_a_hang_is_ended_once_and_nothing_else_is_decided_meanwhile() -> None:
    """Until its end has come, readings of the hanging server change nothing."""
    built = begun()
    stand_still(built, 130)
    entries = list(built.ledger.entries)
    first = built.server.hung
    stand_still(built, 60)
    assert built.server.hung is first
    assert built.ledger.entries == entries


def test_a_stop_while_it_is_being_ended_stays_a_stop() -> None:
    """The operator's stop wins: the end of the hanging server launches nothing."""
    built = begun()
    stand_still(built, 130)
    built.loop.stop()
    built.hung()
    assert built.state == ServerState.STOPPED
    assert len(built.server.launches) == 1


def test_a_hang_that_ended_by_itself_is_the_end_that_it_had() -> None:
    """A process that died before it was ended is diagnosed as any other."""
    built = begun()
    stand_still(built, 130)
    built.dies(-9, "Killed")
    assert [f.exit_code for f in failures(built)] == [-9]
    assert built.state == ServerState.STARTING


def test_the_second_hang_within_an_hour_tries_eager_mode_once() -> None:
    """Also when the server served well between; with eager mode on, the same flags again."""
    built = begun()
    hang(built)
    built.tick(after_s=900.0)
    built.tick(after_s=900.0)  # a good run: failures in a row are forgotten, the hang is not
    hang(built)
    assert built.flags["enforce-eager"] is True
    assert changes(built)[-1].proposal.policy == "hang_again"
    hang(built)
    assert changes(built)[-1].action is Action.RETRY
    assert built.flags["enforce-eager"] is True


def test_a_hang_after_more_than_an_hour_is_a_first_one() -> None:
    """Two hangs a night apart are no reason for eager mode."""
    built = begun()
    hang(built)
    built.tick(after_s=3600.0)
    hang(built)
    assert "enforce-eager" not in built.flags
    assert changes(built)[-1].action is Action.RETRY


def test_eager_mode_that_may_not_move_is_left_alone() -> None:
    """Without the operator's guard for it, hangs are answered by the same flags."""
    built = house(replace(settings(Slo()), guard=Guard({})))
    built.loop.begin()
    built.ready()
    hang(built)
    hang(built)
    assert "enforce-eager" not in built.flags


def test_a_paused_vllmd_tells_a_hang_and_leaves_it_alone() -> None:
    """Hands off holds for a hang too; when the pause ends it is ended at the next reading."""
    built = begun()
    built.loop.pause(Pause(built.clock.now_s(), None, "anna", "driver"))
    stand_still(built, 200)
    assert built.server.hung is None
    last = built.told[-1].last_decision
    assert isinstance(last, Hold)
    assert last.reason is HoldReason.HANGS
    built.loop.resume("anna")
    stand_still(built, 5)
    assert isinstance(built.server.hung, Hung)


def test_a_pause_that_keeps_recovery_lets_a_hang_be_ended() -> None:
    """What vllmd may still do in such a pause is to start a failed server again."""
    built = begun()
    built.loop.pause(Pause(built.clock.now_s(), None, "anna", "driver", keeps_recovery=True))
    stand_still(built, 130)
    built.hung()
    assert built.state == ServerState.STARTING
