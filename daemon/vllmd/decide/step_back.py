"""After a quiet time: one step from what recoveries set back towards the operator's baseline, if it fits.

The tree, in order: not quiet, or nothing was moved by a recovery → none · no policy has a step → none · memory mode is
not active → hold · gates (frozen, known, guards, tried and banned, memory) · budget → change.
"""

from collections.abc import Sequence

from vllmd.decide.gates import GateFacts, allow, within_budget
from vllmd.decide.propose import Policy, propose
from vllmd.model.decision import Action, Change, Decision, Hold, HoldReason, Situation
from vllmd.model.settings import Mode


def decide_step_back(situation: Situation, policies: Sequence[Policy], facts: GateFacts, mode: Mode) -> Decision | None:
    """Decide whether a step back is tried; None if there is none to try."""
    if not situation.quiet or not situation.recovered:
        return None
    wish = propose(situation, policies)
    if wish is None:
        return None
    if mode is not Mode.ACTIVE:
        return Hold(HoldReason.OBSERVE_ONLY, f"memory mode is {mode}; would be: {wish.reason}")
    allowed = allow(wish, facts)
    if isinstance(allowed, Hold):
        return allowed
    hold = within_budget(facts)
    after = facts.flags.changed(allowed.changes)
    return hold or Change("", facts.now_s, Action.RESTART, allowed, facts.flags, after)
