"""Canaries: when the server rests, one is to be under way; whether it comes back is told here.

Sent they are by `observe.canary`, in a task of its own: here is only what is to be under way, and what came of it.
"""

from vllmd.decide.canary import Rest, bar, is_due, rested
from vllmd.model.canary import CanaryOrder, CanaryReply, CanaryResult
from vllmd.model.server import ServerState
from vllmd.model.snapshot import Snapshot
from vllmd.report.journal import Journal
from vllmd.supervisor import Supervisor

# Of the limit of a standstill: readings that count for it may begin anew once before the wait for the answer ends.
_PATIENCE = 2.0


class Canary:
    """Decides when a canary is due. One that is refused is the last one of its launch."""

    def __init__(self, supervisor: Supervisor, journal: Journal) -> None:
        self._supervisor = supervisor
        self._journal = journal
        self._rest = Rest()
        self._order: CanaryOrder | None = None
        self._sent = 0
        self._off: int | None = None  # the generation that is sent no more

    @property
    def order(self) -> CanaryOrder | None:
        """The canary that is to be under way now, None for none: a server that is left or stopped is let go."""
        life, order = self._supervisor.life, self._order
        if order is None or life.state is not ServerState.SERVING or life.launch is None:
            return None
        return order if life.launch.generation == order.generation else None

    def look(self, snapshot: Snapshot, gap_s: float, limit_s: float, *, may_send: bool) -> bool:
        """Take in a reading; return whether a canary is under way: work of the server that no page may show."""
        self._rest = rested(self._rest, snapshot, gap_s)
        if self._order is not None and (snapshot.paused or self._order.generation != snapshot.generation):
            self._order = None
        if self._order is None and may_send and self._is_due(snapshot.generation):
            self._sent += 1
            self._order = CanaryOrder(self._sent, snapshot.generation, _PATIENCE * limit_s)
        return self._order is not None

    def answered(self, reply: CanaryReply) -> None:
        """Take in what became of a canary; of an earlier one it says nothing any more."""
        if self._order is None or reply.number != self._order.number:
            return
        generation = self._order.generation
        self._order, self._rest = None, Rest()
        self._journal.canary(reply.result, reply.reason)
        if reply.result is CanaryResult.REFUSED:
            self._stop(generation, reply.reason)

    def missed(self) -> None:
        """Take note that the server hangs, as the canary under way showed."""
        self._order = None
        self._journal.canary(CanaryResult.SILENT, "")

    def _is_due(self, generation: int) -> bool:
        canary_s = self._supervisor.instance.settings.engine.canary_s
        if canary_s is None or generation == self._off or not is_due(self._rest, canary_s):
            return False
        if barred := bar(self._supervisor.flags):
            self._stop(generation, barred)
            return False
        return True

    def _stop(self, generation: int, reason: str) -> None:
        self._off = generation
        self._journal.canary_off(generation, reason)
