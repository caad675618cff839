"""A tally of one restart: what waited at the parked port, and what was cut or refused. Pure, times are handed in."""

from vllmd.model.handover import Handover


class Tally:
    """Counts from the moment that a restart begins; `plain` says why connections cannot wait, empty where they can.

    `gated`: the next server was started beside the old one.

    The kernel's queue is first come, first out, and says only how long it is: the first one in it has waited since the
    queue was last seen empty, or for less.
    """

    def __init__(self, plain: str = "", *, gated: bool = False) -> None:
        self._plain = plain
        self._most = 0
        self._since_s: float | None = None  # the queue is not empty
        self._longest_s = 0.0
        self._gated = gated
        self.refused = 0
        self.cut: int | None = None

    @property
    def parked(self) -> bool:
        """Whether connections wait."""
        return not self._plain

    def look(self, waiting: int, now_s: float) -> None:
        """Take in how many connections wait now."""
        self._most = max(self._most, waiting)
        if self._since_s is None and waiting:
            self._since_s = now_s
        if self._since_s is not None:
            self._longest_s = max(self._longest_s, now_s - self._since_s)
        if not waiting:
            self._since_s = None

    def end(self, waiting: int, now_s: float) -> Handover:
        """Return what it was; `waiting` is how many connections are handed to the next server."""
        if self._plain:
            return Handover(plain=self._plain, cut=self.cut)
        self.look(waiting, now_s)
        return Handover(
            gated=self._gated,
            held=waiting + self.refused,
            most_held=self._most,
            longest_wait_s=round(self._longest_s, 2),
            cut=self.cut,
            refused=self.refused,
        )
