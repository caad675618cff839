"""The start of vLLM's old engine, V0: no compilation, no estimate of its graphs, no look at what is free before."""

from vllmd_sim.host import GIB
from vllmd_sim.lines import gib
from vllmd_sim.memory import Memory, Pool, measure
from vllmd_sim.startup import CAPTURE_SHARE, CONFIG_SHARE, ENGINE_SHARE, WARMUP_SHARE, Stage

_SWAP_BYTES = 4 * GIB  # --swap-space unless set: blocks of the host


def start(stage: Stage) -> tuple[Memory, Pool]:
    """Take the memory of a serving engine and return it; raises what startup.start raises."""
    config, host, console = stage.config, stage.host, stage.engine
    console.info(
        "llm_engine.py:234",
        f"Initializing a V0 LLM engine (v{host.version}) with config: model='{config.model}', "
        f"max_seq_len={config.max_model_len}, tensor_parallel_size={config.tensor_parallel}, "
        f"enforce_eager={config.eager}, kv_cache_dtype={config.kv_cache_dtype}, device_config=cuda, "
        f"served_model_name={config.served_name}, enable_prefix_caching={config.prefix_caching}",
    )
    stage.rest(ENGINE_SHARE)
    stage.check_device()
    memory = measure(config, host, stage.gpu.others_bytes())
    stage.gpu.hold(memory.context)
    console.info("model_runner.py:1110", f"Starting to load model {config.model}...")
    stage.load(memory)
    console.info("model_runner.py:1115", f"Loading model weights took {memory.weights / GIB:.4f} GB")
    stage.suffer()
    stage.check_profile(memory)
    console.info("worker.py:267", _profile(memory))
    pool = _make_pool(memory, stage)
    stage.gpu.hold(memory.held(pool))
    memory.check_capture(pool)
    if not config.eager:
        capture_s = stage.rest(CAPTURE_SHARE)
        console.info(
            "model_runner.py:1562",
            f"Graph capturing finished in {capture_s:.0f} secs, took {gib(memory.graphs)} GiB",
        )
    stage.rest(WARMUP_SHARE)
    took_s = host.start_s * (1 - CONFIG_SHARE - ENGINE_SHARE)
    console.info("llm_engine.py:436", f"init engine (profile, create kv cache, warmup model) took {took_s:.2f} seconds")
    return memory, pool


def _profile(memory: Memory) -> str:
    """Return V0's account of the memory, in which the graphs do not occur."""
    total, requested = memory.total / GIB, memory.requested / GIB
    return (
        "Memory profiling takes 1.77 seconds\n"
        f"the current vLLM instance can use total_gpu_memory ({total:.2f}GiB) x gpu_memory_utilization "
        f"({memory.config.utilization:.2f}) = {requested:.2f}GiB\n"
        f"model weights take {memory.weights / GIB:.2f}GiB; non_torch_memory takes {memory.non_torch / GIB:.2f}GiB; "
        f"PyTorch activation peak memory takes {memory.activation / GIB:.2f}GiB; the rest of the memory reserved for "
        f"KV Cache is {memory.available / GIB:.2f}GiB."
    )


def _make_pool(memory: Memory, stage: Stage) -> Pool:
    """Size the KV cache; its blocks are printed before anything is refused."""
    config, length = memory.config, memory.config.max_model_len
    swapped = _SWAP_BYTES // (config.block_size * memory.token_bytes)
    stage.engine.info("executor_base.py:111", f"# cuda blocks: {memory.blocks}, # CPU blocks: {swapped}")
    wanted = stage.host.max_position if length < 0 else length
    concurrency = memory.blocks * config.block_size / wanted
    stage.engine.info(
        "executor_base.py:116", f"Maximum concurrency for {wanted} tokens per request: {concurrency:.2f}x"
    )
    return memory.plan_pool(stage.host.max_position)
