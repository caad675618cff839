"""From a change to a plan: how it is carried out, the flags to reach, and those to return to if it does harm."""

from collections.abc import Mapping

from vllmd.model.decision import Change, Plan
from vllmd.model.flags import Flags, FlagValue, parse_number


def plan_of(change: Change) -> Plan:
    """Return the plan of a change."""
    return Plan(change, target=change.flags_after, fallback=change.flags_before)


def moves_live(changes: Mapping[str, FlagValue | None], capacity: Mapping[str, int]) -> bool:
    """Return whether the running server takes all of these changes at once.

    `capacity` is what it was launched with, of the flags that are live in it: as much is the most that it can do.
    """
    return bool(changes) and all(_within(value, capacity.get(name)) for name, value in changes.items())


def whole(value: FlagValue | None) -> int | None:
    """Return a flag's value as the whole number that it is; None for anything else."""
    number = parse_number(value) if isinstance(value, str) else None
    return int(number) if number is not None and number == int(number) else None


def ends_of(
    changes: Mapping[str, FlagValue | None], present: Flags, launched: Flags, capacity: Mapping[str, int]
) -> tuple[Flags, Flags]:
    """Return the flags before and after these changes: live those in force, otherwise those of the next launch.

    The next launch is like the running one but for what is changed; what is set live beside it stays so.
    """
    if moves_live(changes, capacity):
        implied = {name: str(capacity[name]) for name in changes if name not in present}
        before = present.changed(implied)
    else:
        before = launched.changed({name: present.get(name) for name in changes})
    return before, before.changed(changes)


def _within(value: FlagValue | None, launched: int | None) -> bool:
    number = whole(value)
    return number is not None and launched is not None and 1 <= number <= launched
