"""Which limits bear on a change: guards, budget, bans. The first two as they are now, the bans as they were. Pure."""

from vllmd.model.flags import parse_number
from vllmd.report.drawing import Style
from vllmd.report.reading import Fields, number, part, parts, text, whole
from vllmd.report.sections import Line

# What the ledger calls a decision that the restart budget does not bound.
_OUTSIDE_BUDGET = {
    "advise": "an advice restarts nothing",
    "recover": "a recovery is bounded by the crash breaker instead",
    "retry": "a recovery is bounded by the crash breaker instead",
    "rollback": "going back is not bounded by it",
    "live": "what is set live restarts nothing",
    "remember": "a first launch is no restart",
}


def limits(document: Fields, decision: Fields) -> tuple[Line, ...]:
    """Return the guards of the flags that a change moves, the budget, and what was banned when it was made."""
    present = part(document, "present")
    return (*_guards(present, decision), _budget(present, decision), *_bans(document))


def _guards(present: Fields, decision: Fields) -> tuple[Line, ...]:
    """Return each moved flag with its guard, and whether its value lies inside."""
    changes = parts(decision, "changes")
    if not changes:
        return (Line("guard: no flag moves"),)
    known = {text(flag, "name"): flag for flag in parts(present, "flags")}
    return tuple(_guard(change, known.get(text(change, "flag"), {})) for change in changes)


def _guard(change: Fields, flag: Fields) -> Line:
    """Return one flag's guard."""
    name, value = text(change, "flag"), text(change, "to")
    low, high, now = number(flag, "min"), number(flag, "max"), parse_number(value)
    if low is None and high is None:
        return Line(f"guard: {name} has no bounds that are known now")
    bounds = f"{'' if low is None else f'{low:g}'}..{'' if high is None else f'{high:g}'}"
    if now is None:
        return Line(f"guard: {name} {bounds}")
    inside = (low is None or low <= now) and (high is None or now <= high)
    style = Style.PLAIN if inside else Style.WARN
    return Line(f"guard: {name} {bounds}, {value} lies {'inside' if inside else 'outside now'}", style=style)


def _budget(present: Fields, decision: Fields) -> Line:
    """Return whether the restart budget bounds the change, and what is used of it now."""
    outside = _OUTSIDE_BUDGET.get(text(decision, "action"))
    if decision.get("domain") == "admin":
        outside = "the operator's own restarts do not count"
    if outside is not None:
        return Line(f"restart budget: {outside}")
    budget = part(present, "budget")
    hour, day = (part(budget, name) for name in ("restarts_hour", "restarts_day"))
    if not budget:
        return Line("restart budget: it counts; what is used now is not known")
    used = (
        f"{whole(kind, 'used')} of {whole(kind, 'limit')} {span}"
        for kind, span in ((hour, "this hour"), (day, "today"))
    )
    return Line(f"restart budget: it counts; used now {', '.join(used)}")


def _bans(document: Fields) -> tuple[Line, ...]:
    """Return the failures that forbade flags on that hardware with that model."""
    count = number(document, "banned")
    if not count:
        return (Line("bans: nothing had failed on this hardware with this model that forbids flags"),)
    shown = parts(document, "bans")
    older = f" (the last {len(shown)})" if count > len(shown) else ""
    launches = "1 failed launch" if count == 1 else f"{count:.0f} failed launches"
    each = (Line(f"generation {whole(b, 'generation')}, {text(b, 'class')}: {text(b, 'summary')}") for b in shown)
    return (Line(f"bans: the flags of {launches} were not to be run again{older}:"), *each)
