"""Classes that the text alone does not decide: what the numbers, the work and the host make of them."""

from collections.abc import Mapping

import pytest

from captures import GIB
from vllmd.decide.failure_texts import Work
from vllmd.decide.refine import Clues, refined
from vllmd.model.failure import FailureClass
from vllmd.model.host_facts import HostFacts
from vllmd.model.server import Phase

NOBODY = HostFacts()
SHARED = HostFacts(unified_memory=True)


def of(
    kind: FailureClass,
    numbers: Mapping[str, float],
    host: HostFacts = NOBODY,
    version: str | None = "0.26.0",
    work: Work | None = None,
    cause: str = "",
) -> FailureClass:
    """Return the class of a text with these sizes in GiB (utilization apart)."""
    sizes = {n: v if n == "utilization" else v * GIB for n, v in numbers.items()}
    return refined(kind, Clues(sizes, Phase.PROFILING, work, version, host, cause))


@pytest.mark.parametrize(
    ("free", "total", "host", "kind"),
    [
        (0.41, 79.18, NOBODY, FailureClass.GPU_MEMORY_TAKEN),
        (30.12, 31.84, NOBODY, FailureClass.UTILIZATION_TOO_HIGH),  # a desktop and the driver
        (5.1, 7.6, SHARED, FailureClass.UTILIZATION_TOO_HIGH),  # the operating system of a Jetson
        (36.75, 121.63, SHARED, FailureClass.GPU_MEMORY_TAKEN),
    ],
)
def test_what_others_hold_tells_a_neighbour_from_a_high_utilization(
    free: float,
    total: float,
    host: HostFacts,
    kind: FailureClass,
) -> None:
    """A quarter of a GPU of its own, half of a shared memory, is somebody's."""
    numbers = {"free_bytes": free, "total_bytes": total, "requested_bytes": total}
    assert of(FailureClass.UTILIZATION_TOO_HIGH, numbers, host) is kind


@pytest.mark.parametrize(
    ("numbers", "version", "kind"),
    [
        ({"total_bytes": 139.8, "weights_bytes": 131.4, "available_bytes": -4.75}, "0.26", "utilization-too-low"),
        ({"total_bytes": 139.8, "weights_bytes": 138.0, "available_bytes": -11.0}, "0.26", "weights-do-not-fit"),
        ({"total_bytes": 80.0, "weights_bytes": 30.0, "available_bytes": -11.0}, "0.26", "utilization-too-low"),
        ({"total_bytes": 80.0, "weights_bytes": 78.0}, "0.26", "weights-do-not-fit"),
        ({"total_bytes": 80.0, "weights_bytes": 30.0, "others_bytes": 20.0}, "0.7.3", "gpu-memory-taken-by-others"),
        ({"total_bytes": 80.0, "weights_bytes": 30.0, "others_bytes": 20.0}, "0.9.2", "utilization-too-low"),
        ({}, None, "utilization-too-low"),
    ],
)
def test_an_empty_pool_has_three_causes(numbers: Mapping[str, float], version: str | None, kind: str) -> None:
    """A utilization with room above it, weights that fill the device, a neighbour that the version counts."""
    assert of(FailureClass.UTILIZATION_TOO_LOW, {"utilization": 0.92, **numbers}, version=version) == kind


@pytest.mark.parametrize(
    ("numbers", "work", "cause", "kind"),
    [
        ({"total_bytes": 24, "free_bytes": 0.1, "used_bytes": 6}, Work.WEIGHTS, "", FailureClass.GPU_MEMORY_TAKEN),
        ({"total_bytes": 24, "free_bytes": 0.1, "used_bytes": 23}, Work.WEIGHTS, "", FailureClass.WEIGHTS_DO_NOT_FIT),
        ({"total_bytes": 24, "weights_bytes": 23}, Work.MEASURING, "", FailureClass.WEIGHTS_DO_NOT_FIT),
        ({"total_bytes": 24, "weights_bytes": 12}, Work.MEASURING, "", FailureClass.WARMUP_OOM),
        ({}, Work.POOL, "", FailureClass.UTILIZATION_TOO_HIGH),
        ({}, Work.GRAPHS, "", FailureClass.GRAPH_CAPTURE_OOM),
        ({}, Work.WARMUP, "", FailureClass.WARMUP_OOM),
    ],
)
def test_an_allocation_is_judged_by_the_work_and_by_who_holds_the_rest(
    numbers: Mapping[str, float], work: Work, cause: str, kind: FailureClass
) -> None:
    """The same text means five things."""
    assert of(FailureClass.WARMUP_OOM, numbers, work=work, cause=cause) is kind


def test_memory_that_did_not_move_is_no_race() -> None:
    """30.3 and 30.3 GiB: nobody released anything, the comparison is at fault."""
    race = FailureClass.PROFILING_RACE
    assert of(race, {"before_bytes": 30.3, "after_bytes": 30.3}) is FailureClass.INFRA_FAULT
    assert of(race, {"before_bytes": 82.9, "after_bytes": 90.2}) is race


def test_an_engine_that_starts_beside_it_takes_the_blame() -> None:
    """What two starts measure at once is neither's."""
    host = HostFacts(other_engine_starting=True)
    for kind in (FailureClass.UTILIZATION_TOO_LOW, FailureClass.MAX_MODEL_LEN_TOO_LONG):
        assert of(kind, {}, host) is FailureClass.PROFILING_RACE


def test_other_classes_stay_as_the_text_says() -> None:
    """Nothing refines them."""
    assert of(FailureClass.PORT_IN_USE, {}) is FailureClass.PORT_IN_USE
