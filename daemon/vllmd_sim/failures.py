"""How vLLM fails: its message templates and the shape of its tracebacks.

Templates: vLLM 0.26 on an H200 as it was seen to fail there; what comes from elsewhere says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vllmd_sim.lines import gib

_CONSERVING = "See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."


@dataclass(frozen=True, slots=True)
class Frame:
    """One entry of a traceback, its file relative to site-packages."""

    file: str
    line: int
    function: str
    source: str


@dataclass(frozen=True, slots=True)
class Notice:
    """What is logged at ERROR before a traceback, from `place`, vLLM's `module.py:line`; by a rank or the engine."""

    place: str
    text: str
    rank: int | None = None


class ConfigError(Exception):
    """The API server gives up by itself, nearly always before an engine exists: exit code 1."""

    def __init__(self, text: str, *frames: Frame) -> None:
        super().__init__(text)
        self.text = text
        self.frames = frames


class EngineError(Exception):
    """The engine gives up. `notices` are logged before the traceback, `cause` is the exception that led to it."""

    def __init__(
        self, text: str, *frames: Frame, notices: Sequence[Notice] = (), cause: "EngineError | None" = None
    ) -> None:
        super().__init__(text)
        self.text = text
        self.frames = frames
        self.notices = notices
        self.cause = cause


class ProcessEndError(Exception):
    """The engine's process ends on the spot, without a word: by a signal if the code is negative."""

    def __init__(self, code: int) -> None:
        super().__init__(f"ends with {code}")
        self.code = code


def traceback(frames: Sequence[Frame], text: str) -> str:
    """Return a traceback as Python prints it."""
    entries = (
        f'  File "/venv/lib/python3.12/site-packages/{frame.file}", line {frame.line}, in {frame.function}\n'
        f"    {frame.source}"
        for frame in frames
    )
    return "\n".join(("Traceback (most recent call last):", *entries, text))


CLI = (
    Frame("vllm/entrypoints/cli/main.py", 95, "main", "args.dispatch_function(args)"),
    Frame("vllm/entrypoints/cli/serve.py", 148, "cmd", "uvloop.run(run_server(args))"),
)
API_WORKER = (
    Frame("vllm/entrypoints/openai/api_server.py", 759, "run_server", "await run_server_worker(listen_address, sock)"),
    Frame("vllm/entrypoints/openai/api_server.py", 773, "run_server_worker", "async with build_async_engine_client("),
)
_CORE = Frame("vllm/v1/engine/core.py", 1299, "run_engine_core", "engine_core = EngineCoreProc(")
EXECUTOR = (
    _CORE,
    Frame("vllm/v1/engine/core.py", 125, "__init__", "self.model_executor = executor_class(vllm_config)"),
)
CACHES = (_CORE, Frame("vllm/v1/engine/core.py", 136, "__init__", "kv_cache_config = self._initialize_kv_caches("))
MEASURING = Frame("vllm/v1/worker/gpu_worker.py", 520, "determine_available_memory", "self.model_runner.profile_run()")
STEPPING = (
    Frame("vllm/v1/engine/core.py", 1323, "run_engine_core", "engine_core.run_busy_loop()"),
    Frame("vllm/v1/worker/gpu_worker.py", 1147, "execute_model", "output = self.model_runner.execute_model("),
)
_CHECK = Frame("vllm/v1/core/kv_cache_utils.py", 2132, "get_kv_cache_configs", "_check_enough_kv_cache_memory(")


def engine_traceback(failure: EngineError) -> str:
    """Return the engine's traceback, that of the cause above it."""
    own = traceback(failure.frames, failure.text)
    if failure.cause is None:
        return own
    link = "\n\nThe above exception was the direct cause of the following exception:\n\n"
    return engine_traceback(failure.cause) + link + own


def start_traceback(exit_code: int) -> str:
    """Return the API server's last words after its engine failed to start: generic, the cause stands above."""
    frames = (
        *CLI,
        *API_WORKER,
        Frame("vllm/v1/engine/async_llm.py", 217, "from_vllm_config", "return cls("),
        Frame("vllm/v1/engine/core_client.py", 573, "__init__", "with launch_core_engines("),
        Frame("vllm/v1/engine/utils.py", 1272, "wait_for_engine_startup", "raise RuntimeError("),
    )
    reason = f"See root cause above. Failed core proc(s): {{'EngineCore': {exit_code}}}"
    return traceback(frames, f"RuntimeError: Engine core initialization failed. {reason}")


def ready_timeout(waited_s: int) -> ConfigError:
    """Say that the engine did not come up in time (core_client.py)."""
    text = (
        "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by slow weight "
        f"loading for large models. Waited {waited_s}s (configured by VLLM_ENGINE_READY_TIMEOUT_S). To increase the "
        "timeout, set the environment variable: VLLM_ENGINE_READY_TIMEOUT_S=<seconds>."
    )
    frame = Frame("vllm/v1/engine/core_client.py", 611, "__init__", "raise TimeoutError(")
    return ConfigError(text, *CLI, *API_WORKER, frame)


def terminated_traceback() -> str:
    """Return what a SIGTERM during the start leaves behind."""
    frame = Frame(
        "vllm/entrypoints/openai/api_server.py", 430, "signal_handler", 'raise KeyboardInterrupt("terminated")'
    )
    return traceback((*CLI, frame), "KeyboardInterrupt: terminated")


def dead_traceback() -> str:
    """Return what the API server prints when its engine died while serving."""
    frames = (
        Frame("vllm/v1/engine/async_llm.py", 660, "output_handler", "outputs = await engine_core.get_output_async()"),
        Frame("vllm/v1/engine/core_client.py", 1061, "get_output_async", "raise self._format_exception(outputs)"),
    )
    return "AsyncLLM output_handler failed.\n" + traceback(
        frames, f"vllm.v1.engine.exceptions.EngineDeadError: {ENGINE_DEAD}"
    )


ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


def shm_too_small(needed_mib: float, free_mib: float) -> EngineError:
    """Say that /dev/shm does not hold the queue to the workers (shm_broadcast.py, 0.30 and later)."""
    text = (
        f"RuntimeError: Insufficient space in /dev/shm for the message queue: {needed_mib:.1f} MiB required, "
        f"{free_mib:.1f} MiB free. Increase /dev/shm (e.g. --shm-size or --ipc=host)."
    )
    frame = Frame("vllm/distributed/device_communicators/shm_broadcast.py", 264, "__init__", "raise RuntimeError(")
    return EngineError(text, *EXECUTOR, frame)


def host_memory_refused(size: int) -> EngineError:
    """Say in torch's words that the host has no such amount of memory."""
    text = (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you "
        f"tried to allocate {size} bytes. Error code 12 (Cannot allocate memory)"
    )
    return EngineError(text, *CACHES, Frame("torch/_utils.py", 77, "_allocate", "tensor = torch.zeros("))


def free_memory_low(free: int, total: int, utilization: float, requested: int) -> EngineError:
    """Say that the utilization asks for more than is free at the start."""
    text = (
        f"ValueError: Free memory on device cuda:0 ({gib(free)}/{gib(total)} GiB) on startup is less than desired GPU "
        f"memory utilization ({utilization}, {gib(requested)} GiB). Decrease GPU memory utilization or reduce GPU "
        "memory used by other processes."
    )
    frame = Frame("vllm/v1/worker/utils.py", 435, "request_memory", "raise ValueError(")
    return EngineError(text, *EXECUTOR, frame)


def memory_moved(before: int, now: int) -> EngineError:
    """Say that free memory grew while it was measured (gpu_worker.py, 0.9.2 and later)."""
    text = (
        f"AssertionError: Error in memory profiling. Initial free memory {gib(before)} GiB, current free memory "
        f"{gib(now)} GiB. This happens when other processes sharing the same container release GPU memory while vLLM "
        "is profiling during initialization. To fix this, ensure consistent GPU memory allocation or isolate vLLM in "
        "its own container."
    )
    return EngineError(text, *CACHES, MEASURING)


def no_cache_memory() -> EngineError:
    """Say that nothing is left for the KV cache."""
    text = (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine (this flag also controls CPU memory reservation on the CPU backend, despite its "
        f"name). {_CONSERVING}"
    )
    return EngineError(text, *CACHES, _CHECK)


def cache_too_small(length: int, needed: int, available: int, fitting: int) -> EngineError:
    """Say that the KV cache does not hold one request of the full length; it holds one of `fitting` tokens."""
    estimate = (
        f"Based on the available memory, the estimated maximum model length is {fitting}. " if fitting > 0 else ""
    )
    text = (
        f"ValueError: To serve at least one request with the model's max seq len ({length}), ({gib(needed)} GiB KV "
        f"cache is needed, which is larger than the available KV cache memory ({gib(available)} GiB). {estimate}Try "
        "increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or decreasing "
        f"`max_model_len` when initializing the engine. {_CONSERVING}"
    )
    return EngineError(text, *CACHES, _CHECK)


def no_auto_fit() -> EngineError:
    """Say that `--max-model-len auto` found no length at all (v1/core/kv_cache_utils.py)."""
    text = (
        "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token. Try "
        "increasing `gpu_memory_utilization`."
    )
    return EngineError(text, *CACHES, _CHECK)


@dataclass(frozen=True, slots=True)
class Shortage:
    """An allocation that did not fit, in bytes: what was tried, and how the device's memory was used.

    `graphs` is the part of what is allocated that captured CUDA graphs keep to themselves.
    """

    tried: int
    total: int
    free: int
    own: int
    allocated: int
    graphs: int = 0


def out_of_memory(short: Shortage, *frames: Frame, notices: Sequence[Notice] = ()) -> EngineError:
    """Say in torch's own words that an allocation does not fit."""
    return EngineError(_oom_text(short), *frames, notices=notices)


def weights_oom(short: Shortage) -> EngineError:
    """Say that the weights do not fit (gpu_model_runner.py); utilization does not limit them, whatever it advises."""
    notice = (
        "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to free memory for "
        "weights, increasing --tensor-parallel-size, or using --quantization. (original error: "
        f"{_oom_text(short).partition(': ')[2]})"
    )
    frame = Frame("vllm/v1/worker/gpu_model_runner.py", 5060, "load_model", "self.model = model_loader.load_model(")
    return out_of_memory(short, *EXECUTOR, frame, notices=[Notice("gpu_model_runner.py:5077", notice)])


def profiling_oom(short: Shortage) -> EngineError:
    """Say that the largest step does not fit beside the weights."""
    return out_of_memory(short, *CACHES, MEASURING)


def pool_oom(short: Shortage) -> EngineError:
    """Say that the KV cache itself does not fit, which only an explicit size can bring about."""
    frame = Frame("vllm/v1/worker/gpu_model_runner.py", 5500, "_allocate_kv_cache_tensors", "torch.zeros(")
    return out_of_memory(short, *CACHES, frame)


def capture_oom(short: Shortage) -> EngineError:
    """Say that the CUDA graphs need more than was estimated."""
    frame = Frame("vllm/v1/worker/gpu_worker.py", 588, "compile_or_warm_up_model", "self.model_runner.capture_model()")
    return out_of_memory(short, *CACHES, frame)


def sampler_oom(short: Shortage, sequences: int) -> EngineError:
    """Say that the sampler's buffers for the largest batch do not fit into what is left (gpu_model_runner.py)."""
    frame = Frame("vllm/v1/worker/gpu_model_runner.py", 5928, "_dummy_sampler_run", "sampler_output = self.sampler(")
    return _warm_up_oom(short, sequences, "sampler", frame)


def pooler_oom(short: Shortage, sequences: int) -> EngineError:
    """Say the same of the buffers of a model that pools (gpu_model_runner.py)."""
    frame = Frame("vllm/v1/worker/gpu_model_runner.py", 5990, "_dummy_pooler_run_task", "return model.pooler(")
    return _warm_up_oom(short, sequences, "pooler (task=embed)", frame)


def _warm_up_oom(short: Shortage, sequences: int, what: str, frame: Frame) -> EngineError:
    text = (
        f"RuntimeError: CUDA out of memory occurred when warming up {what} with {sequences} dummy requests. Please "
        "try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
    )
    return EngineError(text, *CACHES, frame, cause=out_of_memory(short, frame))


def runtime_oom(short: Shortage) -> EngineError:
    """Say that a step does not fit into what is left while serving."""
    return out_of_memory(short, *STEPPING)


def _oom_text(short: Shortage) -> str:
    private = f", with {_size(short.graphs)} allocated in private pools (e.g., CUDA Graphs)" if short.graphs else ""
    reserved = 64 * 2**20  # what torch's allocator holds without using it: no failure here comes from fragmentation
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {_size(short.tried)}. GPU 0 has a total "
        f"capacity of {short.total / 2**30:.2f} GiB of which {_size(short.free)} is free. Including non-PyTorch "
        f"memory, this process has {_size(short.own)} memory in use. Of the allocated memory {_size(short.allocated)} "
        f"is allocated by PyTorch{private}, and {_size(reserved)} is reserved by PyTorch but unallocated. If reserved "
        "but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html)"
    )


def _size(size: int) -> str:
    """Return bytes as torch writes them."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"
