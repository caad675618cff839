"""The driver: one fault after the other, drawn from a seed, and after each a look whether all is as it must be."""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from chaos.faults import Kind, available
from chaos.load import answers
from chaos.processes import Process, Role
from chaos.scene import Scene
from chaos.violation import Violation
from vllmd.observe.processes import listeners

SERVING_LIMIT_S = 90.0  # the longest chain: a drain and a grace of 30 s, a wait of 16 s, a start on a busy host
_PATIENCE_S = 2.0  # of the operator, with a launch that waits
_GAP_S = (0.0, 1.2)  # between the faults of a burst: within a start, a backoff, a stop
_ANSWER_LIMIT_S = 15.0  # of what waited, once a server serves
_FORGET_EVERY = 25  # what hung, crashed and was banned so often is nobody's real host
_HISTORY = 20
_PREPARED = "is prepared beside it"  # of a status: the next server, before this one makes room


@dataclass(slots=True)
class Tally:
    """What was done and how long it took until the server served again, in seconds."""

    seed: int
    burst: int  # the most faults in a row without a look between them
    kinds: tuple[str, ...] = ()  # none: all
    times_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    history: deque[str] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    operator: Counter[str] = field(default_factory=Counter)  # what the operator had to do
    left_out: tuple[str, ...] = ()
    done: int = 0


class Driver:
    """Draws, injects, waits, checks. The same seed draws the same faults where the same kinds can be had."""

    def __init__(self, scene: Scene, tally: Tally, say: Callable[[str], None]) -> None:
        self._scene = scene
        self._tally = tally
        self._say = say

    def run(self, faults: int) -> None:
        """Inject so many faults; Violation at the first invariant that does not hold."""
        self._scene.service.start()
        self._settle()
        kinds = self._kinds()
        self._scene.watch.start()
        while self._tally.done < faults:
            self._burst(kinds, faults - self._tally.done)

    def _kinds(self) -> Sequence[Kind]:
        scene = self._scene
        met = {
            "mount": scene.storage.mounted,
            "nvml": scene.nvml.compiled,
            "clock": scene.clock.compiled,
            "network": scene.parks,
            "worker": any(p.role is Role.WORKER for p in scene.processes()),
        }
        kinds = available([need for need, is_met in met.items() if is_met], self._tally.kinds)
        if not kinds:
            raise ValueError(f"no such fault here: {', '.join(self._tally.kinds)}")
        self._tally.left_out = tuple(need for need, is_met in met.items() if not is_met)
        return kinds

    def _burst(self, kinds: Sequence[Kind], most: int) -> None:
        first = self._tally.done + 1
        chance = Random(f"{self._tally.seed}/{first}")  # noqa: S311 - faults, no secrets
        size = min(most, chance.randint(1, self._tally.burst))
        drawn = chance.choices(kinds, [kind.weight for kind in kinds], k=size)
        began: list[tuple[str, float]] = []
        for number, kind in enumerate(drawn, start=first):
            if number > first:
                time.sleep(chance.uniform(*_GAP_S))  # what is drawn: how far the last fault's consequences came
            at_s = time.monotonic()
            self._note(f"fault {number}: {kind.name}")
            self._note(f"         {kind.inject(self._scene, Random(chance.random()))}")  # noqa: S311 - ditto
            began.append((kind.name, at_s))
        self._settle()
        served_s = time.monotonic()
        for name, at_s in began:
            self._tally.times_s[name].append(served_s - at_s)
        self._tally.done += size
        self._note(f"         serves after {served_s - began[0][1]:.1f} s")
        if self._tally.done // _FORGET_EVERY > (first - 1) // _FORGET_EVERY:
            self._scene.service.order("forget")

    def _note(self, line: str) -> None:
        self._tally.history.append(f"{time.strftime('%H:%M:%S')} {line}")
        self._say(self._tally.history[-1])

    # What must hold

    def _settle(self) -> None:
        """Wait until a server serves, and check every invariant."""
        instance = self._until_serving()
        self._check_processes(self._scene.processes())
        self._check_port()
        self._scene.told.read()
        self._scene.told.compare(instance)

    def _until_serving(self) -> dict[str, object]:
        """Return the status once it says serving and a completion succeeds, the operator helping where vllmd holds."""
        deadline_s = time.monotonic() + SERVING_LIMIT_S
        waits_since_s: float | None = None
        while True:
            self._scene.service.tend()
            if self._scene.watch.found:
                raise Violation(self._scene.watch.found)
            instance = self._scene.service.instance()
            state = instance["state"]
            waits_since_s = (waits_since_s or time.monotonic()) if state == "backoff" else None
            if state == "serving" and answers(self._scene.url):
                instance = self._scene.service.status()
                # A restart that a fault asked for may still prepare the next server.
                if instance["state"] == "serving" and _PREPARED not in str(instance["message"]):
                    return instance
            if state == "held":
                self._end_hold(instance)
            elif waits_since_s is not None and time.monotonic() - waits_since_s > _PATIENCE_S:
                self._order("backoff: restart")
            if time.monotonic() > deadline_s:
                raise Violation(f"nothing serves after {SERVING_LIMIT_S:.0f} s: {state}, {instance.get('message')}")
            time.sleep(0.05)  # asked over a socket, which sends no event

    def _end_hold(self, instance: dict[str, object]) -> None:
        decision = instance.get("last_decision")
        reason = decision.get("reason") if isinstance(decision, dict) and decision.get("action") == "hold" else None
        if not reason or not instance.get("message"):
            raise Violation(f"held without a reason: {instance.get('message')!r}, {decision}")
        self._order(f"held ({reason}): restart")

    def _order(self, what: str) -> None:
        self._tally.operator[what] += 1
        self._note(f"         {what}")
        self._scene.service.order("restart")

    def _check_port(self) -> None:
        """Violation for a listener beside the server's, or a request that waits while the server serves."""
        if len(found := listeners(self._scene.port)) != 1:
            raise Violation(f"{len(found)} sockets listen on the server's port")
        for asking in self._scene.waiting:
            asking.join(_ANSWER_LIMIT_S)
            if asking.is_alive():
                raise Violation(f"a request of a planned restart still waits {_ANSWER_LIMIT_S:.0f} s later")
        self._scene.waiting.clear()

    def _check_processes(self, found: Sequence[Process]) -> None:
        """Violation for a process of another launch than the one that serves."""
        leaders = [p for p in found if p.role is Role.LEADER]
        strangers = [p for p in found if not leaders or p.session != leaders[0].session]
        if len(leaders) != 1 or strangers:
            raise Violation(
                f"{len(leaders)} leaders, {len(strangers)} processes of others: {'; '.join(map(str, found))}"
            )
