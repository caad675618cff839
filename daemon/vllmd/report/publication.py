"""The latest published Status, handed from the loop to the threads and sockets that tell it."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from vllmd.model.decision import Effect
from vllmd.model.status import Status


@dataclass(frozen=True, slots=True)
class Published:
    """A status, what was counted up to it, and when it came by a clock that only goes forward (seconds)."""

    status: Status
    decisions: Counter[tuple[str, str]]  # (trigger, action) to count
    verifications: Counter[Effect]
    at_monotonic_s: float


class Publication:
    """Holds the latest status and counts each decision and verification once. Any thread may read it.

    Decisions older than `since_s` (unix; the daemon's start) were counted by an earlier daemon: a counter that began
    with them would look like a burst of decisions to Prometheus.
    """

    def __init__(self, since_s: float = 0.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._since_s = since_s
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._latest: Published | None = None
        self._decided: frozenset[str] = frozenset()
        self._verified: frozenset[str] = frozenset()

    def set(self, status: Status) -> None:
        """Publish a status."""
        with self._lock:
            before = self._latest
            decisions = Counter() if before is None else before.decisions.copy()
            verifications = Counter() if before is None else before.verifications.copy()
            recent = [r for r in status.decisions if r.change.at_s >= self._since_s]
            for record in recent:
                if record.change.id not in self._decided:
                    decisions[record.change.proposal.trigger, record.change.action.value] += 1
                if record.verification is not None and record.change.id not in self._verified:
                    verifications[record.verification.effect] += 1
            # Ids that left the status never come back: what is remembered stays as small as the status is.
            self._decided = frozenset(r.change.id for r in recent)
            self._verified = frozenset(r.change.id for r in recent if r.verification is not None)
            self._latest = Published(status, decisions, verifications, self._monotonic())

    def get(self) -> Status | None:
        """Return the latest status, None before the first."""
        latest = self._latest
        return None if latest is None else latest.status

    def latest(self) -> Published | None:
        """Return the latest status with its counts, None before the first."""
        return self._latest

    def age_s(self) -> float | None:
        """Return how long ago the latest status came, None before the first."""
        latest = self._latest
        return None if latest is None else self._monotonic() - latest.at_monotonic_s
