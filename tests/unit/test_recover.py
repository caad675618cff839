"""What follows a failure."""

from dataclasses import replace

from vllmd.decide.gates import GateFacts
from vllmd.decide.recover import BACKOFF_LIMIT_S, WAIT_S, CrashRecord, backoff_s, decide_recovery
from vllmd.model.decision import Action, Change, Decision, Domain, Hold, HoldReason, Proposal, Situation, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import Flags
from vllmd.model.options import Catalogue
from vllmd.model.server import Phase
from vllmd.model.settings import Bounds, Budget, Guard, Mode

FLAGS = Flags((("gpu-memory-utilization", "0.9"),))
FAILURE = Failure(FailureClass.RUNTIME_OOM, Phase.SERVING, 1, "CUDA out of memory while serving")
FACTS = GateFacts(FLAGS, Guard({"gpu-memory-utilization": Bounds(0.5, 0.95)}), Budget(), Catalogue({}), 10_000.0)
LOWER = Proposal("p", Domain.MEMORY, Wish.CHANGE_FLAGS, "lower it", {"gpu-memory-utilization": "0.85"})


def decided(
    wish: Proposal | None,
    facts: GateFacts = FACTS,
    mode: Mode = Mode.ACTIVE,
    crashes: CrashRecord = CrashRecord(1, ((9_990.0, "runtime-oom"),)),  # noqa: B008 - a frozen value
) -> Decision:
    """Return the decision when one policy has this wish."""
    situation = Situation(FLAGS, FLAGS, failure=FAILURE)
    return decide_recovery(situation, FAILURE, (lambda _: wish,), facts, mode, crashes)


def test_a_remedy_is_launched_at_once() -> None:
    """A computed flag that passes the gates needs no wait."""
    change = decided(LOWER)
    assert isinstance(change, Change)
    assert (change.action, change.wait_s) == (Action.RECOVER, 0.0)
    assert change.flags_after["gpu-memory-utilization"] == "0.85"


def test_no_flag_helps_is_held_after_one_launch() -> None:
    """When the operator must act, nothing is launched again."""
    hold = decided(Proposal("p", Domain.MEMORY, Wish.STOP, "no model at /srv/x"))
    assert isinstance(hold, Hold)
    assert (hold.reason, hold.message) == (HoldReason.OPERATOR, "no model at /srv/x")


def test_flags_of_ours_that_never_served_are_left_for_those_that_did() -> None:
    """Whether no flag helps or the remedy is held: what served last is better than being held."""
    served = Flags((("gpu-memory-utilization", "0.92"),))
    failure = Failure(FailureClass.UTILIZATION_TOO_LOW, Phase.PROFILING, 2, "no memory left for the KV pool")
    facts, crashes = replace(FACTS, served=served), CrashRecord(2, ())
    situation = Situation(FLAGS, FLAGS, failure=failure)
    stop = Proposal("p", Domain.MEMORY, Wish.STOP, "stop")
    frozen = replace(LOWER, changes={"max-num-seqs": "8"})
    found = [
        decide_recovery(situation, failure, (lambda _: stop,), facts, Mode.ACTIVE, crashes),
        decide_recovery(situation, failure, (lambda _: frozen,), facts, Mode.ACTIVE, crashes),
    ]
    assert [(c.action, c.flags_after) for c in found if isinstance(c, Change)] == [(Action.ROLLBACK, served)] * 2
    unserved = replace(facts, served=None)
    assert isinstance(decide_recovery(situation, failure, (lambda _: stop,), unserved, Mode.ACTIVE, crashes), Hold)


def test_advice_alone_starts_the_server_again_with_the_same_flags() -> None:
    """In advisory mode the server still comes back, and the reason names what would have been changed."""
    change = decided(LOWER, mode=Mode.ADVISORY)
    assert isinstance(change, Change)
    assert (change.action, change.flags_after) == (Action.RETRY, FLAGS)
    assert "would be: lower it" in change.proposal.reason


def test_a_remedy_that_a_gate_holds_is_a_retry_with_its_reason() -> None:
    """A frozen flag leaves the same flags and says so."""
    change = decided(LOWER, replace(FACTS, guard=Guard({})))
    assert isinstance(change, Change)
    assert change.action is Action.RETRY
    assert "never touched" in change.proposal.reason


def test_the_fifth_failure_of_a_kind_in_a_window_is_held() -> None:
    """Five of a class in 15 minutes with no remedy left open the breaker; four, or old ones, do not."""
    times = (9_200.0, 9_400.0, 9_600.0, 9_800.0, 10_000.0)
    five = CrashRecord(5, tuple((t, "runtime-oom") for t in times))
    hold = decided(None, crashes=five)
    assert isinstance(hold, Hold)
    assert "5 failures" in hold.message
    mixed = CrashRecord(5, ((100.0, "runtime-oom"), (9_300.0, "infra-fault"), *five.recent[1:4]))
    assert isinstance(decided(None, crashes=mixed), Change)


def test_memory_that_is_given_back_is_waited_for() -> None:
    """A wish to wait is a launch with the same flags, a few seconds later, even after the first failure."""
    change = decided(Proposal("p", Domain.MEMORY, Wish.WAIT_THEN_RETRY, "wait for it"))
    assert isinstance(change, Change)
    assert (change.action, change.wait_s, change.flags_after) == (Action.RETRY, WAIT_S, FLAGS)


def test_the_wait_grows_from_nothing_to_five_minutes() -> None:
    """The first failure costs no wait, then 1 s doubles up to the limit."""
    assert [backoff_s(n) for n in (0, 1, 2, 3, 4)] == [0.0, 0.0, 1.0, 2.0, 4.0]
    assert backoff_s(50) == BACKOFF_LIMIT_S
