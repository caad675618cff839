"""From an assessment to a decision about latency.

The tree, in order: not serving → hold · a change is being verified → hold · no targets → hold · nothing slips → hold
· no policy has a wish → hold · gates (frozen, known, guards, tried) · mode · advised before → hold · the running
server takes it live → live change · budget → restart.
"""

from collections.abc import Sequence
from dataclasses import replace

from vllmd.decide.gates import GateFacts, allow, within_budget
from vllmd.decide.plan import ends_of, moves_live
from vllmd.decide.propose import Policy, propose
from vllmd.model.decision import (
    Action,
    Assessment,
    Change,
    Decision,
    Hold,
    HoldReason,
    Proposal,
    Situation,
    Verdict,
)
from vllmd.model.flags import Flags
from vllmd.model.settings import Mode


def decide_latency(
    situation: Situation,
    policies: Sequence[Policy],
    facts: GateFacts,
    mode: Mode,
    advised: frozenset[tuple[Flags, Flags]],
) -> Decision:
    """Decide what the assessment asks for. The id of a change is empty: whoever records it numbers it.

    `advised` holds (flags before, flags after) of advice that was given before.
    """
    if situation.assessment is None:
        return Hold(HoldReason.BLIND, "the server's metrics cannot be read")
    hold = _nothing_slips(situation.assessment)
    if hold is not None:
        return hold
    wish = propose(situation, policies)
    if wish is None:
        return Hold(HoldReason.NO_REMEDY, f"{_names(situation.assessment)} slips and no policy has a remedy")
    allowed = allow(wish, facts)
    if isinstance(allowed, Hold):
        return allowed
    return _by_mode(allowed, facts, mode, advised)


def _nothing_slips(assessment: Assessment) -> Hold | None:
    if not assessment.now:
        return Hold(HoldReason.NO_TARGETS, "no latency target is configured")
    if assessment.slipping():
        return None
    if all(t.verdict is Verdict.MET for t in assessment.now):
        return Hold(HoldReason.TARGETS_MET, "every target is met")
    unsure = [t for t in assessment.now if t.verdict is not Verdict.MET]
    shown = ", ".join(f"{t.target.name} {t.verdict} on {t.observations} observations" for t in unsure)
    return Hold(HoldReason.THIN_EVIDENCE, f"two windows do not agree on a slip: {shown}")


def _by_mode(proposal: Proposal, facts: GateFacts, mode: Mode, advised: frozenset[tuple[Flags, Flags]]) -> Decision:
    before, after = ends_of(proposal.changes, facts.flags, facts.of_launch, facts.capacity)
    live = moves_live(proposal.changes, facts.capacity)
    free = "; it would cost nothing: the running server takes it at once" if live else ""
    if mode is Mode.OBSERVE:
        return Hold(HoldReason.OBSERVE_ONLY, f"mode is observe; would be: {proposal.reason}{free}")
    if mode is Mode.ADVISORY and (before, after) in advised:
        return Hold(HoldReason.ALREADY_ADVISED, f"advised before: {proposal.reason}{free}")
    if mode is Mode.ADVISORY:
        advice = replace(proposal, reason=f"{proposal.reason}{free}")
        return Change("", facts.now_s, Action.ADVISE, advice, before, after)
    if live:
        return Change("", facts.now_s, Action.LIVE, proposal, before, after)
    return within_budget(facts) or Change("", facts.now_s, Action.RESTART, proposal, before, after)


def _names(assessment: Assessment) -> str:
    return ", ".join(t.target.name for t in assessment.slipping())
