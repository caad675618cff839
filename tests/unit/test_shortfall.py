"""What does not fit into memory is refused, and nothing that is computed right."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from captures import GIB, flags_of, read_log
from corpus_score import DATA, Labelled, in_folder, in_list
from vllmd.cli.diagnose import answer
from vllmd.cli.diagnose import flags_of as flags_in
from vllmd.decide.memory_budget import as_told, memory_budget
from vllmd.decide.shortfall import shortfall
from vllmd.decide.start_log import read_start
from vllmd.model.decision import Wish
from vllmd.model.flags import FlagValue
from vllmd.model.memory_budget import MemoryBudget
from vllmd.model.snapshot import Gpu, GpuProcess
from vllmd.model.status import StartFacts

# 24 GiB, of which a server that asks for 0.9 has 21.6: 15 of weights, 1 of activation, 0.6 of other things, 5 of pool.
BUDGET = MemoryBudget(
    device_bytes=24 * GIB,
    others_bytes=0.0,
    weights_bytes=15 * GIB,
    activation_bytes=1.0 * GIB,
    non_torch_bytes=0.6 * GIB,
    graphs_bytes=0.4 * GIB,
    graphs_counted_bytes=0.4 * GIB,
    kv_cache_bytes=5 * GIB,
    utilization=0.9,
    request_bytes=4 * GIB,
    request_tokens=32_768,
    batched_tokens=2048,
)
FLAGS = flags_of(("--gpu-memory-utilization", "0.9", "--max-num-seqs", "256"))
LABELLED = [
    *in_folder(DATA / "corpus"),
    *in_list(DATA / "logs" / "labels.yaml"),
    *in_list(DATA / "written.yaml"),
]


def lacking(budget: MemoryBudget = BUDGET, **changes: FlagValue | None) -> str | None:
    """Return what a change of these flags lacks."""
    return shortfall(budget, FLAGS, {name.replace("_", "-"): value for name, value in changes.items()})


def test_a_rise_into_the_memory_of_others_is_refused() -> None:
    """Beside 2 GiB of others, 21.5 of 24 GiB can be asked for, with the numbers in the sentence."""
    beside = replace(BUDGET, others_bytes=2 * GIB)
    told = lacking(beside, gpu_memory_utilization="0.92")
    assert told is not None
    assert "gpu-memory-utilization 0.92 needs 22.08 GiB, and 21.5 GiB of 24.0 GiB can be had beside" in told
    assert lacking(gpu_memory_utilization="0.97") is None


def test_graphs_beyond_the_utilization_count() -> None:
    """Graphs that the server does not count come on top: 0.97 fits without them and not with them."""
    uncounted = replace(BUDGET, graphs_counted_bytes=0.0)
    assert lacking(uncounted, gpu_memory_utilization="0.97") is not None
    assert lacking(uncounted, gpu_memory_utilization="0.96") is None


def test_a_flag_that_is_taken_away_leaves_the_default() -> None:
    """Without --gpu-memory-utilization the version's default is asked for; where that is unknown, nothing is said."""
    beside = replace(BUDGET, others_bytes=2 * GIB)
    assert lacking(beside, gpu_memory_utilization=None) is None
    assert lacking(replace(beside, utilization_default=0.92), gpu_memory_utilization=None) is not None
    assert lacking(replace(beside, utilization_default=0.89), gpu_memory_utilization=None) is None


def test_where_others_are_unknown_no_rise_is_refused() -> None:
    """Not enough known is no reason; nor is what others hold, where this version counts it as its own."""
    assert lacking(replace(BUDGET, others_bytes=None), gpu_memory_utilization="0.97") is None
    whole = replace(BUDGET, others_bytes=6 * GIB, counts_others=True)
    assert lacking(whole, gpu_memory_utilization="0.97") is None


def test_a_fall_that_leaves_less_than_one_request_is_refused() -> None:
    """1 GiB may go from the pool of 5 where one request needs 4; two thirds of the length need less."""
    assert lacking(gpu_memory_utilization="0.86") is None
    told = lacking(gpu_memory_utilization="0.85")
    assert told is not None
    assert "leaves 3.8 GiB of the KV pool's 5.0 GiB, and one request of full length needs 4.0 GiB" in told
    assert lacking(gpu_memory_utilization="0.85", max_model_len="22000") is None


def test_a_fall_that_leaves_no_pool_is_refused() -> None:
    """Where nobody said what a request needs, the pool can at least not be empty."""
    blind = replace(BUDGET, request_bytes=None)
    assert lacking(blind, gpu_memory_utilization="0.7") is None
    assert lacking(blind, gpu_memory_utilization="0.69") is not None


def test_a_length_that_vllm_fits_itself_is_never_too_long() -> None:
    """With --max-model-len auto the server shortens the context instead of failing."""
    assert lacking(gpu_memory_utilization="0.85", max_model_len="auto") is None


@pytest.mark.parametrize(
    ("name", "fits", "too_large"), [("max-num-batched-tokens", "4096", "8192"), ("max-num-seqs", "512", "1024")]
)
def test_a_larger_step_is_refused_where_its_activation_does_not_fit(name: str, fits: str, too_large: str) -> None:
    """The peak grows in proportion and is taken from the pool: 2 GiB of activation leave 4, 4 GiB leave 2."""
    assert shortfall(BUDGET, FLAGS, {name: fits}) is None
    told = shortfall(BUDGET, FLAGS, {name: too_large})
    assert told is not None
    assert "leaves 2.0 GiB" in told


def test_a_smaller_step_fits() -> None:
    """Nothing that only frees memory is refused, not even where the pool is too small as it is."""
    tight = replace(BUDGET, kv_cache_bytes=2 * GIB)
    assert lacking(tight, max_num_batched_tokens="512") is None
    assert lacking(tight, gpu_memory_utilization="0.91") is None


def test_a_pool_of_fixed_size_is_checked_beside_the_parts() -> None:
    """15 + 0.6 + 0.4 + 1 GiB are taken, so that 6.5 of 24 GiB are left for the pool beside the context."""
    fixed = flags_of(("--kv-cache-memory-bytes", "5G"))
    assert shortfall(BUDGET, fixed, {"kv-cache-memory-bytes": "6G"}) is None
    assert shortfall(BUDGET, fixed, {"kv-cache-memory-bytes": "7G"}) is not None
    assert shortfall(BUDGET, fixed, {"kv-cache-memory-bytes": "3G"}) is not None
    assert shortfall(BUDGET, fixed, {"gpu-memory-utilization": "0.5"}) is None


def test_other_flags_are_not_understood() -> None:
    """What --enforce-eager frees is not known here, so nothing is refused beside it."""
    assert lacking(gpu_memory_utilization="0.85", enforce_eager=True) is None


def test_a_real_start_gives_the_pool_that_another_utilization_has() -> None:
    """On the H200 one request of 8192 tokens needs 1 GiB: from 0.5 down, 0.11 is enough and 0.1 is not."""
    start = read_start(StartFacts(), read_log("h200-vllm-0.26.0/slow-start-sampler-jit.log"))
    budget = memory_budget(start, None, {}, 0.5)
    assert budget is not None
    assert shortfall(budget, FLAGS, {"gpu-memory-utilization": "0.115"}) is not None  # the flags say 0.9, not 0.5
    launched = flags_of(("--gpu-memory-utilization", "0.5"))
    assert shortfall(budget, launched, {"gpu-memory-utilization": "0.115"}) is None
    assert shortfall(budget, launched, {"gpu-memory-utilization": "0.11"}) is not None


def gpus_of(context: Mapping[str, object]) -> tuple[Gpu, ...] | None:
    """Return what the driver would have said on the host of a labelled log."""
    total, held = context.get("gpu_total_gib"), context.get("other_process_used_gib") or 0.0
    if not isinstance(total, int | float) or not isinstance(held, int | float):
        return None
    own, others = int((total - held) * GIB), int(held * GIB)
    processes = (GpuProcess(1, own, "VLLM::EngineCore", ours=True), GpuProcess(2, others, "python3", ours=False))
    return (Gpu(0, "GPU-0", "a GPU", int(total * GIB), int(total * GIB), processes),)


@pytest.mark.parametrize("case", LABELLED, ids=lambda case: case.name)
def test_no_right_remedy_is_refused(case: Labelled) -> None:
    """What is computed against a labelled failure passes, with the budget of its log and of its host."""
    failure, remedy = answer(case.lines, case.question)
    flags = flags_in(case.question.words)
    start = read_start(StartFacts(), case.lines)
    budget = memory_budget(start, gpus_of(case.question.context), {}, flags.number("gpu-memory-utilization"))
    told = as_told(budget, {**failure.numbers, **remedy.numbers}, case.question.version)
    changes = remedy.changes if remedy.wish is Wish.CHANGE_FLAGS else {}
    assert shortfall(told, flags, changes) is None
