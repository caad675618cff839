"""The loop: several live flags in one decision, and the step from live values to a restart."""

from dataclasses import replace

from house import ARGV, House, house, settings
from unit.test_knobs import changes, set_live
from unit.test_loop import SLO, serve
from unit.test_loop_live import asked, begun, last_hold, mended, moved, next_server, slip
from vllmd.decide.propose import Policy
from vllmd.model.decision import (
    Action,
    Domain,
    HoldReason,
    Proposal,
    Situation,
    Wish,
)
from vllmd.model.flags import BATCHED_TOKENS, MAX_NUM_SEQS, FlagValue
from vllmd.model.orders import Pause
from vllmd.model.settings import Bounds, Guard
from vllmd.supervisor import as_it_is


def test_a_flag_that_the_command_leaves_out_is_told_with_what_was_launched() -> None:
    """The default is what the generation reports; back at it, nothing is asked for."""
    built = house(settings(SLO), ARGV[:-1])
    built.server.live.offer(max_num_batched_tokens=8192, max_num_seqs=64)
    built.loop.begin()
    built.loop.supervisor.facts = replace(built.loop.supervisor.facts, batched_tokens=8192)
    built.ready()
    serve(built, share_slow=0.05, seconds=125)
    assert moved(changes(built)[0]) == {BATCHED_TOKENS: ("8192", "4096")}
    serve(built, share_slow=0.2, seconds=65)
    assert moved(changes(built)[-1]) == {BATCHED_TOKENS: ("4096", "8192")}
    assert asked(built) is None


def wishing(**changes: str) -> Policy:
    """Return a policy that wishes for these flags while a target slips."""
    named: dict[str, FlagValue | None] = {name.replace("_", "-"): value for name, value in changes.items()}

    def wish(situation: Situation) -> Proposal | None:
        slips = situation.assessment is not None and situation.assessment.slipping()
        return Proposal("t", Domain.LATENCY, Wish.CHANGE_FLAGS, "r", named, trigger="itl_p99") if slips else None

    return wish


def with_policy(built: House, policy: Policy) -> None:
    """Let only this policy be heard from now on, and both live flags move."""
    instance = built.loop.supervisor.instance
    guard = Guard({BATCHED_TOKENS: Bounds(256, None), MAX_NUM_SEQS: Bounds(1, None)})
    built.loop.configure(replace(instance, settings=replace(instance.settings, guard=guard)), (policy,), as_it_is)


def test_tokens_and_sequences_of_one_decision_move_together() -> None:
    """And are taken back together; the operator's value of one of them keeps both from moving."""
    built = begun()
    with_policy(built, wishing(max_num_batched_tokens="1024", max_num_seqs="16"))
    set_live(built, MAX_NUM_SEQS, 32, 200)
    serve(built, share_slow=0.05, seconds=190)
    assert (last_hold(built), asked(built)) == (HoldReason.LIVE_SET, None)
    slip(built, 1024)
    assert built.server.live.offered.knobs[MAX_NUM_SEQS].asked == 16
    assert moved(changes(built)[-1]) == {BATCHED_TOKENS: ("2048", "1024"), MAX_NUM_SEQS: ("64", "16")}
    serve(built, share_slow=0.2, seconds=65)
    assert [knob.asked for knob in built.server.live.offered.knobs.values()] == [None, None]


def test_a_step_up_is_live_up_to_what_was_launched_and_a_restart_beyond() -> None:
    """The launch of more is not governed by what was decided below; its way back is what was in force."""
    built = mended()
    with_policy(built, wishing(max_num_batched_tokens="1536"))
    slip(built, 1536)
    assert changes(built)[-1].action is Action.LIVE
    serve(built, share_slow=0.002, seconds=65)
    with_policy(built, wishing(max_num_batched_tokens="4096"))
    serve(built, share_slow=0.05, seconds=200)
    built.drained()
    next_server(built, tokens=4096)
    assert (changes(built)[-1].action, moved(changes(built)[-1])) == (
        Action.RESTART,
        {BATCHED_TOKENS: ("1536", "4096")},
    )
    assert asked(built) is None
    serve(built, share_slow=0.2, seconds=100)
    assert changes(built)[-1].action is Action.ROLLBACK
    built.drained()
    assert built.flags[BATCHED_TOKENS] == "1536"


def test_a_restart_that_is_called_off_leaves_what_was_set_live() -> None:
    """It was to take its place, from the drain on and no sooner."""
    built = mended()
    built.server.gateless = None
    with_policy(built, wishing(max_num_batched_tokens="4096"))
    serve(built, share_slow=0.05, seconds=200)
    assert built.server.prepared is not None
    assert asked(built) == 1024
    built.loop.pause(Pause(built.clock.now_s(), None, "root"))
    built.tick()
    assert asked(built) == 1024
    setter = built.loop._journal.setter_of(BATCHED_TOKENS)  # noqa: SLF001 - what the status tells of
    assert setter is None
