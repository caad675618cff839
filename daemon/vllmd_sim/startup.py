"""The engine's start: vLLM's phases in order, their lines, their checks and their share of the time."""

import time
from collections.abc import Callable

from vllmd_sim import breakdowns, host_memory
from vllmd_sim.config import EngineConfig
from vllmd_sim.gpu import Gpu
from vllmd_sim.host import Fault, Host
from vllmd_sim.lines import Console, gib
from vllmd_sim.memory import Memory, Pool, measure

# Shares of host.start_s, after the phases of a 97 s start on an H200 with a cold compile cache.
CONFIG_SHARE = 0.25  # the API server's imports and configuration, before the engine exists
_ENGINE_SHARE = 0.18
_WEIGHTS_SHARE = 0.07
_COMPILE_SHARE = 0.25
_CAPTURE_SHARE = 0.08
_WARMUP_SHARE = 0.17

_BFLOAT16_SINCE = 8.0  # compute capability


def start(
    config: EngineConfig, host: Host, gpu: Gpu, console: Console, sleep: Callable[[float], None] = time.sleep
) -> tuple[Memory, Pool]:
    """Take the memory of a serving engine and return it.

    Raises failures.EngineError where vLLM would fail, failures.ProcessEndError where its process would just end.
    """
    console.info("core.py:116", _config_line(config, host))
    host_memory.check_queue(config, host)
    sleep(host.start_s * _ENGINE_SHARE)
    _check_device(config, host)
    console.info("parallel_state.py:1946", "rank 0 in world size 1 is assigned as DP rank 0, PP rank 0, TP rank 0")
    memory = measure(config, host, gpu.others_bytes())
    memory.check_request()
    gpu.hold(memory.context)

    console.info("gpu_model_runner.py:5011", f"Starting to load model {config.model}...")
    memory.check_weights()
    if host.fault == Fault.WEIGHTS_DAMAGED:
        raise breakdowns.weights_damaged()
    host_memory.check_offload(config, host)
    sleep(host.start_s * _WEIGHTS_SHARE)
    gpu.hold(memory.context + memory.loaded)
    took_s = host.start_s * _WEIGHTS_SHARE
    console.info("default_loader.py:384", f"Loading weights took {took_s:.2f} seconds")
    console.info(
        "gpu_model_runner.py:5107", f"Model loading took {gib(memory.weights)} GiB memory and {took_s:.6f} seconds"
    )

    _profile(memory, host, gpu, console, sleep)
    pool = _make_pool(memory, host, console)
    host_memory.check_tier(config, host)
    gpu.hold(memory.held(pool))
    _warm_up(memory, pool, host, console, sleep)
    return memory, pool


def _check_device(config: EngineConfig, host: Host) -> None:
    """Refuse a driver, and a type, that the device does not work with."""
    if host.fault == Fault.DRIVER_TOO_OLD:
        raise breakdowns.driver_too_old()
    if config.dtype == "bfloat16" and host.compute_capability < _BFLOAT16_SINCE:
        raise breakdowns.bfloat16_unsupported(host.gpu, host.compute_capability)


def _profile(memory: Memory, host: Host, gpu: Gpu, console: Console, sleep: Callable[[float], None]) -> None:
    """Compile, then run the largest step to see what it takes."""
    config = memory.config
    if not config.eager:
        compile_s = host.start_s * _COMPILE_SHARE
        sleep(compile_s)
        console.info(
            "backends.py:393",
            f"Compiling a graph for compile range (1, {config.batched_tokens}) takes {compile_s:.2f} s",
        )
        console.info("monitor.py:53", f"torch.compile took {compile_s:.2f} s in total")
    if host.strikes_at_start:
        for moment in breakdowns.course(host, config.tensor_parallel, serving=False):
            sleep(moment.pause_s)
            console.say(moment.place, moment.text)
    memory.check_profile()
    if config.kv_cache_bytes is None:
        memory.check_unmoved(0 if host.fault == Fault.NEIGHBOUR_LEAVES else gpu.others_bytes())


def _make_pool(memory: Memory, host: Host, console: Console) -> Pool:
    """Size the KV cache."""
    config = memory.config
    if config.kv_cache_bytes is None:
        if memory.graphs_estimate:
            console.info(
                "gpu_model_runner.py:5320", f"Estimated CUDA graph memory: {gib(memory.graphs_estimate)} GiB total"
            )
        console.info("gpu_worker.py:560", f"Available KV cache memory: {gib(memory.available)} GiB")
    else:
        console.info(
            "gpu_worker.py:479",
            f"Initial free memory {gib(memory.free_at_start)} GiB, reserved {gib(memory.available)} GiB memory for KV "
            "Cache as specified by kv_cache_memory_bytes config and skipped memory profiling.",
        )
    pool = memory.plan_pool(host.max_position)
    if config.max_model_len < 0:
        console.info(
            "kv_cache_utils.py:1410",
            f"Auto-fit max_model_len: reduced from {host.max_position} to {pool.max_model_len} to fit in available KV "
            f"cache memory ({gib(memory.available)} GiB)",
        )
    console.info("kv_cache_utils.py:2177", f"GPU KV cache size: {pool.tokens:,} tokens")
    concurrency = pool.tokens / pool.max_model_len
    console.info(
        "kv_cache_utils.py:2178",
        f"Maximum concurrency for {pool.max_model_len:,} tokens per request: {concurrency:.2f}x",
    )
    return pool


def _warm_up(memory: Memory, pool: Pool, host: Host, console: Console, sleep: Callable[[float], None]) -> None:
    """Capture graphs, warm up, say how the memory is used."""
    config = memory.config
    memory.check_capture(pool)
    if not config.eager:
        sleep(host.start_s * _CAPTURE_SHARE)
        capture_s = host.start_s * _CAPTURE_SHARE
        console.info(
            "gpu_model_runner.py:5420",
            f"Graph capturing finished in {capture_s:.0f} secs, took {gib(memory.graphs)} GiB",
        )
    memory.check_warm_up(pool)
    if config.kv_cache_bytes is None:
        console.info("gpu_worker.py:857", _breakdown(memory, pool))
    sleep(host.start_s * _WARMUP_SHARE)
    took_s = host.start_s * (1 - CONFIG_SHARE - _ENGINE_SHARE)
    console.info("core.py:340", f"init engine (profile, create kv cache, warmup model) took {took_s:.2f} s")


def _breakdown(memory: Memory, pool: Pool) -> str:
    """Return vLLM's account of the memory, with the sizes that it suggests."""
    inside, whole = memory.suggestions
    return (
        f"Free memory on device ({gib(memory.free_at_start)}/{gib(memory.total)} GiB) on startup. Desired GPU memory "
        f"utilization is ({memory.config.utilization}, {gib(memory.requested)} GiB). Actual usage is "
        f"{gib(memory.weights)} GiB for weight, {gib(memory.activation)} GiB for peak activation, "
        f"{gib(memory.non_torch)} GiB for non-torch memory, and {gib(memory.graphs)} GiB for CUDAGraph memory. Replace "
        f"gpu_memory_utilization config with `--kv-cache-memory={inside}` ({gib(inside)} GiB) to fit into requested "
        f"memory, or `--kv-cache-memory={whole}` ({gib(whole)} GiB) to fully utilize gpu memory. Current kv cache "
        f"memory in use is {gib(memory.pool_bytes(pool))} GiB."
    )


def _config_line(config: EngineConfig, host: Host) -> str:
    """Return the line with which a V1 engine introduces itself."""
    return (
        f"Initializing a V1 LLM engine (v{host.version}) with config: model='{config.model}', "
        f"max_seq_len={config.max_model_len}, tensor_parallel_size={config.tensor_parallel}, "
        f"enforce_eager={config.eager}, kv_cache_dtype={config.kv_cache_dtype}, device_config=cuda, "
        f"served_model_name={config.served_name}, enable_prefix_caching={config.prefix_caching}, "
        f"enable_chunked_prefill={config.chunked}"
    )
