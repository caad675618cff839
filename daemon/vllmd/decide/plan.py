"""From a change to a plan: the flags to reach and the flags to return to if they do not come to serve."""

from vllmd.model.decision import Change, Plan


def plan_of(change: Change) -> Plan:
    """Return the plan of a change."""
    return Plan(change, target=change.flags_after, fallback=change.flags_before)
