"""From a failure to a decision: launch again, with which flags, after how long, or hold.

The tree, in order: no flag helps → back to flags that served, where these are ours and never did, else hold · only a
variable helps → hold · the policy has other flags, they pass the gates and memory is active → launch with them (at
once, the first times) · these flags never came to serve and others did → back to those · five failures of a class in
the breaker's window → hold · otherwise the same flags after a growing wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vllmd.decide.gates import GateFacts, allow
from vllmd.decide.propose import Policy, propose
from vllmd.model.decision import Action, Change, Decision, Domain, Hold, HoldReason, Proposal, Situation, Wish
from vllmd.model.failure import OF_FLAGS, Failure
from vllmd.model.server import Phase
from vllmd.model.settings import Mode

BACKOFF_FIRST_S = 1.0
BACKOFF_LIMIT_S = 300.0
WAIT_S = 5.0  # for memory that somebody is giving back: a process that ends does so within seconds
FREE_REMEDIES = 3  # other flags in a row that are launched without a wait
GOOD_RUN_S = 600.0  # a server that served this long starts the backoff anew


@dataclass(frozen=True, slots=True)
class CrashRecord:
    """Failures so far: how many since the last good run, and (unix time, class) of the recent ones, this one too."""

    in_a_row: int
    recent: tuple[tuple[float, str], ...]


def backoff_s(in_a_row: int) -> float:
    """Return the wait before the next launch: none after the first failure, then 1 s doubling up to 5 minutes."""
    if in_a_row <= 1:
        return 0.0
    return min(BACKOFF_LIMIT_S, BACKOFF_FIRST_S * 2.0 ** min(in_a_row - 2, 20))


def decide_recovery(
    situation: Situation,
    failure: Failure,
    policies: Sequence[Policy],
    facts: GateFacts,
    mode: Mode,
    crashes: CrashRecord,
) -> Decision:
    """Decide what follows a failure. A Hold means that the server stays down until somebody acts."""
    wish = propose(situation, policies)
    if wish is not None and wish.wish is Wish.STOP:
        return _back_to_what_served(failure, facts, mode) or Hold(HoldReason.OPERATOR, wish.reason)
    if wish is not None and wish.env:
        return Hold(HoldReason.OPERATOR, f"{wish.reason}; vllmd does not change the server's environment itself yet")
    remedy = allow(wish, facts) if wish is not None and wish.wish is Wish.CHANGE_FLAGS else None
    if isinstance(remedy, Proposal) and mode is Mode.ACTIVE:
        after = facts.flags.changed(remedy.changes)
        wait_s = backoff_s(crashes.in_a_row - FREE_REMEDIES)
        return Change("", facts.now_s, Action.RECOVER, remedy, facts.flags, after, wait_s)
    if back := _back_to_what_served(failure, facts, mode):
        return back
    since_s = facts.now_s - facts.budget.breaker_window_s
    same = [t for t, kind in crashes.recent if t > since_s and kind == failure.kind]
    if len(same) >= facts.budget.breaker_crashes:
        minutes = facts.budget.breaker_window_s / 60
        text = f"{len(same)} failures of the kind {failure.kind} within {minutes:g} min and no remedy is left"
        return Hold(HoldReason.BREAKER, f"{text}: {failure.summary}")
    patience_s = WAIT_S if wish is not None and wish.wish is Wish.WAIT_THEN_RETRY else 0.0
    return Change(
        "",
        facts.now_s,
        Action.RETRY,
        _unchanged(wish, remedy, failure, mode),
        facts.flags,
        facts.flags,
        wait_s=max(patience_s, backoff_s(crashes.in_a_row)),
    )


def _back_to_what_served(failure: Failure, facts: GateFacts, mode: Mode) -> Change | None:
    """Return to the last flags that served, from flags of ours that did not come so far and leave no remedy."""
    served, flags = facts.served, facts.flags
    if mode is not Mode.ACTIVE or failure.kind not in OF_FLAGS or failure.phase is Phase.SERVING:
        return None
    if served is None or served == flags:
        return None
    undo = {name: old for name, (old, _) in flags.differences(served).items()}
    reason = f"{failure.summary}; back to the flags that served last"
    proposal = Proposal("served_last", Domain.MEMORY, Wish.CHANGE_FLAGS, reason, undo, trigger=failure.kind)
    return Change("", facts.now_s, Action.ROLLBACK, proposal, flags, served)


def _unchanged(wish: Proposal | None, remedy: Proposal | Hold | None, failure: Failure, mode: Mode) -> Proposal:
    """Return the proposal to launch the same flags, with the reason why no others are taken."""
    match remedy:
        case Hold():
            reason = f"{failure.summary}; no other flags: {remedy.message}"
        case Proposal():
            reason = f"{failure.summary}; memory mode is {mode}, would be: {remedy.reason}"
        case None:
            reason = wish.reason if wish is not None else failure.summary
    return Proposal("retry", Domain.MEMORY, Wish.RETRY_UNCHANGED, reason, trigger=failure.kind)
