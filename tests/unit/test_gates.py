"""Each gate has a case that holds and one that passes."""

from dataclasses import replace

import pytest

from captures import GIB
from vllmd.decide.gates import GateFacts, allow, within_budget
from vllmd.model.decision import Domain, Hold, HoldReason, Proposal, Wish
from vllmd.model.flags import Flags, FlagValue
from vllmd.model.memory_budget import MemoryBudget
from vllmd.model.options import Catalogue, Option
from vllmd.model.settings import Bounds, Budget, Guard

FLAGS = Flags((("gpu-memory-utilization", "0.9"), ("max-num-batched-tokens", "2048")))
CATALOGUE = Catalogue(
    {n: Option(n, (f"--{n}",)) for n in ("gpu-memory-utilization", "max-num-batched-tokens", "enforce-eager")}, "0.33.0"
)
FACTS = GateFacts(
    flags=FLAGS,
    guard=Guard({"gpu-memory-utilization": Bounds(0.5, 0.95, 0.02), "max-num-batched-tokens": Bounds(256, 8192)}),
    budget=Budget(restarts_per_hour=2, restarts_per_day=3),
    catalogue=CATALOGUE,
    now_s=100_000.0,
)


def wish(**changes: FlagValue | None) -> Proposal:
    """Return a wish for these flags."""
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    return Proposal("test", Domain.MEMORY, Wish.CHANGE_FLAGS, "because", named)


def reason(proposal: Proposal, facts: GateFacts = FACTS) -> HoldReason | None:
    """Return why a proposal is held, None if it passes."""
    found = allow(proposal, facts)
    return found.reason if isinstance(found, Hold) else None


def test_a_guarded_flag_inside_its_bounds_passes() -> None:
    """A flag with an entry in [guard] may move inside its bounds."""
    assert reason(wish(max_num_batched_tokens="1024")) is None


def test_a_frozen_flag_holds() -> None:
    """A frozen flag is not touched, nor one without a guard."""
    frozen = replace(FACTS, guard=replace(FACTS.guard, frozen=frozenset({"max-num-batched-tokens"})))
    assert reason(wish(max_num_batched_tokens="1024"), frozen) is HoldReason.FROZEN
    assert reason(wish(max_num_seqs="8")) is HoldReason.FROZEN


def test_an_option_that_this_vllm_lacks_holds() -> None:
    """An option that the installation does not know is never added; where nothing could be read, it may be."""
    guard = Guard({"max-num-seqs": Bounds()})
    assert reason(wish(max_num_seqs="8"), replace(FACTS, guard=guard)) is HoldReason.UNKNOWN_OPTION
    assert reason(wish(max_num_seqs="8"), replace(FACTS, guard=guard, catalogue=Catalogue({}))) is None


@pytest.mark.parametrize("value", ["128", "16384"])
def test_a_value_outside_the_guard_holds(value: str) -> None:
    """A value below the minimum or above the maximum is not taken."""
    assert reason(wish(max_num_batched_tokens=value)) is HoldReason.GUARD


def test_a_computed_value_is_rounded_to_the_step_away_from_the_present_one() -> None:
    """Rounding only makes a remedy stronger: down when it goes down, up when it goes up."""
    down, up = allow(wish(gpu_memory_utilization="0.875"), FACTS), allow(wish(gpu_memory_utilization="0.905"), FACTS)
    assert isinstance(down, Proposal)
    assert isinstance(up, Proposal)
    assert (down.changes, up.changes) == ({"gpu-memory-utilization": "0.86"}, {"gpu-memory-utilization": "0.92"})


@pytest.mark.parametrize(("name", "value"), [("gpu-memory-utilization", "0.6"), ("max-num-batched-tokens", "1024")])
def test_what_a_coarse_step_rounds_to_nothing_holds(name: str, value: str) -> None:
    """No vLLM starts with nothing."""
    guard = Guard({"gpu-memory-utilization": Bounds(step=0.7), "max-num-batched-tokens": Bounds(step=1500)})
    present = Flags((("gpu-memory-utilization", "0.9"), ("max-num-batched-tokens", "2048")))
    proposal = Proposal("test", Domain.MEMORY, Wish.CHANGE_FLAGS, "because", {name: value})
    assert reason(proposal, replace(FACTS, guard=guard, flags=present)) is HoldReason.GUARD


def test_rounding_stops_at_the_guard() -> None:
    """A step that would carry a value beyond a bound that it was inside of stops at the bound."""
    guard = Guard({"gpu-memory-utilization": Bounds(0.21, 0.29, 0.05)})
    up = allow(wish(gpu_memory_utilization="0.275"), replace(FACTS, guard=guard, flags=Flags()))
    down = allow(wish(gpu_memory_utilization="0.23"), replace(FACTS, guard=guard))
    assert isinstance(up, Proposal)
    assert isinstance(down, Proposal)
    assert (up.changes, down.changes) == ({"gpu-memory-utilization": "0.29"}, {"gpu-memory-utilization": "0.21"})


def test_a_value_that_did_harm_holds_whatever_the_other_flags_are() -> None:
    """After other flags moved, the harmful value is still barred."""
    harmful = replace(FACTS, barred_values=frozenset({("max-num-batched-tokens", "1024")}))
    assert reason(wish(max_num_batched_tokens="1024"), harmful) is HoldReason.ALREADY_TRIED
    assert reason(wish(max_num_batched_tokens="512"), harmful) is None


def test_flags_that_were_tried_hold() -> None:
    """A barred configuration is not entered again; the present one is no change."""
    tried = replace(FACTS, barred=frozenset({FLAGS.changed({"max-num-batched-tokens": "1024"})}))
    assert reason(wish(max_num_batched_tokens="1024"), tried) is HoldReason.ALREADY_TRIED
    assert reason(wish(max_num_batched_tokens="512"), tried) is None
    assert reason(wish(max_num_batched_tokens="2048")) is HoldReason.NO_REMEDY


def test_the_budget_holds_until_the_oldest_restart_is_old_enough() -> None:
    """Two restarts in an hour are the limit here, three in a day."""
    assert within_budget(replace(FACTS, voluntary_s=(99_000.0,))) is None
    hold = within_budget(replace(FACTS, voluntary_s=(98_000.0, 99_000.0)))
    assert hold is not None
    assert (hold.reason, hold.until_s) == (HoldReason.BUDGET, 101_600.0)
    day = within_budget(replace(FACTS, voluntary_s=(20_000.0, 30_000.0, 40_000.0)))
    assert day is not None
    assert day.until_s == 106_400.0


def test_a_budget_of_nothing_allows_nothing() -> None:
    """With 0 restarts an hour the gate never opens and names no time."""
    hold = within_budget(replace(FACTS, budget=Budget(restarts_per_hour=0)))
    assert hold is not None
    assert hold.until_s is None


def test_what_does_not_fit_into_memory_holds() -> None:
    """A rise into what others hold is refused by the budget, and by a failure's own numbers, which win."""
    memory = MemoryBudget(device_bytes=100.0 * GIB, others_bytes=8.0 * GIB)
    assert reason(wish(gpu_memory_utilization="0.94"), replace(FACTS, memory=memory)) is HoldReason.MEMORY
    assert reason(wish(gpu_memory_utilization="0.94"), FACTS) is None
    alone = {"total_bytes": 100.0 * GIB, "free_bytes": 99.5 * GIB, "requested_bytes": 90.0 * GIB}
    told = replace(wish(gpu_memory_utilization="0.94"), numbers=alone)
    assert reason(told, replace(FACTS, memory=memory)) is None


def test_memory_counts_as_this_vllm_counts_it() -> None:
    """Before 0.9 a utilization has the others' memory in it, so a rise by their share is right."""
    memory = MemoryBudget(device_bytes=100.0 * GIB, others_bytes=8.0 * GIB)
    old = replace(FACTS, memory=memory, catalogue=replace(CATALOGUE, version="0.7.3"))
    assert reason(wish(gpu_memory_utilization="0.94"), old) is None


def test_memory_is_sized_by_the_launch_whatever_is_set_live_below_it() -> None:
    """Back up to what was launched takes no memory; the same step by a launch does."""
    budget = MemoryBudget(
        kv_cache_bytes=1 * GIB, request_bytes=1 * GIB, activation_bytes=1 * GIB, utilization=0.9, batched_tokens=2048
    )
    below = replace(FACTS, flags=FLAGS.changed({"max-num-batched-tokens": "512"}), memory=budget)
    assert reason(wish(max_num_batched_tokens="2048"), below) is HoldReason.MEMORY
    assert reason(wish(max_num_batched_tokens="2048"), replace(below, launched=FLAGS)) is None
