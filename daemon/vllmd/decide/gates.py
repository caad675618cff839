"""The gates: what stands between a policy's wish and a change. Each gate passes, narrows or holds a proposal.

In order: mode (in `decide.latency` and `decide.recover`), frozen, known to this vLLM, guards, tried, memory, budget.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from vllmd.decide.bans import banned
from vllmd.decide.memory_budget import as_told
from vllmd.decide.shortfall import shortfall
from vllmd.model.decision import Hold, HoldReason, Proposal
from vllmd.model.flags import UTILIZATION, Flags, FlagValue, parse_number, show_value
from vllmd.model.memory_budget import MemoryBudget
from vllmd.model.options import Catalogue
from vllmd.model.settings import Bounds, Budget, Guard
from vllmd.model.status import BudgetStatus
from vllmd.model.tried import Ban

_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S


@dataclass(frozen=True, slots=True)
class GateFacts:
    """What the gates know: the operator's limits, what this vLLM accepts, and what was done before.

    `flags` are those in force, `launched` those of the running launch where values are set live below them.
    `capacity` is what it was launched with, of the flags that are live in it.
    `voluntary_s` are the unix times of voluntary restarts. Not to be run again: what falls under `bans`, given
    `free_bytes` on the GPU for a launch; `barred` flags; and `barred_values`, single values that did harm, whatever the
    other flags are. `served` are the last flags that did. `memory` is the budget of the launch to be changed.
    """

    flags: Flags
    guard: Guard
    budget: Budget
    catalogue: Catalogue
    now_s: float
    voluntary_s: tuple[float, ...] = ()
    bans: tuple[Ban, ...] = ()
    barred: frozenset[Flags] = frozenset()
    barred_values: frozenset[tuple[str, FlagValue | None]] = frozenset()
    served: Flags | None = None
    free_bytes: float | None = None
    memory: MemoryBudget | None = None
    launched: Flags | None = None
    capacity: Mapping[str, int] = field(default_factory=dict)

    @property
    def of_launch(self) -> Flags:
        """The flags that the running launch was given: by those its memory is sized."""
        return self.flags if self.launched is None else self.launched


def allow(proposal: Proposal, facts: GateFacts) -> Proposal | Hold:
    """Pass a change of flags through the gates that hold for every change; values are rounded to guard steps."""
    proposal = replace(proposal, changes=_rounded(proposal, facts))
    for name, value in proposal.changes.items():
        hold = _frozen(name, facts.guard) or _unknown(name, facts.catalogue) or _outside(name, value, facts.guard)
        if hold is not None:
            return hold
    after = facts.flags.changed(proposal.changes)
    if after == facts.flags:
        return Hold(HoldReason.NO_REMEDY, "the computed flags are the present ones")
    if after in facts.barred or not facts.barred_values.isdisjoint(proposal.changes.items()):
        shown = ", ".join(f"{n} {show_value(v)}" for n, v in proposal.changes.items())
        return Hold(HoldReason.ALREADY_TRIED, f"{shown} was tried before")
    launch = facts.of_launch.changed(proposal.changes)
    if ban := banned(launch, facts.bans, facts.free_bytes):
        return Hold(HoldReason.ALREADY_TRIED, _forbidden(launch, ban))
    return _too_large(proposal, facts) or proposal


def within_budget(facts: GateFacts) -> Hold | None:
    """Hold when the restarts of the last hour or day are used up, until the oldest of them is old enough."""
    for limit, span_s, word in (
        (facts.budget.restarts_per_hour, _HOUR_S, "hour"),
        (facts.budget.restarts_per_day, _DAY_S, "day"),
    ):
        recent = sorted(t for t in facts.voluntary_s if t > facts.now_s - span_s)
        if len(recent) >= limit:
            until_s = recent[-limit] + span_s if limit else None
            return Hold(HoldReason.BUDGET, f"{len(recent)} of {limit} restarts this {word} are used", until_s)
    return None


def budget_status(facts: GateFacts, crashes_s: Sequence[float], *, breaker_open: bool) -> BudgetStatus:
    """Return what is used of the budget; `crashes_s` are the unix times of failures."""
    budget, now_s = facts.budget, facts.now_s
    return BudgetStatus(
        restarts_hour=sum(t > now_s - _HOUR_S for t in facts.voluntary_s),
        restarts_hour_limit=budget.restarts_per_hour,
        restarts_day=sum(t > now_s - _DAY_S for t in facts.voluntary_s),
        restarts_day_limit=budget.restarts_per_day,
        crashes=sum(t > now_s - budget.breaker_window_s for t in crashes_s),
        crashes_limit=budget.breaker_crashes,
        breaker_open=breaker_open,
    )


def _forbidden(flags: Flags, ban: Ban) -> str:
    """Say why flags are banned."""
    again = "these flags were" if flags == ban.flags else "what asks for less was"
    return f"{again} run as generation {ban.failure.generation}: {ban.failure.summary}"


def _frozen(name: str, guard: Guard) -> Hold | None:
    if name in guard.frozen:
        return Hold(HoldReason.FROZEN, f"{name} is frozen by the configuration")
    if name not in guard.bounds:
        return Hold(HoldReason.FROZEN, f"{name} has no entry in [guard], so it is never touched")
    return None


def _unknown(name: str, catalogue: Catalogue) -> Hold | None:
    if catalogue.readable and not catalogue.knows(name):
        version = catalogue.version or "of this installation"
        return Hold(HoldReason.UNKNOWN_OPTION, f"vLLM {version} has no option --{name}")
    return None


def _outside(name: str, value: FlagValue | None, guard: Guard) -> Hold | None:
    number = parse_number(value) if isinstance(value, str) else None
    bounds = guard.bounds.get(name, Bounds())
    if number is None:
        return None
    if number == 0:  # a coarse step rounds so far down
        return Hold(HoldReason.GUARD, f"{name} {value} would leave the server nothing")
    if bounds.low is not None and number < bounds.low:
        return Hold(HoldReason.GUARD, f"{name} {value} is below the guard's minimum {bounds.low:g}")
    if bounds.high is not None and number > bounds.high:
        return Hold(HoldReason.GUARD, f"{name} {value} is above the guard's maximum {bounds.high:g}")
    return None


def _too_large(proposal: Proposal, facts: GateFacts) -> Hold | None:
    """Hold what does not fit into memory; the proposal's own numbers win over those of the budget."""
    budget = as_told(facts.memory, proposal.numbers, facts.catalogue.version)
    lacking = shortfall(budget, facts.of_launch, proposal.changes)
    return None if lacking is None else Hold(HoldReason.MEMORY, lacking)


def _rounded(proposal: Proposal, facts: GateFacts) -> dict[str, FlagValue | None]:
    """Round numbers to the guard's step, away from the present value: a remedy may only become stronger.

    What rounding would carry beyond a bound stops at the bound.
    """
    rounded: dict[str, FlagValue | None] = {}
    for name, value in proposal.changes.items():
        bounds = facts.guard.bounds.get(name, Bounds())
        number = parse_number(value) if isinstance(value, str) else None
        if not bounds.step or number is None:
            rounded[name] = value
            continue
        present = facts.flags.number(name)
        if present is None and name == UTILIZATION:
            present = proposal.numbers.get("utilization_from")
        rounded[name] = f"{_stepped(number, bounds, down=present is not None and number < present):.10g}"
    return rounded


def _stepped(number: float, bounds: Bounds, *, down: bool) -> float:
    step = bounds.step or 1.0
    steps = math.floor(number / step + 1e-9) if down else math.ceil(number / step - 1e-9)
    stepped = steps * step
    if down and bounds.low is not None and stepped < bounds.low <= number:
        return bounds.low
    if not down and bounds.high is not None and stepped > bounds.high >= number:
        return bounds.high
    return stepped
