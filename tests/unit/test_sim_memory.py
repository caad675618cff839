"""The simulated memory arithmetic, against numbers that vLLM 0.26 printed on an H200."""

from dataclasses import replace

import pytest

from vllmd_sim.config import EngineConfig, resolve
from vllmd_sim.failures import EngineError
from vllmd_sim.host import GIB, Host
from vllmd_sim.memory import Memory, Pool, measure
from vllmd_sim.options import parse

# An 8B Llama with random weights; the activation peak of 8192 batched tokens is given as a whole.
H200 = Host(
    gpu="NVIDIA H200",
    gpu_total_gib=139.8,
    weights_gib=13.5,
    activation_base_gib=0.93,
    activation_bytes_per_token=0,
    graphs_estimate_gib=0.0,
)


def config_of(*argv: str, host: Host = H200) -> EngineConfig:
    """Return the configuration of a command line."""
    return resolve(parse(argv), host)


def memory_of(*argv: str, host: Host = H200, others_gib: float = 0.0) -> Memory:
    """Return the claims of a command line."""
    return measure(config_of(*argv, host=host), host, int(others_gib * GIB))


def test_the_pool_is_what_the_utilization_leaves() -> None:
    """0.9 of 139.8 GiB leaves 111.17 GiB, 910,656 tokens within a block of rounding."""
    memory = memory_of("--gpu-memory-utilization", "0.9", "--max-model-len", "16384")
    pool = memory.plan_pool(H200.max_position)
    assert memory.available / GIB == pytest.approx(111.17, abs=0.005)
    assert pool.tokens == pytest.approx(910_656, abs=64)
    assert pool.max_model_len == 16384


def test_the_suggested_sizes_leave_150_mib() -> None:
    """110.04 GiB fit into the requested memory, 123.51 GiB into the whole device."""
    inside, whole = memory_of("--gpu-memory-utilization", "0.9").suggestions
    assert (inside / GIB, whole / GIB) == pytest.approx((110.04, 123.51), abs=0.01)


def test_a_utilization_beyond_what_is_free_is_refused() -> None:
    """Another process with 60.52 GiB leaves 78.77 GiB, less than 0.92 of the device."""
    memory = memory_of(others_gib=60.52)
    with pytest.raises(EngineError) as refusal:
        memory.check_request()
    assert "Free memory on device cuda:0 (78.77/139.8 GiB) on startup is less than" in refusal.value.text
    assert "(0.92, 128.62 GiB)" in refusal.value.text


def test_a_negative_pool_is_no_memory_for_cache_blocks() -> None:
    """70B weights leave less than nothing at 0.92."""
    memory = memory_of("--enforce-eager", host=replace(H200, weights_gib=131.42))
    memory.check_request()
    assert memory.available < 0
    with pytest.raises(EngineError, match="No available memory for the cache blocks"):
        memory.plan_pool(H200.max_position)


def test_a_small_pool_names_the_length_that_fits() -> None:
    """At 0.125 one request of 32,768 tokens needs 4 GiB, 2.88 are there, 23,552 tokens fit; those then do fit."""
    host = replace(H200, activation_base_gib=0.88)
    argv = ("--enforce-eager", "--gpu-memory-utilization", "0.125")
    with pytest.raises(EngineError) as refusal:
        memory_of(*argv, host=host).plan_pool(host.max_position)
    assert "max seq len (32768), (4.0 GiB KV cache is needed" in refusal.value.text
    assert (
        "(2.88 GiB). Based on the available memory, the estimated maximum model length is 23552." in refusal.value.text
    )
    assert memory_of(*argv, "--max-model-len", "23552", host=host).plan_pool(host.max_position).tokens == 23552


def test_auto_takes_the_longest_length_that_fits() -> None:
    """`auto` never fails for length, only when not one block fits."""
    short = memory_of("--max-model-len", "auto", "--gpu-memory-utilization", "0.12")
    assert 0 < short.plan_pool(H200.max_position).max_model_len < H200.max_position
    assert memory_of("--max-model-len", "-1").plan_pool(H200.max_position).max_model_len == H200.max_position
    with pytest.raises(EngineError, match="Cannot auto-fit max_model_len"):
        memory_of("--max-model-len", "auto", "--gpu-memory-utilization", "0.1").plan_pool(H200.max_position)


def test_an_explicit_pool_ignores_the_utilization() -> None:
    """--kv-cache-memory-bytes is the pool; one that is too large for the device is a CUDA OOM."""
    assert memory_of("--kv-cache-memory-bytes", "64G").plan_pool(H200.max_position).tokens == 2**19
    huge = memory_of("--kv-cache-memory-bytes", "130G")
    with pytest.raises(EngineError, match="CUDA out of memory"):
        huge.check_capture(huge.plan_pool(H200.max_position))


def test_weights_that_do_not_fit_fail_while_loading() -> None:
    """The utilization is no limit for weights; the advice to lower it is printed all the same."""
    memory = memory_of("--gpu-memory-utilization", "0.5", host=replace(H200, weights_gib=150.0))
    memory.check_request()
    with pytest.raises(EngineError, match=r"CUDA out of memory\. Tried to allocate 4\.69 GiB") as refusal:
        memory.check_weights()
    assert refusal.value.notices[0].text.startswith("Failed to load model - not enough GPU memory.")


def test_an_activation_peak_that_does_not_fit_fails_in_profiling() -> None:
    """Weights fit, the largest step beside them does not."""
    memory = memory_of(
        "--gpu-memory-utilization", "0.5", host=replace(H200, weights_gib=138.0, activation_base_gib=5.0)
    )
    memory.check_weights()
    with pytest.raises(EngineError, match=r"Tried to allocate 5\.00 GiB"):
        memory.check_profile()


def test_graphs_beyond_their_estimate_fail_in_capture() -> None:
    """Estimated at nothing they still fit at 0.9, and no more when nothing is left; eager needs none."""
    host = replace(H200, graphs_gib=4.0)
    fits, full = (
        memory_of("--gpu-memory-utilization", "0.9", host=host),
        memory_of("--gpu-memory-utilization", "0.985", host=host),
    )
    fits.check_capture(fits.plan_pool(host.max_position))
    with pytest.raises(EngineError, match="CUDA out of memory"):
        full.check_capture(full.plan_pool(host.max_position))
    eager = memory_of("--gpu-memory-utilization", "0.985", "--enforce-eager", host=host)
    eager.check_capture(eager.plan_pool(host.max_position))


def test_the_sampler_fails_with_too_many_sequences() -> None:
    """Fewer sequences or a lower utilization are the two ways out."""
    host = replace(H200, vocabulary=2**18, sampler_copies=4)

    def warm_up(utilization: str, seqs: str) -> None:
        memory = memory_of("--gpu-memory-utilization", utilization, "--max-num-seqs", seqs, host=host)
        memory.check_warm_up(memory.plan_pool(host.max_position))

    with pytest.raises(EngineError, match="warming up sampler with 1024 dummy requests") as refusal:
        warm_up("0.985", "1024")
    assert refusal.value.cause is not None
    warm_up("0.985", "128")
    warm_up("0.95", "1024")


def test_a_pooler_fails_with_too_many_sequences() -> None:
    """A model that pools warms up its pooler instead, with buffers of their own size."""
    host = replace(H200, pooler_bytes_per_seq=4 * 2**20)
    argv = ("--runner", "pooling", "--gpu-memory-utilization", "0.985", "--max-num-seqs")
    many, few = memory_of(*argv, "1024", host=host), memory_of(*argv, "128", host=host)
    with pytest.raises(EngineError, match=r"warming up pooler \(task=embed\) with 1024 dummy requests"):
        many.check_warm_up(many.plan_pool(host.max_position))
    few.check_warm_up(few.plan_pool(host.max_position))


def test_the_sampler_needs_memory_for_sequences_times_vocabulary() -> None:
    """3.5 copies of the logits in float32: twice the vocabulary is twice the memory."""
    small, large = (memory_of(host=replace(H200, vocabulary=n)) for n in (32_000, 64_000))
    assert small.batch_buffers == 1024 * 32_000 * 4 * 3.5
    assert large.batch_buffers == 2 * small.batch_buffers


def test_memory_that_grows_while_it_is_measured_is_an_error() -> None:
    """A neighbour that gives back more than the model took leaves more free than before."""
    memory = memory_of("--gpu-memory-utilization", "0.5", others_gib=40.0)
    memory.check_unmoved(int(40.0 * GIB))
    memory.check_unmoved(int(30.0 * GIB))
    with pytest.raises(EngineError) as refusal:
        memory.check_unmoved(0)
    assert "Initial free memory 99.29 GiB, current free memory 125.57 GiB" in refusal.value.text


def test_weights_kept_in_the_hosts_memory_are_not_on_the_gpu() -> None:
    """--cpu-offload-gb makes room on each GPU, never more than the weights there."""
    assert memory_of("--cpu-offload-gb", "10").weights == int(3.5 * GIB)
    assert memory_of("--cpu-offload-gb", "100").weights == 0


def test_a_runtime_peak_fits_only_beside_pool_and_others() -> None:
    """The same peak fails at 0.97 and fits at 0.92, and fails there too once another process has come."""

    def step(utilization: str, others_gib: float) -> None:
        memory = memory_of("--gpu-memory-utilization", utilization, "--enforce-eager")
        pool = memory.plan_pool(H200.max_position)
        memory.check_step(pool, 6 * GIB, int(others_gib * GIB))

    with pytest.raises(EngineError, match=r"Tried to allocate 6\.00 GiB.*139\.80 GiB of which 3\.68 GiB is free"):
        step("0.97", 0.0)
    step("0.92", 0.0)
    with pytest.raises(EngineError):
        step("0.92", 8.0)


def test_a_runtime_oom_says_what_the_graphs_keep() -> None:
    """Captured graphs have pools of their own, which torch names; eager mode has none."""
    for argv, words in (
        ((), "with 1003.52 MiB allocated in private pools (e.g., CUDA Graphs)"),
        (("--enforce-eager",), ""),
    ):
        memory = memory_of("--gpu-memory-utilization", "0.97", *argv)
        with pytest.raises(EngineError) as failure:
            memory.check_step(memory.plan_pool(H200.max_position), 6 * GIB, 0)
        assert words in failure.value.text
        assert ("private pools" in failure.value.text) is bool(words)


def test_a_serving_engine_holds_what_it_asked_for() -> None:
    """With graphs inside the estimate, engine and context together are the requested memory, within one block."""
    host = replace(H200, graphs_estimate_gib=None)
    memory = memory_of("--gpu-memory-utilization", "0.9", host=host)
    pool = memory.plan_pool(host.max_position)
    assert memory.requested + memory.context - memory.held(pool) < 16 * memory.token_bytes


def test_parallelism_and_fp8_shrink_what_one_gpu_holds() -> None:
    """Two GPUs halve the weights and the KV of a token, fp8 halves the KV again."""
    memory = memory_of("-tp", "2", "--kv-cache-dtype", "fp8")
    assert (memory.weights, memory.token_bytes) == (int(6.75 * GIB), H200.kv_bytes_per_token // 4)
    assert memory.pool_bytes(Pool(1, 16, 16)) == 16 * memory.token_bytes
