"""What was measured, beside its bar."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measurement:
    """A number in `unit`, and the bar that it must stay below."""

    what: str
    value: float
    bar: float
    unit: str

    @property
    def holds(self) -> bool:
        """Whether it stays below its bar."""
        return self.value < self.bar


def table(found: Sequence[Measurement]) -> str:
    """Return the measurements as lines."""
    width = max(len(m.what) for m in found)
    lines = [f"{'':{width}}  measured       bar"]
    for m in found:
        verdict = "ok" if m.holds else "MISSED"
        lines.append(f"{m.what:{width}}  {m.value:8.3f}  {'<':>3} {m.bar:4g} {m.unit:13} {verdict}")
    return "\n".join(lines)
