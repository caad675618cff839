"""The engine's start: vLLM's phases in order, their lines, their checks and their share of the time."""

import os
from contextlib import suppress
from dataclasses import dataclass

from vllmd_shim.block import VARIABLE, BlockError, opened
from vllmd_shim.gate import wait_at_gate
from vllmd_sim import breakdowns, host_memory
from vllmd_sim.config import EngineConfig
from vllmd_sim.failures import ProcessEndError
from vllmd_sim.gpu import Gpu
from vllmd_sim.host import Fault, Host
from vllmd_sim.lines import Console, gib
from vllmd_sim.memory import Memory, Pool, measure
from vllmd_sim.workers import Workers

# Shares of host.start_s, after the phases of a 97 s start on an H200 with a cold compile cache.
CONFIG_SHARE = 0.25  # the API server's imports and configuration, before the engine exists
ENGINE_SHARE = 0.18
WEIGHTS_SHARE = 0.07
_COMPILE_SHARE = 0.25
CAPTURE_SHARE = 0.08
WARMUP_SHARE = 0.17

_BFLOAT16_SINCE = 8.0  # compute capability


@dataclass(frozen=True, slots=True)
class Stage:
    """One start of an engine: what with, where, and who prints: the engine, and the first of those who do its work."""

    config: EngineConfig
    host: Host
    gpu: Gpu
    workers: Workers
    engine: Console
    worker: Console

    def rest(self, share: float) -> float:
        """Let a phase pass, which takes a share of the whole; returns its seconds. Raises WorkerLostError."""
        took_s = self.host.start_s * share
        self.workers.rest(took_s)
        return took_s

    def pass_gate(self) -> None:
        """Wait where vllmd_shim lets each worker wait: before the device is touched."""
        path = os.environ.get(VARIABLE)
        with suppress(BlockError, OSError):  # the server starts without
            if path:
                wait_at_gate(opened(path), *range(self.config.tensor_parallel))

    def check_device(self) -> None:
        """Refuse a driver, and a type, that the device does not work with."""
        if self.host.fault == Fault.DRIVER_TOO_OLD:
            raise breakdowns.driver_too_old()
        if self.config.dtype == "bfloat16" and self.host.compute_capability < _BFLOAT16_SINCE:
            raise breakdowns.bfloat16_unsupported(self.host.gpu, self.host.compute_capability)

    def load(self, memory: Memory) -> float:
        """Load the weights; returns the seconds that it took."""
        memory.check_weights()
        if self.host.fault == Fault.WEIGHTS_DAMAGED:
            raise breakdowns.weights_damaged()
        host_memory.check_offload(self.config, self.host)
        took_s = self.rest(WEIGHTS_SHARE)
        self.gpu.hold(memory.context + memory.loaded)
        self.workers.ready = True
        return took_s

    def suffer(self) -> None:
        """Let the host's fault take its course where it strikes a start."""
        if not self.host.strikes_at_start:
            return
        try:
            for moment in breakdowns.course(self.host, serving=False):
                self.workers.rest(moment.pause_s)
                self.engine.say(moment.place, moment.text)
        except ProcessEndError as end:
            if not self.workers:
                raise
            self.workers.strike(end.code)
            self.workers.lose_one()

    def check_profile(self, memory: Memory) -> None:
        """Run the largest step, and look whether memory stayed the same meanwhile."""
        memory.check_profile()
        if self.config.kv_cache_bytes is None:
            memory.check_unmoved(0 if self.host.fault == Fault.NEIGHBOUR_LEAVES else self.gpu.others_bytes())


def start(stage: Stage) -> tuple[Memory, Pool]:
    """Take the memory of a serving engine and return it.

    Raises failures.EngineError where vLLM would fail, failures.ProcessEndError where its process would just end,
    WorkerLostError where a worker does.
    """
    config, host, worker = stage.config, stage.host, stage.worker
    stage.engine.info("core.py:116", _config_line(config, host))
    host_memory.check_queue(config, host)
    stage.rest(ENGINE_SHARE)
    stage.pass_gate()
    stage.check_device()
    ranks = config.tensor_parallel
    worker.info(
        "parallel_state.py:1946", f"rank 0 in world size {ranks} is assigned as DP rank 0, PP rank 0, TP rank 0"
    )
    memory = measure(config, host, stage.gpu.others_bytes())
    memory.check_request()
    stage.gpu.hold(memory.context)

    worker.info("gpu_model_runner.py:5011", f"Starting to load model {config.model}...")
    took_s = stage.load(memory)
    worker.info("default_loader.py:384", f"Loading weights took {took_s:.2f} seconds")
    worker.info(
        "gpu_model_runner.py:5107", f"Model loading took {gib(memory.weights)} GiB memory and {took_s:.6f} seconds"
    )

    _profile(memory, stage)
    pool = _make_pool(memory, stage)
    host_memory.check_tier(config, host)
    stage.gpu.hold(memory.held(pool))
    _warm_up(memory, pool, stage)
    return memory, pool


def _profile(memory: Memory, stage: Stage) -> None:
    """Compile, then run the largest step to see what it takes."""
    config = memory.config
    if not config.eager:
        compile_s = stage.rest(_COMPILE_SHARE)
        stage.worker.info(
            "backends.py:393",
            f"Compiling a graph for compile range (1, {config.batched_tokens}) takes {compile_s:.2f} s",
        )
        stage.worker.info("monitor.py:53", f"torch.compile took {compile_s:.2f} s in total")
    stage.suffer()
    stage.check_profile(memory)


def _make_pool(memory: Memory, stage: Stage) -> Pool:
    """Size the KV cache."""
    config = memory.config
    if config.kv_cache_bytes is None:
        if memory.graphs_estimate:
            stage.worker.info(
                "gpu_model_runner.py:5320", f"Estimated CUDA graph memory: {gib(memory.graphs_estimate)} GiB total"
            )
        stage.worker.info("gpu_worker.py:560", f"Available KV cache memory: {gib(memory.available)} GiB")
    else:
        stage.worker.info(
            "gpu_worker.py:479",
            f"Initial free memory {gib(memory.free_at_start)} GiB, reserved {gib(memory.available)} GiB memory for KV "
            "Cache as specified by kv_cache_memory_bytes config and skipped memory profiling.",
        )
    pool = memory.plan_pool(stage.host.max_position)
    if config.max_model_len < 0:
        stage.engine.info(
            "kv_cache_utils.py:1410",
            f"Auto-fit max_model_len: reduced from {stage.host.max_position} to {pool.max_model_len} to fit in "
            f"available KV cache memory ({gib(memory.available)} GiB)",
        )
    stage.engine.info("kv_cache_utils.py:2177", f"GPU KV cache size: {pool.tokens:,} tokens")
    concurrency = pool.tokens / pool.max_model_len
    stage.engine.info(
        "kv_cache_utils.py:2178",
        f"Maximum concurrency for {pool.max_model_len:,} tokens per request: {concurrency:.2f}x",
    )
    return pool


def _warm_up(memory: Memory, pool: Pool, stage: Stage) -> None:
    """Capture graphs, warm up, say how the memory is used."""
    config = memory.config
    memory.check_capture(pool)
    if not config.eager:
        capture_s = stage.rest(CAPTURE_SHARE)
        stage.worker.info(
            "gpu_model_runner.py:5420",
            f"Graph capturing finished in {capture_s:.0f} secs, took {gib(memory.graphs)} GiB",
        )
    memory.check_warm_up(pool)
    if config.kv_cache_bytes is None:
        stage.worker.info("gpu_worker.py:857", _breakdown(memory, pool))
    stage.rest(WARMUP_SHARE)
    took_s = stage.host.start_s * (1 - CONFIG_SHARE - ENGINE_SHARE)
    stage.engine.info("core.py:340", f"init engine (profile, create kv cache, warmup model) took {took_s:.2f} s")


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
