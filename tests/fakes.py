"""Hand-written stand-ins for the ports, and builders of readings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vllmd.model.decision import Action, Change, Effect, Outcome, Verification
from vllmd.model.failure import Failure
from vllmd.model.flags import Flags
from vllmd.model.handover import Handover
from vllmd.model.live import Knob, Live
from vllmd.model.orders import Forget, Pause, Resume, SetLive
from vllmd.model.server import Hung, Launch, Left, ServerEvent
from vllmd.model.snapshot import Histogram, Metrics, Snapshot
from vllmd.model.start_times import Started
from vllmd.model.status import DecisionRecord
from vllmd.model.tried import Good, Tried
from vllmd.ports import Entry

# The lower edges of vllm:inter_token_latency_seconds, in seconds.
ITL_EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, float("inf"))


class FakeClock:
    """A clock that stands until it is moved."""

    def __init__(self, at_s: float = 1_000_000.0) -> None:
        self.at_s = at_s
        self.set_by_s = 0.0  # somebody set the time of day by so much

    def now_s(self) -> float:
        """Return the time of day."""
        return self.at_s + self.set_by_s

    def monotonic_s(self) -> float:
        """Return the time."""
        return self.at_s


class FakeLive:
    """Live values of an engine that makes a step whenever the test says so."""

    def __init__(self) -> None:
        self.offered = Live.nothing("the server has not loaded vllmd_shim")
        self.asked: dict[str, int | None] = {}

    def offer(self, **launched: int) -> None:
        """Offer flags (underscores for dashes) with what they were launched with."""
        knobs = {
            name.replace("_", "-"): Knob("", launched=value, asked=None, seen=None, in_force=value)
            for name, value in launched.items()
        }
        self.offered = Live({**self.offered.knobs, **knobs})

    def read(self) -> Live:
        """Return what is offered."""
        return self.offered

    def ask(self, flag: str, value: int | None) -> None:
        """Take an order."""
        self.asked[flag] = value
        knob = replace(self.offered.knobs[flag], asked=value)
        self.offered = replace(self.offered, knobs={**self.offered.knobs, flag: knob})

    def step(self) -> None:
        """Make a step: what is asked for is in force."""
        knobs = {
            flag: replace(knob, seen=knob.asked, in_force=knob.asked or knob.launched)
            for flag, knob in self.offered.knobs.items()
        }
        self.offered = replace(self.offered, knobs=knobs)


class FakeServer:
    """Counts living servers: a launch beside a living one, or a stop of none, is an error of the caller."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.living: Launch | None = None
        self.stopping = False
        self.plain = ""  # why a restart would be a plain one
        self.waiting = False  # whether connections wait for the next launch
        self.handover: Handover | None = None  # how a restart went
        self.gateless: str | None = "this fake has no gate"  # why the next server is not prepared beside this one
        self.prepared: Launch | None = None  # beside the living one
        self.hung: Hung | None = None
        self.left_behind = Left()
        self.adopted: list[Launch] = []
        self.live = FakeLive()

    async def events(self) -> ServerEvent:
        """Give nothing: tests hand events to the loop themselves."""
        raise NotImplementedError

    def launch(self, launch: Launch) -> None:
        """Begin a launch."""
        assert self.living is None, "two servers"
        assert self.prepared in {None, launch}, "another one is prepared"
        self.prepared = None
        self.launches.append(launch)
        self.living = launch
        self.stopping = False

    def no_gate(self, flags: Flags) -> str | None:
        """Say what the test says."""
        return f"{len(flags)} flags, and {self.gateless}" if self.gateless else None

    def prepare(self, launch: Launch) -> None:
        """Begin a launch beside the living one."""
        assert self.living is not None, "nothing to be beside"
        assert self.prepared is None, "two beside it"
        self.prepared = launch

    def give_up(self) -> None:
        """End what is beside it."""
        self.prepared = None

    def left(self) -> Left:
        """Return what the test says that an earlier vllmd left."""
        return self.left_behind

    def adopt(self, launch: Launch) -> None:
        """Take over what was left."""
        assert self.living is None, "two servers"
        assert launch.generation == self.left_behind.generation, "nothing of it was left"
        self.adopted.append(launch)
        self.living = launch

    def stop(self) -> None:
        """Begin to stop."""
        self.stopping = True
        self.waiting = False
        self.prepared = None

    def restart(self) -> None:
        """Begin to stop; connections wait."""
        self.stopping = self.waiting = True

    def plain_restart(self, flags: Flags) -> str | None:
        """Say what the test says."""
        return f"{len(flags)} flags, and {self.plain}" if self.plain else None

    @property
    def parked(self) -> bool:
        """Whether connections wait for the next launch."""
        return self.waiting

    def release(self) -> Handover | None:
        """Let none wait; tell how it went where a restart was under way."""
        waiting, self.waiting = self.waiting, False
        return self.handover if waiting else None

    def end(self, silent_s: float, reason: str) -> None:
        """Begin to end a server that hangs."""
        assert self.living is not None, "no server to end"
        self.hung = Hung(self.living.generation, silent_s, reason)

    def kill(self) -> None:
        """Hurry a stop."""
        self.stopping = True

    def ended(self) -> int:
        """End the living server; return its generation."""
        assert self.living is not None
        generation = self.living.generation
        self.living = None
        return generation


class MemoryLedger:
    """A ledger that forgets with the process."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, Entry]] = []
        self._decision = 0
        self._generation = 0
        self.problem: str | None = None

    def next_decision_id(self) -> str:
        """Return the next id."""
        self._decision += 1
        return f"D{self._decision}"

    def next_generation(self) -> int:
        """Return the next generation."""
        self._generation += 1
        return self._generation

    def record(self, entry: Entry, at_s: float) -> None:
        """Keep an entry."""
        self.entries.append((at_s, entry))

    def changes(self, since_s: float) -> Sequence[Change]:
        """Return the changes since a time."""
        return [e for t, e in self.entries if isinstance(e, Change) and t >= since_s]

    def failures_since(self, since_s: float) -> Sequence[tuple[float, Failure]]:
        """Return the failures since a time."""
        return [(t, e) for t, e in self.entries if isinstance(e, Failure) and t >= since_s]

    def recent(self, limit: int = 20) -> tuple[DecisionRecord, ...]:
        """Return the last changes with what became of them."""
        outcomes = {e.change.id: e for _, e in self.entries if isinstance(e, Outcome)}
        verifications = {e.change_id: e for _, e in self.entries if isinstance(e, Verification)}
        changes = [e for _, e in self.entries if isinstance(e, Change)][-limit:]
        return tuple(DecisionRecord(c, outcomes.get(c.id), verifications.get(c.id)) for c in changes)

    def moves(self) -> list[Change]:
        """Return the changes that may have moved flags."""
        moving = {Action.RESTART, Action.RECOVER, Action.ROLLBACK}
        off = {e.change_id for _, e in self.entries if isinstance(e, Verification) and e.effect is Effect.CALLED_OFF}
        return [change for change in self.changes(float("-inf")) if change.action in moving and change.id not in off]

    def harmed(self) -> list[Change]:
        """Return the changes that did harm or did not serve, since the operator wanted them forgotten."""
        entries = [entry for _, entry in self.entries]
        forgotten_s = max((entry.at_s for entry in entries if isinstance(entry, Forget)), default=0.0)
        bad = {Effect.WORSE, Effect.FAILED}
        ids = {entry.change_id for entry in entries if isinstance(entry, Verification) and entry.effect in bad}
        changes = [entry for entry in entries if isinstance(entry, Change)]
        voluntary = {Action.RESTART, Action.LIVE}
        return [c for c in changes if c.action in voluntary and c.id in ids and c.at_s > forgotten_s]

    def tried(self, fingerprint: str) -> list[Tried]:
        """Return the launches with this fingerprint, newest first."""
        entries = [entry for _, entry in self.entries]
        forgotten_s = max((entry.at_s for entry in entries if isinstance(entry, Forget)), default=0.0)
        good = {entry.generation: entry.at_s for entry in entries if isinstance(entry, Good)}
        failed = {entry.generation: entry for entry in reversed(entries) if isinstance(entry, Failure)}
        launches = [
            e
            for e in entries
            if isinstance(e, Launch) and e.fingerprint == fingerprint and e.started_at_s > forgotten_s
        ]
        return [Tried(e, good.get(e.generation), failed.get(e.generation)) for e in reversed(launches)]

    def launch_of(self, generation: int) -> Launch | None:
        """Return a launch."""
        launches = (e for _, e in reversed(self.entries) if isinstance(e, Launch))
        return next((launch for launch in launches if launch.generation == generation), None)

    def starts(self, fingerprint: str, limit: int) -> list[Started]:
        """Return the last starts with this fingerprint, newest first."""
        entries = [entry for _, entry in self.entries]
        of_it = {e.generation for e in entries if isinstance(e, Launch) and e.fingerprint == fingerprint}
        return [e for e in reversed(entries) if isinstance(e, Started) and e.generation in of_it][:limit]

    def pause(self) -> Pause | None:
        """Return the last pause that was not ended."""
        orders = [entry for _, entry in self.entries if isinstance(entry, Pause | Resume)]
        return orders[-1] if orders and isinstance(orders[-1], Pause) else None

    def live_orders(self, generation: int) -> list[SetLive]:
        """Return what was set live in a generation, and what decisions set in any and keep, oldest first."""
        orders = [entry for _, entry in self.entries if isinstance(entry, SetLive)]
        forgotten_s = max((entry.at_s for _, entry in self.entries if isinstance(entry, Forget)), default=0.0)
        return [o for o in orders if o.generation == generation or (o.decided and o.at_s > forgotten_s)]


def histogram(counts: Mapping[float, float], edges: Sequence[float] = ITL_EDGES) -> Histogram:
    """Return a histogram from {upper edge: observations in that bucket}."""
    cumulated = 0.0
    buckets = []
    for edge in edges:
        cumulated += counts.get(edge, 0.0)
        buckets.append((edge, cumulated))
    return Histogram(tuple(buckets), cumulated, sum(e * n for e, n in counts.items() if e != float("inf")))


def reading(
    at_s: float, generation: int, itl: Mapping[float, float], prompt_tokens: float = 0.0, requests: float = 0.0
) -> Snapshot:
    """Return a snapshot whose counters stand at these totals."""
    counters = {
        "prompt_tokens": prompt_tokens,
        "generation_tokens": sum(itl.values()),
        "requests_finished": requests,
        "preemptions": 0.0,
        "steps": sum(itl.values()),
    }
    gauges = {"requests_running": 4.0, "requests_waiting": 0.0, "kv_cache_usage": 0.2}
    metrics = Metrics(gauges, counters, {"itl": histogram(itl)})
    return Snapshot(at_s, generation, metrics, None)


class Traffic:
    """Serves a steady load to readings: a share of the gaps above the limit of 50 ms."""

    def __init__(
        self, clock: FakeClock, share_slow: float, gaps_per_s: float = 20.0, prompt_per_s: float = 500.0
    ) -> None:
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._share_slow = share_slow
        self._gaps_per_s = gaps_per_s
        self._prompt_per_s = prompt_per_s

    def read(self, generation: int) -> Snapshot:
        """Return the reading of this moment."""
        age_s = self._clock.monotonic_s() - self._began_s
        gaps = age_s * self._gaps_per_s
        itl = {0.025: gaps * (1 - self._share_slow), 0.2: gaps * self._share_slow}
        return reading(self._clock.now_s(), generation, itl, age_s * self._prompt_per_s, age_s)
