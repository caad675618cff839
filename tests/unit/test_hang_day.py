"""A day of everything that looks like a hang and is none, seen through the part that looks for hangs: no alarm.

Twenty-four hours at a reading every 5 s, each seed another order and other lengths. The world tells the truth in its
pages; the test moves the clock and the readings as a busy host does. With a heartbeat it is looked at every second, and
its engine makes a step each moment that an engine would.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from house import House, house, settings
from vllmd.model.canary import CanaryReply, CanaryResult
from vllmd.model.live import Heartbeat
from vllmd.model.settings import Engine, Slo
from vllmd.model.snapshot import Activity, Metrics, Snapshot

DAY_S = 86_400.0
EVERY_S = 5.0
PREFILL_S = 110.0  # the longest first one that an operator's limit of 120 s is meant to outlast
STALL_S = Engine().stall_timeout_s
BETWEEN_S = 18.0  # two readings that are late: by so much a silence may be seen longer, or later, than it is
PREFILL_GROWTH = 1.3  # of a prompt that is longer than any before, in its silence
LONGEST_PREFILL_S = 900.0
PID = 7
LOOK_S = 1.0
QUICK_S = 0.05  # a step of tokens alone
CHUNK_GROWTH = 2.0  # of a step that is longer than any before it, in which no CPU need be used: a device computes


@dataclass
class SteppingEngine:
    """What an engine tells of its steps, in a world that moves by seconds."""

    chance: random.Random
    steps: int = 0
    step_s: float = 0.0
    lasts_s: float | None = QUICK_S  # None: it makes no step
    longest_s: float = 0.0
    busy: float = 1.0  # of a core
    cpu_s: float = 0.0
    disk: bool = False
    stopped: bool = False  # by a signal
    compiler: bool = False
    rested: bool = True  # no request ran throughout

    @property
    def activity(self) -> Activity:
        """What its processes do, as a reading shows it."""
        return Activity(self.cpu_s, stopped=self.stopped, disk=self.disk)

    def live(self, now_s: float, seconds: float, running: float) -> None:
        """Make the steps of this time, if any."""
        self.cpu_s += self.busy * seconds * (running > 0)
        while running and self.lasts_s is not None and self.step_s + self.lasts_s <= now_s:
            ended_s = self.step_s + self.lasts_s if self.lasts_s > seconds else now_s - self.chance.uniform(0, QUICK_S)
            if not self.rested:
                self.longest_s = max(self.longest_s, self.lasts_s, ended_s - self.step_s - seconds)
            self.steps, self.step_s, self.rested = self.steps + 1, ended_s, False
        self.rested = self.rested or running == 0

    def beat(self, running: float) -> Heartbeat:
        """Return its words: what ran in its last step."""
        return Heartbeat(self.steps, self.step_s, self.longest_s, int(running), 0, 1, 0.0, PID)


class Day:
    """A server, its day, and the vllmd that reads it."""

    def __init__(self, seed: int, canary_s: float | None, *, beats: bool = False) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - a day, not a secret
        self.house: House = house(replace(settings(Slo()), engine=Engine(canary_s=canary_s)))
        self.house.loop.begin()
        self.house.ready()
        self.counters = dict.fromkeys(("prompt_tokens", "generation_tokens", "steps", "requests_finished"), 0.0)
        self.running = self.awake = 0.0
        self.paused = False
        self.engine = SteppingEngine(self.chance)
        self.beats = beats
        self.missed = 0.01  # share of readings to which the page does not come
        self.longest_s = PREFILL_S / PREFILL_GROWTH
        self.answered = 0
        self.alarms: list[str] = []

    def live(self) -> None:
        """Let a day pass, or a little more: everything in one order, then in another."""
        began_s = self.house.clock.at_s
        kinds: tuple[Callable[[], None], ...] = (
            self.rests,
            self.works,
            self.prefills,
            self.sleeps,
            self.is_paused,
            self.answers_nothing,
            self.clock_is_set,
            self.host_is_frozen,
            self.is_restarted,
            self.takes_time_for_a_step,
        )
        while self.house.clock.at_s - began_s < DAY_S:
            for kind in self.chance.sample(kinds, len(kinds)):
                self.awake = 1.0
                self.engine.lasts_s, self.engine.busy = QUICK_S, self.chance.choice((0.0, 1.0, 8.0))
                kind()

    # What a day is made of

    def rests(self) -> None:
        """Have no request for up to two hours."""
        self.running = 0.0
        self.still(self.chance.uniform(10, 7200))

    def works(self) -> None:
        """Answer requests, with tokens at every reading."""
        for _ in self.readings(self.chance.uniform(60, 3600)):
            self.running = float(self.chance.randint(1, 200))
            self.moves()

    def prefills(self) -> None:
        """Read a prompt of up to 100,000 tokens: nothing is told before its first token, and it comes late."""
        self.running = float(self.chance.randint(1, 4))
        self.moves()
        silence_s = self.chance.uniform(5, min(LONGEST_PREFILL_S, PREFILL_GROWTH * self.longest_s))
        self.longest_s = max(self.longest_s, silence_s)
        self.engine.lasts_s = self.chance.uniform(0.1, max(5.0, CHUNK_GROWTH * self.engine.longest_s) - 1.0)
        self.still(silence_s)
        self.engine.lasts_s = QUICK_S
        self.moves()
        self.still(2 * EVERY_S)  # somebody sees that it ended

    def takes_time_for_a_step(self) -> None:
        """Build a kernel in the process, or read an adapter's weights: no step meanwhile, and no token."""
        self.running, self.engine.lasts_s = 2.0, None
        self.moves()
        self.engine.busy, self.engine.disk = self.chance.choice(((1.0, False), (0.2, False), (0.0, True)))
        self.still(self.chance.uniform(5, PREFILL_S / PREFILL_GROWTH))
        self.engine.disk, self.engine.lasts_s = False, QUICK_S
        self.moves()
        self.still(2 * EVERY_S)

    def sleeps(self) -> None:
        """Sleep, with requests that rest, and wake up."""
        self.running, self.awake, self.engine.lasts_s = 3.0, 0.0, None
        self.still(self.chance.uniform(60, 7200))

    def is_paused(self) -> None:
        """Keep requests waiting because somebody used /pause."""
        self.running, self.paused, self.engine.lasts_s = 3.0, True, None
        self.still(self.chance.uniform(60, 3600))
        self.paused = False
        self.moves()

    def answers_nothing(self) -> None:
        """Show a page seldom, with an engine behind it that works unseen."""
        self.running, self.missed = 8.0, 0.9
        for _ in self.readings(self.chance.uniform(60, 600)):
            if self.chance.random() < 0.2:
                self.moves()
        self.missed = 0.01

    def clock_is_set(self) -> None:
        """Have the time of day set by hours, forward and back, in the middle of a prefill."""
        self.running = 1.0
        self.moves()
        for _ in range(4):
            self.house.clock.set_by_s += self.chance.uniform(-20, 20) * 3600
            self.still(20)
        self.moves()

    def host_is_frozen(self) -> None:
        """Stand still for up to an hour, the engine and vllmd alike."""
        self.running = 2.0
        self.moves()
        self.still(EVERY_S)
        self.house.clock.at_s += self.chance.uniform(60, 3600)
        self.still(EVERY_S)
        self.moves()

    def is_restarted(self) -> None:
        """Begin anew, with counters from 0 and a first request that waits for a compilation."""
        self.house.loop.restart()
        self.house.drained()
        self.house.clock.at_s += 60
        self.house.ready()
        self.counters = dict.fromkeys(self.counters, 0.0)
        self.engine = SteppingEngine(self.chance, step_s=self.house.clock.at_s)
        self.longest_s = PREFILL_S / PREFILL_GROWTH
        self.running = 0.0
        self.still(self.chance.uniform(0, 120))
        self.running = 1.0
        compiled_s = self.chance.uniform(30, PREFILL_S)
        self.longest_s = max(self.longest_s, compiled_s)
        self.engine.compiler, self.engine.busy = self.chance.choice(((True, 0.0), (False, 1.0)))
        self.engine.lasts_s = compiled_s
        self.still(compiled_s)
        self.engine.compiler, self.engine.lasts_s = False, QUICK_S
        self.moves()
        self.still(2 * EVERY_S)

    # How time passes

    def moves(self) -> None:
        """Let the engine have done something since the last reading."""
        for name in self.chance.sample(sorted(self.counters), self.chance.randint(1, len(self.counters))):
            self.counters[name] += self.chance.randint(1, 5000)

    def still(self, seconds: float) -> None:
        """Let time pass in which nothing moves, but for a canary that an engine with nothing else to do answers."""
        for _ in self.readings(seconds):
            order = self.house.loop.stall.canary.order
            if order is not None and self.running == 0 and self.awake:
                self.answered += 1
                self.moves()
                self.house.loop.stall.canary.answered(CanaryReply(order.number, CanaryResult.ANSWERED))

    def readings(self, seconds: float) -> Iterator[None]:
        """Take a reading every 5 s, some of them late by as much as a page may take, some without a page."""
        ends_s = self.house.clock.at_s + seconds
        while self.house.clock.at_s < ends_s:
            yield
            late_s = self.chance.uniform(0, 4) if self.chance.random() < 0.02 else 0.0
            self.passes(EVERY_S + late_s)
            self.read()

    def passes(self, seconds: float) -> None:
        """Let time pass; where there is a heartbeat it is felt every second, and near its limit the server is read."""
        ends_s, stall = self.house.clock.at_s + seconds, self.house.loop.stall
        while self.beats and self.house.clock.at_s + LOOK_S < ends_s:
            self.house.clock.at_s += LOOK_S
            self.engine.live(self.house.clock.at_s, LOOK_S, self.running)
            assert self.house.server.living is not None
            stall.feel(self.engine.beat(self.running), self.house.server.living.generation)
            if stall.suspects:
                self.read()
        self.engine.live(ends_s, ends_s - self.house.clock.at_s, self.running)
        self.house.clock.at_s = ends_s

    def read(self) -> None:
        """Take one reading, as the daemon does: whether it is paused is asked where a hang is near."""
        stall, clock, launch = self.house.loop.stall, self.house.clock, self.house.server.living
        assert launch is not None
        gauges = {"requests_running": self.running, "requests_waiting": 0.0, "kv_cache_usage": 0.1, "awake": self.awake}
        missed = self.chance.random() < self.missed
        snapshot = Snapshot(
            clock.now_s(),
            launch.generation,
            None if missed else Metrics(gauges, dict(self.counters)),
            None,
            monotonic_s=clock.monotonic_s(),
            paused=self.paused or None if stall.suspects else None,
            compiling=self.engine.compiler if stall.suspects and self.beats else None,
            activity=self.engine.activity if stall.suspects and self.beats else None,
            beat=self.engine.beat(self.running) if self.beats else None,
        )
        if stall.look(snapshot, hands_off=False, paused=False):
            self.alarms.append(f"at {clock.at_s:.0f}: {self.house.loop.supervisor.life.message}")


@pytest.mark.parametrize("beats", [False, True], ids=["page", "heartbeat"])
@pytest.mark.parametrize("canary_s", [None, 60.0], ids=["no canary", "canary"])
@pytest.mark.parametrize("seed", range(8))
def test_a_day_of_honest_extremes_brings_no_alarm_and_a_hang_after_it_is_found(
    seed: int, canary_s: float | None, *, beats: bool
) -> None:
    """Nothing that is no hang is taken for one, and after all of it one that is one is still found."""
    day = Day(seed, canary_s, beats=beats)
    day.live()
    assert day.alarms == []
    assert (day.answered > 0) == (canary_s is not None)
    day.running, day.awake, day.missed = 4.0, 1.0, 0.0
    day.moves()
    day.engine.lasts_s, day.engine.busy, day.engine.stopped = None, 0.0, True
    limit_s = max(STALL_S, 3 * (day.longest_s + BETWEEN_S))
    if beats:
        limit_s = min(STALL_S, max(5.0, 5 * day.engine.longest_s))
    for _ in day.readings(limit_s + BETWEEN_S):
        if day.alarms:
            break
    assert day.alarms
    assert ("no heartbeat" in day.alarms[0]) is beats
