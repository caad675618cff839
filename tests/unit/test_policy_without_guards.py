"""What the memory policies say of a log alone, where no guard holds: neighbours, CPUs, graphs, images."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from captures import GIB, failure_of, situation
from vllmd.decide.propose import propose
from vllmd.model.decision import Proposal, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import FlagValue
from vllmd.model.host_facts import HostFacts
from vllmd.model.server import Phase
from vllmd_policies import BUILT_IN


def said(failure: Failure, flags: Mapping[str, FlagValue] | None = None, **given: object) -> Proposal:
    """Return what helps."""
    wish = propose(situation(failure, flags, supervised=False, **given), BUILT_IN)
    assert wish is not None
    return wish


def beside(others_gib: float, total_gib: float) -> Failure:
    """Return a pool that a neighbour's memory left nothing for."""
    numbers = {"others_bytes": others_gib * GIB, "total_bytes": total_gib * GIB, "utilization": 0.2}
    return failure_of(FailureClass.GPU_MEMORY_TAKEN, numbers=numbers)


def test_a_neighbour_that_an_old_version_counts_is_added() -> None:
    """Before 0.9 the utilization covers the whole device: 0.2 of our own and 0.2 of the neighbour."""
    wish = said(beside(8.9, 44.4), version="0.7.3")
    assert wish.changes == {"gpu-memory-utilization": "0.41"}


def test_a_neighbour_that_leaves_no_room_is_the_operators() -> None:
    """More than the device cannot be had."""
    wish = said(beside(68.01, 79.15), version="0.6.4")
    assert wish.wish is Wish.STOP
    assert "1.06" in wish.reason


@pytest.mark.parametrize(
    ("whose", "wanted"),
    [("perhaps the previous instance", Wish.WAIT_THEN_RETRY), ("a training job", Wish.CHANGE_FLAGS)],
)
def test_memory_that_is_being_given_back_is_waited_for(whose: str, wanted: Wish) -> None:
    """A predecessor leaves, a neighbour stays."""
    numbers = {"free_bytes": 50 * GIB, "total_bytes": 80 * GIB, "requested_bytes": 72 * GIB, "utilization": 0.9}
    failure = failure_of(FailureClass.GPU_MEMORY_TAKEN, numbers=numbers)
    assert said(failure, host=HostFacts(other_process=whose)).wish is wanted


def test_no_utilization_below_the_weights_is_proposed() -> None:
    """What fits must hold the model."""
    numbers = {
        "free_bytes": 50 * GIB,
        "total_bytes": 80 * GIB,
        "requested_bytes": 72 * GIB,
        "utilization": 0.9,
        "weights_bytes": 60 * GIB,
    }
    assert said(failure_of(FailureClass.GPU_MEMORY_TAKEN, numbers=numbers)).wish is Wish.WAIT_THEN_RETRY


@pytest.mark.parametrize(
    ("numbers", "space"),
    [
        ({"pool_bytes": 0.0, "total_bytes": 14.84 * GIB}, "4"),
        ({"needed_bytes": 6.5 * GIB, "available_bytes": 4 * GIB, "free_bytes": 60 * GIB}, "7"),
        ({"pool_bytes": 0.0, "total_bytes": 4 * GIB}, "2"),
    ],
)
def test_the_cpu_backends_pool_is_a_variable(numbers: dict[str, float], space: str) -> None:
    """What one request needs, or the default, and no more than half of what there is."""
    failure = replace(failure_of(FailureClass.UTILIZATION_TOO_LOW, numbers=numbers), words={"device": "cpu"})
    assert said(failure, version="0.11.1").env == {"VLLM_CPU_KVCACHE_SPACE": space}


def test_a_variable_that_asks_for_too_much_is_lowered() -> None:
    """Nine tenths of what is free, in whole GiB."""
    numbers = {"pool_bytes": 100 * GIB, "free_bytes": 13.45 * GIB, "total_bytes": 14.84 * GIB}
    assert said(failure_of(FailureClass.UTILIZATION_TOO_HIGH, numbers=numbers)).env == {"VLLM_CPU_KVCACHE_SPACE": "12"}


def test_steps_shrink_where_utilization_is_at_its_end() -> None:
    """The activation peak gives its room to the pool."""
    numbers = {"utilization": 0.98, "batched_tokens": 8192.0, "total_bytes": 80 * GIB, "available_bytes": -GIB}
    wish = said(failure_of(FailureClass.UTILIZATION_TOO_LOW, numbers=numbers), {"max-num-seqs": "2048"})
    assert wish.changes == {"max-num-batched-tokens": "1024", "max-num-seqs": "1024"}


def test_the_pool_keeps_room_for_one_request() -> None:
    """Where less utilization would end in the opposite failure, the graphs get smaller instead."""
    numbers = {
        "total_bytes": 24 * GIB,
        "available_bytes": 2.97 * GIB,
        "concurrency": 1.22,
        "utilization": 0.98,
    }
    failure = failure_of(FailureClass.GRAPH_CAPTURE_OOM, Phase.CAPTURE, numbers)
    assert said(failure, version="0.29.1").changes == {"gpu-memory-utilization": "0.97"}
    tight = replace(failure, numbers={**numbers, "concurrency": 1.01})
    assert said(tight, {"max-num-seqs": "1"}, version="0.29.1").changes == {"max-cudagraph-capture-size": "1"}
    assert said(tight, version="0.9.2").changes == {"enforce-eager": True}


@pytest.mark.parametrize(("version", "limits"), [("0.7.3", "image=1,video=0"), ("0.11.0", '{"image": 1, "video": 0}')])
def test_videos_are_left_out_where_they_are_most_of_what_is_measured(version: str, limits: str) -> None:
    """Utilization has no effect before there is a pool."""
    failure = replace(failure_of(FailureClass.WARMUP_OOM), words={"multimodal": "{'image': 16384, 'video': 114688}"})
    assert said(failure, version=version).changes == {"limit-mm-per-prompt": limits}


def test_a_context_that_is_measured_whole_is_halved() -> None:
    """Without chunked prefill a step holds the longest prompt."""
    failure = failure_of(FailureClass.WARMUP_OOM)
    wish = said(failure, {"max-model-len": "16384"}, version="0.6.3", chunked_prefill_default=False)
    assert wish.changes == {"max-model-len": "8192"}


def test_one_huge_step_shrinks_the_steps_and_not_the_pool() -> None:
    """An allocation of a fifth of the device is no matter of reserve."""
    numbers = {"tried_bytes": 20.0 * GIB, "free_bytes": GIB, "total_bytes": 80 * GIB, "batched_tokens": 8192.0}
    assert said(failure_of(FailureClass.RUNTIME_OOM, Phase.SERVING, numbers)).changes == {
        "max-num-batched-tokens": "4096"
    }


def test_an_estimate_that_cannot_be_true_is_switched_off() -> None:
    """118 GiB of graphs on a device of 140."""
    numbers = {"graphs_bytes": 118.65 * GIB, "total_bytes": 139.8 * GIB, "available_bytes": -9 * GIB}
    assert said(failure_of(FailureClass.UTILIZATION_TOO_LOW, numbers=numbers)).wish is Wish.SET_ENV
