"""Decided: the values that latency decisions set live. They outlive their generation: the next one gets them again.

A launch keeps the flags that it had. They are known to start, its compile cache is keyed by them, the operator finds
them on its command line, and a step back up stays free; below them it is governed, as the last decision wants it.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from vllmd.model.instance import Instance
from vllmd.model.live import Knob
from vllmd.model.orders import SetLive
from vllmd.model.server import Launch
from vllmd.model.settings import Mode
from vllmd.ports import Clock
from vllmd.report.journal import Journal


class Decided:
    """What decisions want to be in force, by flag; None as a value is what was launched."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._orders: dict[str, SetLive] = {}
        self._launch: Launch | None = None  # that they were last in force in

    @property
    def orders(self) -> Mapping[str, SetLive]:
        """Return what stands, by flag."""
        return MappingProxyType(self._orders)

    def value(self, flag: str) -> int | None:
        """Return the value that stands; None where it is what was launched."""
        order = self._orders.get(flag)
        return order.value if order is not None else None

    def recall(self, known: Iterable[SetLive]) -> None:
        """Take in what an earlier daemon left in the ledger, oldest first."""
        last = {order.flag: order for order in known if order.decided}
        self._orders = {flag: order for flag, order in last.items() if order.value is not None}
        newest = max((order.generation for order in self._orders.values()), default=None)
        self._launch = self._journal.launch_of(newest) if newest is not None else None

    def set(self, flag: str, value: int | None, by: str) -> None:
        """Let a value stand by a decision's word, or none any more; it is of the launch that it is in force in."""
        generation = self._launch.generation if self._launch is not None else 0
        order = SetLive(self._clock.now_s(), by, flag, value, None, generation, decided=True)
        self._journal.order(order)
        if value is None:
            self._orders.pop(flag, None)
        else:
            self._orders[flag] = order

    def renew(self, launch: Launch, instance: Instance, knob_of: Callable[[str], Knob]) -> Mapping[str, str]:
        """Let what stands be of this launch, which serves; return the flags of which it cannot be, with the reasons."""
        former, self._launch = self._launch, launch
        lost = {}
        for flag, order in tuple(self._orders.items()):
            knob = knob_of(flag)
            if order.value == knob.launched:
                self.set(flag, None, order.by)
            elif knob.off:
                lost[flag] = f"cannot be reached any more: {knob.off}"
            elif order.generation != launch.generation:
                if reason := _unfit(flag, former, launch, instance):
                    lost[flag] = f"not set again: {reason}"
                else:
                    self.set(flag, order.value, order.by)
        return lost


def _unfit(flag: str, former: Launch | None, launch: Launch, instance: Instance) -> str | None:
    """Return why a value that was in force in one launch is not for another one; None where it is."""
    settings = instance.settings
    if settings.modes.latency is not Mode.ACTIVE:
        return f"latency mode is {settings.modes.latency} now"
    if flag in settings.guard.frozen or flag not in settings.guard.bounds:
        return "the configuration wants it left alone now"
    if former is None or former.fingerprint != launch.fingerprint:
        return "hardware, model or vLLM are others than those that it was found for"
    if former.baseline.get(flag) != launch.baseline.get(flag):
        return "the operator's command has another value now"
    return None
