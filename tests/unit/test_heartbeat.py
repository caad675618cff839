"""The heartbeat: a silence with work is a hang within one step's time, and everything honest is none."""

from dataclasses import dataclass, field, replace

import pytest

from vllmd.decide.heartbeat import Pulse, explained, felt, hangs, is_seen, limit_s, told
from vllmd.model.flags import Flags
from vllmd.model.live import Heartbeat
from vllmd.model.snapshot import Activity, Metrics, Snapshot

GAP_S = 3.0
STALL_S = 120.0
BUSY_S_EACH_S = 1.0  # of CPU, by a process that computes
PAGE = Metrics({"requests_running": 4.0, "requests_waiting": 0.0, "awake": 1.0})
IDLE_PAGE = Metrics({"requests_running": 0.0, "requests_waiting": 0.0, "awake": 1.0})
BEAT = Heartbeat(steps=500, step_s=1000.0, longest_s=0.3, running=4, waiting=0, tokens=4, own_s=0.0, pid=7)


STOPPED = Activity(50.0, stopped=True)


@dataclass
class Watch:
    """Looks once a second at an engine that makes no step, and reads it where it is near its limit."""

    beat: Heartbeat | None = BEAT
    metrics: Metrics | None = PAGE
    paused: bool | None = None
    compiling: bool = False
    in_flight: int | None = None
    activity: Activity | None = field(default_factory=lambda: Activity(50.0))
    busy: float = 0.0  # CPU seconds a second
    generation: int = 1
    now_s: float = 1000.0
    pulse: Pulse = field(default_factory=Pulse)

    def look(self, after_s: float = 1.0) -> bool:
        """Let time pass and take a reading; return whether the engine hangs."""
        self.now_s += after_s
        if self.activity is not None:
            self.activity = replace(self.activity, cpu_s=self.activity.cpu_s + self.busy * after_s)
        self.pulse = felt(self.pulse, self.beat, self.generation, self.now_s, GAP_S)
        snapshot = Snapshot(
            0.0, self.generation, self.metrics, None, paused=self.paused, compiling=self.compiling, beat=self.beat
        )
        snapshot = replace(snapshot, in_flight=self.in_flight)
        snapshot = replace(snapshot, activity=self.activity if self.pulse.silent_s > 2.5 else None)
        self.pulse = explained(self.pulse, snapshot)
        return hangs(self.pulse, snapshot, STALL_S)

    def found_after_s(self, within_s: int = 600) -> int | None:
        """Return after how many looks it is taken for a hang, None for never."""
        return next((number for number in range(1, within_s + 1) if self.look()), None)


@pytest.mark.parametrize(
    ("longest_s", "found_s"), [(0.0, 7), (0.3, 7), (0.96, 7), (3.2, 18), (20.0, 102), (500.0, 122)]
)
def test_a_stopped_engine_is_found_within_five_times_its_longest_step(longest_s: float, found_s: int) -> None:
    """At least 5 s, at most the operator's limit; looks come every second, and the first one begins the row."""
    assert Watch(replace(BEAT, longest_s=longest_s), activity=STOPPED).found_after_s() == found_s


def test_a_deadlocked_engine_stands_still_without_being_stopped() -> None:
    """It uses no CPU; a tick now and then, of a thread beside it, is none. It may sleep through a long step: 30 s."""
    assert Watch(busy=0.0).found_after_s() == 32
    assert Watch(busy=0.03).found_after_s() == 32
    assert Watch(replace(BEAT, longest_s=9.0)).found_after_s() == 92


def test_a_first_request_that_no_page_shows_is_work() -> None:
    """Its first step hangs: the page still says that nothing runs, and the API server has it."""
    assert Watch(metrics=IDLE_PAGE, in_flight=1, activity=STOPPED).found_after_s() == 7


def test_one_stopped_rank_is_a_hang_although_the_others_spin() -> None:
    """They wait for it with all their CPU."""
    assert Watch(busy=2.0, activity=STOPPED).found_after_s() == 7


HONEST = {
    "an engine with nothing to do": Watch(replace(BEAT, running=0)),
    "requests that wait for what their clients still send": Watch(replace(BEAT, running=0, waiting=2)),
    "no heartbeat, or another engine's": Watch(None),
    "a kernel that the engine builds itself": Watch(busy=BUSY_S_EACH_S),
    "a step of a kind that is long, on a busy host": Watch(busy=0.1),
    "an adapter that is read from a disk": Watch(activity=Activity(50.0, disk=True)),
    "a compiler at work, and nobody else": Watch(compiling=True),
    "a paused server": Watch(paused=True),
    "a sleeping server": Watch(metrics=replace(PAGE, gauges={**PAGE.gauges, "awake": 0.0})),
    "a server without a request, whose engine's words are old": Watch(metrics=IDLE_PAGE, in_flight=0),
    "a server without a request that does not count them": Watch(metrics=IDLE_PAGE),
    "a page that does not answer, so that nobody knows whether it sleeps": Watch(metrics=None),
    "a reading that did not look": Watch(activity=None),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_silence_never_becomes_a_hang(name: str) -> None:
    """Ten minutes of it, by the heartbeat alone: the metrics page has its own limit."""
    assert HONEST[name].found_after_s() is None


def test_a_hang_after_an_honest_silence_is_found_from_its_end_on() -> None:
    """The first kernels take 3 s, the compiler 40: neither is counted once it is over."""
    watch = Watch(compiling=True, activity=STOPPED)
    assert watch.found_after_s(40) is None
    watch.compiling = False
    assert watch.found_after_s() == 6


def test_a_pause_between_two_bursts_of_work_is_no_hang() -> None:
    """An adapter that is fetched: its process computes for 4 s and waits for the next bytes for 2, twenty times."""
    watch = Watch()
    for _ in range(20):
        watch.busy = 1.0
        assert watch.found_after_s(4) is None
        watch.busy = 0.0
        assert watch.found_after_s(2) is None


def test_a_hang_is_found_when_the_page_answers_again() -> None:
    """What is missing is only whether it sleeps; the silence itself is known."""
    watch = Watch(metrics=None, activity=STOPPED)
    assert watch.found_after_s(30) is None
    watch.metrics = PAGE
    assert watch.look()


def test_a_step_ends_the_silence() -> None:
    """However long it was: it is the longest step from then on."""
    watch = Watch(busy=0.0)
    for number in range(50):
        assert watch.found_after_s(4) is None
        watch.beat = replace(BEAT, steps=501 + number, step_s=watch.now_s)
    assert watch.pulse.silent_s <= 4.0


def test_a_silence_is_counted_from_the_step_not_from_the_look() -> None:
    """A step that began 0.9 s before the look that saw it."""
    watch = Watch()
    watch.look()
    watch.beat = replace(BEAT, steps=501, step_s=watch.now_s + 0.1)
    watch.look()
    assert watch.pulse.silent_s == pytest.approx(0.9)


@pytest.mark.parametrize("step_s", [0.0, 999.0, 5000.0])
def test_a_time_that_cannot_be_is_not_believed(step_s: float) -> None:
    """A step that was seen between two looks began between them, whatever its word says."""
    watch = Watch()
    watch.look()
    watch.beat = replace(BEAT, steps=501, step_s=step_s)
    watch.look()
    assert 0.0 <= watch.pulse.silent_s <= 1.0


def test_after_an_adoption_the_silence_begins_with_the_first_look() -> None:
    """What passed while nobody looked is not known: host and engine may have been frozen together."""
    watch = Watch(replace(BEAT, step_s=10.0), activity=STOPPED)
    watch.look()
    assert watch.pulse.silent_s == 0.0
    assert watch.found_after_s() == 6


def test_a_frozen_host_is_no_silence() -> None:
    """An hour in which vllmd did not look, either; from then on the limit counts anew."""
    watch = Watch(activity=STOPPED)
    assert watch.found_after_s(4) is None
    assert not watch.look(after_s=3600.0)
    assert watch.pulse.silent_s == 0.0
    assert watch.found_after_s() == 6


def test_another_launch_begins_anew() -> None:
    """With as many steps by chance."""
    watch = Watch()
    assert watch.found_after_s(4) is None
    watch.generation = 2
    assert not watch.look()
    assert watch.pulse.silent_s == 0.0


def test_a_look_that_comes_out_of_order_changes_nothing() -> None:
    """A reading is taken in after the look that followed it."""
    before = felt(felt(Pulse(), BEAT, 1, 1000.0, GAP_S), BEAT, 1, 1002.0, GAP_S)
    assert felt(before, BEAT, 1, 1001.5, GAP_S) == before


def test_the_operators_limit_is_never_exceeded() -> None:
    """A stall_timeout below 5 s holds for the heartbeat, too."""
    pulse = felt(Pulse(), BEAT, 1, 1000.0, GAP_S)
    assert limit_s(pulse, 3.0, stopped=True) == limit_s(pulse, 3.0, stopped=False) == 3.0


def test_what_is_told_names_the_heartbeat() -> None:
    """So that an operator can tell it from what the metrics page shows."""
    watch = Watch(activity=STOPPED)
    watch.found_after_s()
    assert told(watch.pulse) == (
        "no heartbeat of its engine for 6.0 s with 4 requests running and 0 waiting; its longest step took 0.3 s"
    )


@pytest.mark.parametrize(
    ("backend", "seen"), [(None, True), ("mp", True), ("uni", True), ("ray", False), ("my.Executor", False)]
)
def test_workers_elsewhere_are_not_seen(backend: str | None, seen: bool) -> None:  # noqa: FBT001 - a table's column
    """Ray's live in another session, maybe on another host: that its own processes stand still says nothing."""
    flags = Flags() if backend is None else Flags((("distributed-executor-backend", backend),))
    assert is_seen(flags) is seen


def test_a_server_that_may_fetch_adapters_is_not_judged_by_its_heartbeat() -> None:
    """A worker that waits for a hub stands still, and comes to its end."""
    assert not is_seen(Flags((("enable-lora", True),)))
