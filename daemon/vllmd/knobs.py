"""Knobs: what is set live in the running server. The operator's order wins over what decisions want, while it stands.

Nothing else is judged by what the operator set; what was decided is the value in force that the next step starts from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from vllmd.decide.gates import GateFacts
from vllmd.decide.plan import whole
from vllmd.decided import Decided
from vllmd.model.decision import Action, Change, Domain, Hold, HoldReason, Proposal, Wish
from vllmd.model.flags import Flags, FlagValue
from vllmd.model.life import ALIVE
from vllmd.model.live import LIVE_FLAGS, Knob, Live
from vllmd.model.orders import SetLive
from vllmd.model.server import ServerState
from vllmd.model.settings import Bounds, Guard
from vllmd.model.status import LiveStatus
from vllmd.ports import Clock
from vllmd.report.journal import Journal
from vllmd.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class _Standing:
    """An order that stands, and when it ends: by the monotonic clock, for the time of day may be set; None: never."""

    order: SetLive
    ends_s: float | None


class Knobs:
    """The live values in force, also those of an earlier daemon. The operator's end with their generation."""

    def __init__(self, supervisor: Supervisor, journal: Journal, clock: Clock) -> None:
        self._supervisor = supervisor
        self._journal = journal
        self._clock = clock
        self._standing: dict[str, _Standing] = {}  # by flag
        self._decided = Decided(journal, clock)
        self._recalled = False  # what an earlier daemon decided
        self.unwanted: set[tuple[str, FlagValue | None]] = set()  # what was decided and the operator ended
        self._generation: int | None = None
        self._ended_s: float | None = None  # when the last one ended, by the monotonic clock

    @property
    def status(self) -> LiveStatus | None:
        """What is told of a server that serves."""
        self._follow()
        if not self._serving:
            return None
        live = self._live
        silent_s = None if live.heartbeat is None else max(0.0, self._clock.monotonic_s() - live.heartbeat.step_s)
        orders = {**self._decided.orders, **{flag: standing.order for flag, standing in self._standing.items()}}
        return LiveStatus(live, tuple(orders.values()), silent_s, self._supervisor.plain_restart)

    @property
    def _serving(self) -> bool:
        return self._supervisor.life.state is ServerState.SERVING

    @property
    def _live(self) -> Live:
        return self._supervisor.live.read()

    @property
    def capacity(self) -> Mapping[str, int]:
        """What the running server was launched with, of the flags that are live in it."""
        knobs = self._live.knobs if self._serving else {}
        return {flag: knob.launched for flag, knob in knobs.items() if not knob.off and knob.launched is not None}

    def beside(self, facts: GateFacts) -> GateFacts:
        """Return what the gates are told, with what decisions set live in force beside the launch's flags."""
        flags, capacity = self._over(facts.flags), self.capacity
        barred = facts.barred_values | self.unwanted
        return replace(facts, flags=flags, launched=facts.flags, capacity=capacity, barred_values=barred)

    def _over(self, flags: Flags) -> Flags:
        values = {flag: self._decided.value(flag) for flag in self.capacity}
        return flags.changed({flag: str(v) for flag, v in values.items() if v is not None and v < self.capacity[flag]})

    def _knob(self, flag: str) -> Knob:
        return self._live.knobs.get(flag, Knob("the server does not tell"))

    def refusal(self, flag: str, value: int | None) -> str | None:
        """Return why a value cannot be set live, in words; None if it can. None as value is what was launched."""
        self._follow()
        if flag not in LIVE_FLAGS:
            known = " and ".join(f"--{name}" for name in LIVE_FLAGS)
            return f"--{flag} cannot be changed while the server runs, only {known}: change your command and restart"
        if not self._serving:
            return f"the server is {self._supervisor.life.state}: a live value is for one that serves"
        knob = self._knob(flag)
        back = value is None or value == knob.launched
        if back and (flag in self._standing or flag in self._decided.orders):
            return None
        if knob.off or knob.launched is None:
            return f"--{flag} cannot be changed without a restart: {knob.off}"
        if value is None or back:
            return f"--{flag} is {knob.launched}, as launched: nothing was set"
        if not 1 <= value <= knob.launched:
            limit = f"live it can be 1 to {knob.launched}, with which the server was launched"
            return f"--{flag} cannot be {value} without a restart: {limit}"
        return None

    def set(self, order: SetLive) -> Change:
        """Set a value that is not refused; return the change as it is recorded.

        What was launched ends what was set, and what was decided, which is not decided again.
        """
        self._follow()
        if order.value in {None, self._knob(order.flag).launched}:
            back = replace(order, value=None, until_s=None)
            if (value := self._decided.value(order.flag)) is not None:
                self.unwanted.add((order.flag, str(value)))
                self._decided.set(order.flag, None, order.by)
            return self._end(back, f"back to what was launched, by {order.by}")
        length_s = None if order.until_s is None else order.until_s - order.at_s
        ends_s = None if length_s is None else self._clock.monotonic_s() + length_s
        self._standing[order.flag] = _Standing(order, ends_s)
        end = "until it is set again" if length_s is None else f"for {length_s:.0f} s"
        return self._carry_out(order, f"set live {end}, by {order.by}")

    def take(self, change: Change) -> None:
        """Let what a decision sets live stand, from the engine's next step on, until another decision or the operator.

        Where the server does not serve it is asked once it does.
        """
        self._follow()
        for flag, value in change.proposal.changes.items():
            number, launched = whole(value), self._knob(flag).launched
            as_launched = number is not None and launched is not None and number >= launched
            self._decided.set(flag, None if as_launched else number, change.id)
        if self._serving:
            self._ask()

    def hand_over(self, change: Change) -> None:
        """Let nothing stand that was decided of the flags that a change moves with a launch of its own."""
        for flag in change.proposal.changes:
            if flag in self._decided.orders:
                self._decided.set(flag, None, change.id)

    def stands(self, change: Change) -> bool:
        """Return whether what a decision set live is still what is wanted."""
        self._follow()
        return any(order.by == change.id for order in self._decided.orders.values())

    def look(self) -> None:
        """End what has run out or cannot be reached; let the server be asked for what is in force, and no more."""
        self._follow()
        now_s, monotonic_s = self._clock.now_s(), self._clock.monotonic_s()
        for standing in tuple(self._standing.values()):
            order, off = standing.order, self._knob(standing.order.flag).off
            over = standing.ends_s is not None and monotonic_s >= standing.ends_s
            if (over and not off) or (off and self._serving):
                back = SetLive(now_s, "its end", order.flag, None, None, order.generation)
                to = "what was decided" if order.flag in self._decided.orders else "what was launched"
                self._end(back, f"back to {to}: the time that {order.by} set it for is over")
        if self._serving:
            self._renew()
            self._keep_within(self._supervisor.instance.settings.guard)
            self._ask()

    def hold(self, window_s: float) -> Hold | None:
        """Return why no flag is tuned now: a window of readings must all be of one value, and not of the operator's."""
        self._follow()
        orders = [standing.order for standing in self._standing.values()]
        if orders:
            told = ", ".join(f"{order.flag} is {order.value}, set by {order.by}" for order in orders)
            ends = [order.until_s for order in orders]
            until_s = max((end for end in ends if end is not None), default=None)
            return Hold(HoldReason.LIVE_SET, told, None if None in ends else until_s)
        if self._ended_s is not None and self._clock.monotonic_s() - self._ended_s < window_s:
            return Hold(HoldReason.LIVE_SET, "a value that was set live has ended; a whole window must pass")
        return None

    def clock_was_set(self) -> None:
        """Tell by the new time of day when what is set ends, and record it for the next daemon; its length stays."""
        now_s, monotonic_s = self._clock.now_s(), self._clock.monotonic_s()
        for flag, standing in self._standing.items():
            if standing.ends_s is not None:
                moved = replace(standing.order, at_s=now_s, until_s=now_s + standing.ends_s - monotonic_s)
                self._standing[flag] = replace(standing, order=moved)
                self._journal.order(moved)

    def _follow(self) -> None:
        """Take what was set in another generation: nothing in a new one, maybe something in one that is taken over."""
        life = self._supervisor.life
        generation = life.launch.generation if life.launch is not None and life.state in ALIVE else None
        if generation == self._generation:
            return
        self._generation, self._ended_s = generation, None
        now_s, monotonic_s = self._clock.now_s(), self._clock.monotonic_s()
        known = self._journal.live_orders(generation) if generation is not None else ()
        if generation is not None and not self._recalled:
            self._decided.recall(known)
            self._recalled = True
        last = {order.flag: order for order in known if not order.decided}
        self._standing = {
            flag: _Standing(order, None if order.until_s is None else monotonic_s + order.until_s - now_s)
            for flag, order in last.items()
            if order.value is not None
        }

    def _keep_within(self, guard: Guard) -> None:
        """Bring what was decided into bounds that have become narrower; a frozen flag stays where it is."""
        for flag, order in tuple(self._decided.orders.items()):
            bounds, present = guard.bounds.get(flag, Bounds()), order.value or 1
            raised = max(present, round(bounds.low or 1))
            value = raised if bounds.high is None else min(raised, round(bounds.high))
            if flag in guard.frozen or value == present:
                continue
            flags = self._supervisor.flags
            proposal = Proposal(
                "guard",
                Domain.ADMIN,
                Wish.CHANGE_FLAGS,
                f"{flag} {present}, set by {order.by}, lies outside the guard's bounds now",
                {flag: str(value)},
                trigger="live",
            )
            ends = flags.changed({flag: str(present)}), flags.changed({flag: str(value)})
            self.take(self._journal.change(Change("", self._clock.now_s(), Action.LIVE, proposal, *ends)))
            self._ended_s = self._clock.monotonic_s()

    def _renew(self) -> None:
        """Let what was decided be of the generation that serves; what cannot be is given up, with a word."""
        launch = self._supervisor.life.launch
        if launch is None:
            return
        lost = self._decided.renew(launch, self._supervisor.instance, self._knob)
        for flag, reason in lost.items():
            order, flags = self._decided.orders[flag], self._supervisor.flags
            proposal = Proposal("knobs", Domain.ADMIN, Wish.NOTHING, f"{flag} {order.value}: {reason}", trigger="live")
            self._journal.change(Change("", self._clock.now_s(), Action.LIVE, proposal, flags, flags))
            self._decided.set(flag, None, order.by)
            self._ended_s = self._clock.monotonic_s()

    def _ask(self) -> None:
        """Ask for what is in force where something else is asked for."""
        for flag, knob in self._live.knobs.items():
            standing = self._standing.get(flag)
            wanted = standing.order.value if standing is not None else self._below_launched(flag, knob)
            if not knob.off and knob.asked != wanted:
                self._supervisor.live.ask(flag, wanted)

    def _below_launched(self, flag: str, knob: Knob) -> int | None:
        """Return what was decided; None where the server was launched with no more, or nothing was."""
        value = self._decided.value(flag)
        return None if value is None or (knob.launched is not None and value >= knob.launched) else value

    def _end(self, back: SetLive, reason: str) -> Change:
        """Let an order stand no more, and ask for what was decided, or launched."""
        standing = self._standing.pop(back.flag, None)
        self._ended_s = self._clock.monotonic_s()
        return self._carry_out(back, reason, standing.order.value if standing is not None else None)

    def _carry_out(self, order: SetLive, reason: str, stood: int | None = None) -> Change:
        """Record an order and the change that it is, and ask the server: of one out of reach, nothing moves what stood.

        It is asked even so: an engine that tells of an error may still listen.
        """
        self._journal.order(order)
        knob = self._knob(order.flag)
        wanted = order.value or self._below_launched(order.flag, knob)
        before, after = knob.asked or knob.launched, wanted or knob.launched
        if knob.off:
            before, after, reason = stood, stood, f"cannot be reached any more: {knob.off}"
        flags, numbers = self._supervisor.flags, {} if knob.launched is None else {"launched": float(knob.launched)}
        moved = [flags if value is None else flags.changed({order.flag: str(value)}) for value in (before, after)]
        proposal = Proposal("admin", Domain.ADMIN, Wish.CHANGE_FLAGS, reason, numbers=numbers, trigger="live")
        change = self._journal.change(Change("", order.at_s, Action.LIVE, proposal, moved[0], moved[1]))
        self._supervisor.live.ask(order.flag, wanted)
        return change
