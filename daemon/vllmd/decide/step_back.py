"""After a quiet time: one step from what recoveries set back towards the operator's baseline, if it fits.

The tree, in order: not quiet, or nothing was moved by a recovery → none · no policy has a step → none · memory mode is
not active → hold · gates (frozen, known, guards, tried and banned, memory), and what they refuse is left for the next
flag · budget → change.
"""

from collections.abc import Sequence
from dataclasses import replace

from vllmd.decide.gates import GateFacts, allow, within_budget
from vllmd.decide.propose import Policy, propose
from vllmd.model.decision import Action, Change, Decision, Hold, HoldReason, Proposal, Situation
from vllmd.model.settings import Mode


def decide_step_back(situation: Situation, policies: Sequence[Policy], facts: GateFacts, mode: Mode) -> Decision | None:
    """Decide whether a step back is tried; None if there is none to try, the first refusal if all are refused."""
    left = situation.recovered if situation.quiet else {}
    refusal = None
    while left and (wish := propose(replace(situation, recovered=left), policies)) is not None:
        if mode is not Mode.ACTIVE:
            return Hold(HoldReason.OBSERVE_ONLY, f"memory mode is {mode}; would be: {wish.reason}")
        allowed = allow(wish, facts)
        if isinstance(allowed, Proposal):
            after = facts.flags.changed(allowed.changes)
            return within_budget(facts) or Change("", facts.now_s, Action.RESTART, allowed, facts.flags, after)
        refusal = refusal or allowed
        if left.keys().isdisjoint(wish.changes):
            break  # a policy that looks at something else would only say so again
        left = {name: why for name, why in left.items() if name not in wish.changes}
    return refusal
