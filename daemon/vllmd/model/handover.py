"""Handover: how the clients of a server came over a restart that was asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


class RestartKind(StrEnum):
    """How a server was restarted. Each has a series in `vllmd_restarts_total`."""

    GATED = "gated"  # connections waited, and the next server was started beside the old one
    PLANNED = "planned"  # connections waited
    PLAIN = "plain"  # connections were refused until the next server listened


@dataclass(frozen=True, slots=True)
class Handover:
    """How connections and requests came over one restart; None is unknown.

    `plain` says why connections could not wait, empty where they could. `held` are those that waited, in all,
    `most_held` those that waited at once; what a client gave up meanwhile is among them. No connection waited longer
    than `longest_wait_s`. `refused` of those held were answered with 503. `cut` are requests in flight when their time
    to drain was over; where connections could not wait, those in flight when the server had ended: what it ended by
    itself before is not seen.
    """

    plain: str = ""
    gated: bool = False
    held: int | None = None
    most_held: int | None = None
    longest_wait_s: float | None = None
    cut: int | None = None
    refused: int | None = None

    @property
    def kind(self) -> RestartKind:
        """How the server was restarted."""
        if self.plain:
            return RestartKind.PLAIN
        return RestartKind.GATED if self.gated else RestartKind.PLANNED


@dataclass(frozen=True, slots=True)
class Handovers:
    """All handovers since vllmd began: how many of each kind, the sums of what is known, and the last one."""

    kinds: Mapping[RestartKind, int] = field(default_factory=dict)
    held: int = 0
    cut: int = 0
    refused: int = 0
    last: Handover | None = None

    def with_one(self, handover: Handover) -> "Handovers":
        """Return these and one more."""
        kind = handover.kind
        return replace(
            self,
            kinds={**self.kinds, kind: self.kinds.get(kind, 0) + 1},
            held=self.held + (handover.held or 0),
            cut=self.cut + (handover.cut or 0),
            refused=self.refused + (handover.refused or 0),
            last=handover,
        )
