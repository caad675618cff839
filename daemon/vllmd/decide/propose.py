"""From a situation to a proposal: the first policy that wishes something."""

from collections.abc import Callable, Sequence

from vllmd.model.decision import Proposal, Situation

Policy = Callable[[Situation], Proposal | None]


def propose(situation: Situation, policies: Sequence[Policy]) -> Proposal | None:
    """Return the wish of the first policy that has one; None if none has."""
    return next((wish for policy in policies if (wish := policy(situation)) is not None), None)
