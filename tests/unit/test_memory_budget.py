"""The budget: every real start adds up, others are known or not said, and what is printed wins where it is newest."""

import pytest

from captures import GIB, H200_BYTES, LOGS, read_log
from vllmd.decide.memory_budget import as_told, budget_of, foreign_on, memory_budget
from vllmd.decide.start_log import read_start
from vllmd.model.flags import Flags
from vllmd.model.memory_budget import MemoryBudget
from vllmd.model.server import Launch
from vllmd.model.snapshot import Gpu, GpuProcess, Metrics, Snapshot
from vllmd.model.status import StartFacts

BROKEN_DOWN = sorted(
    str(log.relative_to(LOGS))
    for log in LOGS.glob("*/*.log")
    if "for peak activation" in log.read_text(encoding="utf-8")
)
SERVED = "h200-vllm-0.26.0/serving-mbt8192.log"


def facts_of(file: str) -> StartFacts:
    """Return what the start of a captured log says."""
    return read_start(StartFacts(), read_log(file))


def gpu(used_gib: float, *processes: GpuProcess, index: int = 0) -> Gpu:
    """Return an H200 of which this much is used."""
    return Gpu(index, f"GPU-{index}", "NVIDIA H200", H200_BYTES, int(used_gib * GIB), processes)


def ours(size_gib: float | None) -> GpuProcess:
    """Return a process of the server's."""
    return GpuProcess(41, None if size_gib is None else int(size_gib * GIB), "VLLM::EngineCore", ours=True)


def other(size_gib: float | None) -> GpuProcess:
    """Return somebody else's process."""
    return GpuProcess(77, None if size_gib is None else int(size_gib * GIB), "python3 (anna)", ours=False)


def gib(size: float | None) -> float:
    """Return a known size in GiB."""
    assert size is not None
    return size / GIB


def table(budget: MemoryBudget) -> str:
    """Return the budget as a table in GiB, for a failure's message."""
    kinds = ("weights", "non_torch", "activation", "graphs_counted", "graphs", "kv_cache", "requested")
    sizes = {kind: getattr(budget, f"{kind}_bytes") for kind in kinds}
    return "\n".join(
        f"{kind:>15} {'-' if size is None else format(size / GIB, '8.2f')}" for kind, size in sizes.items()
    )


def test_the_captures_have_breakdowns() -> None:
    """The folder of real logs holds starts that were broken down, so that the next test tests something."""
    assert len(BROKEN_DOWN) >= 9


@pytest.mark.parametrize("file", BROKEN_DOWN)
def test_a_real_start_adds_up(file: str) -> None:
    """What the server counted when it sized its pool is what the utilization asks for; graphs may come on top."""
    budget = memory_budget(facts_of(file), None, {})
    assert budget is not None
    requested = gib(budget.requested_bytes)
    counted = gib(budget.held_bytes) - (budget.graphs_bytes or 0.0) / GIB + gib(budget.graphs_counted_bytes)
    assert counted == pytest.approx(requested, rel=0.001), table(budget)
    assert gib(budget.held_bytes) == pytest.approx(requested, rel=0.015), table(budget)


def test_a_pool_of_fixed_size_has_no_breakdown() -> None:
    """With --kv-cache-memory-bytes the log says weights, pool and graphs, and neither activation nor non-torch."""
    budget = memory_budget(facts_of("h200-vllm-0.26.0/good-start-kv-cache-bytes.log"), None, {})
    assert budget is not None
    assert (gib(budget.weights_bytes), gib(budget.kv_cache_bytes), gib(budget.graphs_bytes)) == (13.5, 122.6, 0.98)
    assert (budget.activation_bytes, budget.non_torch_bytes) == (None, None)


def test_a_cpu_server_has_its_pool_from_the_metrics() -> None:
    """Labels of vllm:cache_config_info fill in what a log does not say."""
    labels = {"kv_cache_memory_bytes": "1073741824", "kv_cache_max_concurrency": "512.0", "num_gpu_blocks": "None"}
    budget = memory_budget(StartFacts(), None, {**labels, "gpu_memory_utilization": "0.92"})
    assert budget is not None
    assert (budget.kv_cache_bytes, budget.utilization) == (GIB, 0.92)
    assert budget.request_bytes == pytest.approx(GIB / 512, rel=0.001)


def test_without_a_concurrency_the_tokens_say_what_a_request_needs() -> None:
    """Blocks times their size, where neither the log nor newer labels say the tokens."""
    start = StartFacts(kv_cache_bytes=4 * GIB, request_tokens=1024)
    budget = memory_budget(start, None, {"num_gpu_blocks": "256", "block_size": "16"})
    assert budget is not None
    assert budget.request_bytes == GIB


def test_sums_are_taken_apart() -> None:
    """Where weights are only printed together with another part, that part is what is left."""
    start = StartFacts(weights_bytes=10.0, consumed_bytes=12.0, torch_peak_bytes=15.0)
    budget = memory_budget(start, None, {})
    assert budget is not None
    assert (budget.non_torch_bytes, budget.activation_bytes) == (2.0, 5.0)


def test_nothing_said_is_no_budget() -> None:
    """Without a log, labels and a driver there is no budget."""
    assert memory_budget(StartFacts(), None, {}) is None


def test_others_and_the_unexplained_are_told_apart() -> None:
    """What is used beyond our parts and the others' is the driver's and the context's."""
    budget = memory_budget(facts_of(SERVED), (gpu(130.0, ours(126.9), other(2.1)),), {})
    assert budget is not None
    assert gib(budget.others_bytes) == pytest.approx(2.1)
    assert gib(budget.unexplained_bytes) == pytest.approx(130.0 - 2.1 - 126.8, abs=0.01)


def test_others_are_unknown_where_the_driver_does_not_say() -> None:
    """One process of unknown size makes the sum unknown, never smaller."""
    budget = memory_budget(facts_of(SERVED), (gpu(130.0, ours(126.9), other(None)),), {})
    assert budget is not None
    assert budget.others_bytes is None
    assert budget.unexplained_bytes is None


def test_we_are_not_called_others_in_a_container() -> None:
    """A host's pid that may be ours is nobody's; the same list before anything is loaded is somebody else's."""
    held = gpu(130.0, other(127.0))
    assert foreign_on(held, (held,), facts_of(SERVED)) is None
    assert foreign_on(held, (held,), StartFacts()) == held.processes
    gone = gpu(5.0, other(4.0))  # less than the weights take: the server cannot be in it
    assert foreign_on(gone, (gone,), facts_of(SERVED)) == gone.processes


def test_memory_that_nobody_is_listed_for_is_unknown() -> None:
    """An empty list means nobody only where nothing is held."""
    assert foreign_on(gpu(60.0), (gpu(60.0),), StartFacts()) is None
    assert foreign_on(gpu(0.6), (gpu(0.6),), StartFacts()) == ()


def test_the_fullest_of_our_gpus_counts() -> None:
    """Under tensor parallelism memory ends first where least is free; a GPU of others' does not count."""
    gpus = (gpu(139.0, other(138.0)), gpu(127.0, ours(126.0), index=1), gpu(129.0, ours(126.0), other(2.0), index=2))
    budget = memory_budget(facts_of(SERVED), gpus, {})
    assert budget is not None
    assert (budget.gpu, gib(budget.others_bytes)) == (2, 2.0)


def test_of_several_gpus_none_is_guessed() -> None:
    """Where ours are recognised on none of several GPUs, nobody knows whose free memory counts."""
    budget = memory_budget(StartFacts(), (gpu(0.6), gpu(60.0, other(59.0), index=1)), {})
    assert budget is not None
    assert (budget.gpu, budget.free_bytes, budget.others_bytes) == (None, None, None)


def test_metrics_of_another_launch_say_nothing() -> None:
    """The labels of the generation before are not the failed launch's."""
    launch = Launch(4, ("vllm",), Flags((("gpu-memory-utilization", "0.8"),)), 0.0, "log")
    metrics = Metrics(info={"kv_cache_memory_bytes": "1073741824", "gpu_memory_utilization": "0.9"})
    late, same = (budget_of(StartFacts(), Snapshot(1.0, n, metrics, None), launch) for n in (3, 4))
    assert late is not None
    assert same is not None
    assert (late.kv_cache_bytes, late.utilization) == (None, 0.8)
    assert (same.kv_cache_bytes, same.utilization) == (GIB, 0.8)


def test_a_failures_numbers_win() -> None:
    """What the failed launch itself measured counts more than the driver's reading of another moment."""
    budget = MemoryBudget(others_bytes=0.0, device_bytes=1.0, weights_bytes=13.5 * GIB, utilization=0.9)
    numbers = {"free_bytes": 78.77 * GIB, "total_bytes": 139.8 * GIB, "requested_bytes": 128.62 * GIB}
    told = as_told(budget, numbers, "0.26.0")
    assert gib(told.others_bytes) == pytest.approx(139.8 - 78.77 - 0.5)
    assert (gib(told.device_bytes), told.weights_bytes) == (139.8, 13.5 * GIB)


def test_what_was_free_at_an_allocation_is_not_what_others_leave() -> None:
    """The free memory of an out-of-memory error has our own share taken off: it says nothing of others."""
    told = as_told(MemoryBudget(), {"free_bytes": 0.4 * GIB, "total_bytes": 139.8 * GIB, "tried_bytes": GIB}, None)
    assert told.others_bytes is None


def test_versions_bring_their_defaults() -> None:
    """An unset utilization is the version's, and before 0.9 it has the others' memory in it."""
    new, old = as_told(None, {}, "0.33.0"), as_told(None, {}, "0.7.3")
    assert (new.utilization, new.counts_others) == (0.92, False)
    assert (old.utilization, old.counts_others) == (0.9, True)
