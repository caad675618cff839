"""The loop: what a failure says of a value that was set live, and what it does not."""

from unit.test_knobs import changes
from unit.test_loop import RUNTIME_OOM, effects, serve
from unit.test_loop_live import asked, begun, last_hold, next_server, slip
from vllmd.model.decision import (
    Action,
    HoldReason,
    Verification,
)
from vllmd.model.live import Live
from vllmd.model.tried import Good

ASSERTION = "(EngineCore pid=7) ERROR 11-29 17:00:00 [core.py:1] AssertionError"


def test_a_failure_that_the_value_may_have_caused_ends_it() -> None:
    """The recovery launches the same flags, and they are not governed by it again."""
    built = begun()
    slip(built, 1024)
    built.server.live.offered = Live.nothing("its server has ended")
    built.dies(1, ASSERTION)
    next_server(built)
    assert asked(built) is None
    assert effects(built)[0] == "failed"
    assert built.told[-1].live is not None
    assert built.told[-1].live.orders == ()
    serve(built, share_slow=0.05, seconds=300)
    assert last_hold(built) is HoldReason.ALREADY_TRIED


def test_a_launch_that_fails_before_it_is_governed_says_nothing_of_the_value() -> None:
    """The value that soaked is not in force yet in a start: it soaks anew in the launch that comes to serve."""
    built = begun()
    slip(built, 1024)
    built.loop.restart()
    built.drained()
    built.dies(1, ASSERTION)
    built.tick(after_s=60)
    next_server(built)
    assert asked(built) == 1024
    verified = [e.change_id for _, e in built.ledger.entries if isinstance(e, Verification)]
    assert changes(built)[0].id not in verified


def test_a_failure_of_the_launched_flags_does_not() -> None:
    """Out of memory: the recovery moves the utilization, and the value soaks anew in the next launch."""
    built = begun()
    slip(built, 1024)
    built.dies(0, *RUNTIME_OOM)
    assert changes(built)[-1].action is Action.RECOVER
    next_server(built)
    assert asked(built) == 1024
    assert effects(built) == ["serving"]
    assert [e.generation for _, e in built.ledger.entries if isinstance(e, Good)] == [1, 2]
    serve(built, share_slow=0.002, seconds=75)
    assert effects(built)[-1] == "better"


def test_what_cannot_be_reached_any_more_is_given_up_with_its_trial() -> None:
    """The engine gave the shim up in the middle of a soak; readings across that moment decide nothing."""
    built = begun()
    slip(built, 1024)
    built.server.live.offered = Live.nothing("given up: RuntimeError")
    serve(built, share_slow=0.05, seconds=15)
    assert effects(built) == ["unknown"]
    assert "given up: RuntimeError" in changes(built)[-1].proposal.reason
    assert last_hold(built) is HoldReason.LIVE_SET
