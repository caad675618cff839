"""After a quiet time: one step back towards the operator's flags."""

from dataclasses import replace

import pytest

from vllmd.decide.gates import GateFacts
from vllmd.decide.step_back import decide_step_back
from vllmd.model.decision import Action, Change, Domain, Hold, HoldReason, Proposal, Situation, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import Flags, FlagValue
from vllmd.model.options import Catalogue
from vllmd.model.server import Phase
from vllmd.model.settings import Bounds, Budget, Guard, Mode
from vllmd.model.tried import Ban
from vllmd_policies.step_back import step_back

BASELINE = Flags((("gpu-memory-utilization", "0.92"), ("max-num-seqs", "256")))
GUARD = Guard({name: Bounds() for name in ("gpu-memory-utilization", "max-num-seqs", "enforce-eager")})


def quiet(**moved: FlagValue | None) -> Situation:
    """Return a quiet situation in which recoveries from an OOM moved these flags."""
    changes = {name.replace("_", "-"): value for name, value in moved.items()}
    return Situation(
        BASELINE,
        BASELINE.changed(changes),
        quiet=True,
        recovered=dict.fromkeys(changes, FailureClass.RUNTIME_OOM.value),
    )


def facts(situation: Situation, **more: object) -> GateFacts:
    """Return what the gates know."""
    known = GateFacts(situation.flags, GUARD, Budget(), Catalogue({}, None), 1000.0)
    return replace(known, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("moved", "step"),
    [
        ({"gpu_memory_utilization": "0.56"}, {"gpu-memory-utilization": "0.74"}),
        ({"gpu_memory_utilization": "0.88"}, {"gpu-memory-utilization": "0.9"}),
        ({"gpu_memory_utilization": "0.91"}, {"gpu-memory-utilization": "0.92"}),
        ({"max_num_seqs": "64", "gpu_memory_utilization": "0.88"}, {"max-num-seqs": "256"}),
        ({"enforce_eager": True, "max_num_seqs": "64"}, {"enforce-eager": None}),
    ],
)
def test_one_step_at_a_time_what_costs_most_first(
    moved: dict[str, FlagValue], step: dict[str, FlagValue | None]
) -> None:
    """Graphs, then throughput, and the utilization by half of its way."""
    wish = step_back(quiet(**moved))
    assert wish is not None
    assert wish.changes == step


def test_what_a_neighbour_took_comes_back_whole() -> None:
    """Nothing of the model's own failed; whether the neighbour is gone, the budget of the memory knows."""
    lowered = quiet(gpu_memory_utilization="0.56")
    wish = step_back(replace(lowered, recovered={"gpu-memory-utilization": FailureClass.GPU_MEMORY_TAKEN.value}))
    assert wish is not None
    assert wish.changes == {"gpu-memory-utilization": "0.92"}


def test_a_utilization_that_was_raised_stays() -> None:
    """A smaller pool is worth no restart."""
    assert step_back(quiet(gpu_memory_utilization="0.96")) is None


def test_nothing_is_stepped_back_before_it_was_quiet_or_that_a_target_moved() -> None:
    """Only a recovery's changes, and not beside a failure."""
    situation = quiet(max_num_seqs="64")
    failed = Failure(FailureClass.RUNTIME_OOM, Phase.SERVING, 1, "an OOM")
    for other in (
        replace(situation, quiet=False),
        replace(situation, recovered={}),
        replace(situation, failure=failed),
        replace(situation, flags=BASELINE),
    ):
        assert step_back(other) is None


def test_a_step_is_a_restart_within_the_budget() -> None:
    """It passes the gates and costs one voluntary restart."""
    situation = quiet(gpu_memory_utilization="0.88")
    change = decide_step_back(situation, [step_back], facts(situation), Mode.ACTIVE)
    assert isinstance(change, Change)
    assert change.action is Action.RESTART
    assert change.flags_after["gpu-memory-utilization"] == "0.9"
    used = facts(situation, voluntary_s=(990.0, 995.0))
    hold = decide_step_back(situation, [step_back], used, Mode.ACTIVE)
    assert isinstance(hold, Hold)
    assert hold.reason is HoldReason.BUDGET


def test_a_step_to_what_crashed_is_not_tried() -> None:
    """Half of the way back is 0.90; 0.89 crashed, so that 0.90 asks for at least as much."""
    situation = quiet(gpu_memory_utilization="0.88")
    crashed = situation.flags.changed({"gpu-memory-utilization": "0.89"})
    ban = Ban(crashed, Failure(FailureClass.RUNTIME_OOM, Phase.SERVING, 4, "an OOM"))
    hold = decide_step_back(situation, [step_back], facts(situation, bans=(ban,)), Mode.ACTIVE)
    assert isinstance(hold, Hold)
    assert hold.reason is HoldReason.ALREADY_TRIED
    assert hold.message == "what asks for less was run as generation 4: an OOM"


def test_a_step_that_is_refused_does_not_bar_the_others() -> None:
    """The sequences are frozen, the utilization goes back; where it is frozen, too, the first refusal is told."""
    situation = quiet(gpu_memory_utilization="0.88", max_num_seqs="64")
    frozen = replace(GUARD, frozen=frozenset({"max-num-seqs"}))
    change = decide_step_back(situation, [step_back], facts(situation, guard=frozen), Mode.ACTIVE)
    assert isinstance(change, Change)
    assert change.proposal.changes == {"gpu-memory-utilization": "0.9"}
    both = replace(GUARD, frozen=frozenset({"max-num-seqs", "gpu-memory-utilization"}))
    hold = decide_step_back(situation, [step_back], facts(situation, guard=both), Mode.ACTIVE)
    assert isinstance(hold, Hold)
    assert hold.message == "max-num-seqs is frozen by the configuration"


def test_a_policy_that_wishes_for_something_else_is_asked_once() -> None:
    """What it wishes is refused, and the search ends."""
    situation = quiet(gpu_memory_utilization="0.88")
    wish = Proposal("other", Domain.MEMORY, Wish.CHANGE_FLAGS, "", {"max-model-len": "1"})
    assert isinstance(decide_step_back(situation, [lambda _: wish], facts(situation), Mode.ACTIVE), Hold)


@pytest.mark.parametrize("mode", [Mode.ADVISORY, Mode.OBSERVE])
def test_without_the_operators_leave_it_is_only_said(mode: Mode) -> None:
    """Memory mode governs it."""
    situation = quiet(gpu_memory_utilization="0.88")
    hold = decide_step_back(situation, [step_back], facts(situation), mode)
    assert isinstance(hold, Hold)
    assert hold.reason is HoldReason.OBSERVE_ONLY
