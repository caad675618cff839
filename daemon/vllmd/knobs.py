"""Knobs: what the operator set live in the running server, how long it holds, and that nothing else is judged by it."""

from vllmd.model.decision import Action, Change, Domain, Hold, HoldReason, Proposal, Wish
from vllmd.model.live import LIVE_FLAGS, Knob, Live
from vllmd.model.orders import SetLive
from vllmd.model.server import ServerState
from vllmd.model.status import LiveStatus
from vllmd.ports import Clock
from vllmd.report.journal import Journal
from vllmd.supervisor import Supervisor


class Knobs:
    """The live values in force, also those of an earlier daemon. They are of one generation, and end with it."""

    def __init__(self, supervisor: Supervisor, journal: Journal, clock: Clock) -> None:
        self._supervisor = supervisor
        self._journal = journal
        self._clock = clock
        self._orders: dict[str, SetLive] = {}  # by flag
        self._generation: int | None = None
        self._ended_s: float | None = None  # when the last one ended, by the monotonic clock

    @property
    def status(self) -> LiveStatus | None:
        """What is told of a server that serves."""
        if not self._serving:
            return None
        live = self._live
        silent_s = None if live.heartbeat is None else max(0.0, self._clock.monotonic_s() - live.heartbeat.step_s)
        return LiveStatus(live, tuple(self._orders.values()), silent_s)

    @property
    def _serving(self) -> bool:
        return self._supervisor.life.state is ServerState.SERVING

    @property
    def _live(self) -> Live:
        return self._supervisor.live.read()

    def refusal(self, flag: str, value: int | None) -> str | None:
        """Return why a value cannot be set live, in words; None if it can. None as value is what was launched."""
        if flag not in LIVE_FLAGS:
            known = " and ".join(f"--{name}" for name in LIVE_FLAGS)
            return f"--{flag} cannot be changed while the server runs, only {known}: change your command and restart"
        if not self._serving:
            return f"the server is {self._supervisor.life.state}: a live value is for one that serves"
        knob = self._live.knobs.get(flag, Knob("the server does not tell"))
        if knob.off or knob.launched is None:
            return f"--{flag} cannot be changed without a restart: {knob.off}"
        if value is None and flag not in self._orders:
            return f"--{flag} is {knob.launched}, as launched: nothing was set"
        if value is not None and not 1 <= value <= knob.launched:
            limit = f"live it can be 1 to {knob.launched}, with which the server was launched"
            return f"--{flag} cannot be {value} without a restart: {limit}"
        return None

    def set(self, order: SetLive) -> Change:
        """Set a value that is not refused; return the change as it is recorded."""
        end = "until it is set again" if order.until_s is None else f"for {order.until_s - order.at_s:.0f} s"
        what = "back to what was launched" if order.value is None else f"set live {end}"
        if order.value is None:
            self._orders.pop(order.flag, None)
            self._ended_s = self._clock.monotonic_s()
        else:
            self._orders[order.flag] = order
        return self._carry_out(order, f"{what}, by {order.by}")

    def look(self) -> None:
        """End what has run out or whose server is gone; let the server be asked for what is in force, and no more."""
        launch = self._supervisor.life.launch
        generation = launch.generation if launch is not None else None
        if generation != self._generation:
            self._follow(generation)
        now_s = self._clock.now_s()
        for order in tuple(self._orders.values()):
            if not order.holds(now_s):
                del self._orders[order.flag]
                self._ended_s = self._clock.monotonic_s()
                back = SetLive(now_s, "its end", order.flag, None, None, order.generation)
                self._carry_out(back, f"back to what was launched: the time that {order.by} set it for is over")
        if self._serving:
            self._ask()

    def hold(self, window_s: float) -> Hold | None:
        """Return why no flag is tuned now: a window of readings must all be of one value, and that the launched one."""
        if self._orders:
            told = ", ".join(f"{order.flag} is {order.value}, set by {order.by}" for order in self._orders.values())
            ends = [order.until_s for order in self._orders.values()]
            until_s = max((end for end in ends if end is not None), default=None)
            return Hold(HoldReason.LIVE_SET, told, None if None in ends else until_s)
        if self._ended_s is not None and self._clock.monotonic_s() - self._ended_s < window_s:
            return Hold(HoldReason.LIVE_SET, "a value that was set live has ended; a whole window must pass")
        return None

    def _follow(self, generation: int | None) -> None:
        """Take what was set in this generation: nothing in a new one, maybe something in one that is taken over."""
        self._generation, self._ended_s = generation, None
        known = self._journal.live_orders(generation) if generation is not None else ()
        last = {order.flag: order for order in known}
        self._orders = {flag: order for flag, order in last.items() if order.value is not None}

    def _ask(self) -> None:
        """Ask for what is in force where something else is asked for."""
        for flag, knob in self._live.knobs.items():
            order = self._orders.get(flag)
            wanted = order.value if order is not None else None
            if not knob.off and knob.asked != wanted:
                self._supervisor.live.ask(flag, wanted)

    def _carry_out(self, order: SetLive, reason: str) -> Change:
        """Record an order and the change that it is, and ask the server."""
        self._journal.order(order)
        flags, knob = self._supervisor.flags, self._live.knobs.get(order.flag, Knob(""))
        before, after = (str(value or knob.launched) for value in (knob.asked, order.value))
        numbers = {} if knob.launched is None else {"launched": float(knob.launched)}
        proposal = Proposal("admin", Domain.ADMIN, Wish.CHANGE_FLAGS, reason, numbers=numbers, trigger="live")
        moved = (flags.changed({order.flag: before}), flags.changed({order.flag: after}))
        change = self._journal.change(Change("", order.at_s, Action.LIVE, proposal, *moved))
        self._ask()
        return change
