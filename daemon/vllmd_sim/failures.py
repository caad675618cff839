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


class ConfigError(Exception):
    """The API server gives up before an engine exists: exit code 1."""

    def __init__(self, text: str, *frames: Frame) -> None:
        super().__init__(text)
        self.text = text
        self.frames = frames


class EngineError(Exception):
    """The engine gives up. `notice` is logged before the traceback, `cause` is the exception that led to it."""

    def __init__(self, text: str, *frames: Frame, notice: str = "", cause: "EngineError | None" = None) -> None:
        super().__init__(text)
        self.text = text
        self.frames = frames
        self.notice = notice
        self.cause = cause


def traceback(frames: Sequence[Frame], text: str) -> str:
    """Return a traceback as Python prints it."""
    entries = (
        f'  File "/venv/lib/python3.12/site-packages/{frame.file}", line {frame.line}, in {frame.function}\n'
        f"    {frame.source}"
        for frame in frames
    )
    return "\n".join(("Traceback (most recent call last):", *entries, text))


_CLI = (
    Frame("vllm/entrypoints/cli/main.py", 95, "main", "args.dispatch_function(args)"),
    Frame("vllm/entrypoints/cli/serve.py", 148, "cmd", "uvloop.run(run_server(args))"),
)
_WORKER = (
    Frame("vllm/entrypoints/openai/api_server.py", 759, "run_server", "await run_server_worker(listen_address, sock)"),
    Frame("vllm/entrypoints/openai/api_server.py", 773, "run_server_worker", "async with build_async_engine_client("),
)
_CONFIGURING = (
    *_CLI,
    *_WORKER,
    Frame("vllm/engine/arg_utils.py", 2181, "create_engine_config", "self.create_model_config()"),
    Frame("pydantic/_internal/_dataclasses.py", 121, "__init__", "s.__pydantic_validator__.validate_python("),
)
_CORE = Frame("vllm/v1/engine/core.py", 1299, "run_engine_core", "engine_core = EngineCoreProc(")
_EXECUTOR = (
    _CORE,
    Frame("vllm/v1/engine/core.py", 125, "__init__", "self.model_executor = executor_class(vllm_config)"),
)
_CACHES = (_CORE, Frame("vllm/v1/engine/core.py", 136, "__init__", "kv_cache_config = self._initialize_kv_caches("))
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
        *_CLI,
        *_WORKER,
        Frame("vllm/v1/engine/async_llm.py", 217, "from_vllm_config", "return cls("),
        Frame("vllm/v1/engine/core_client.py", 573, "__init__", "with launch_core_engines("),
        Frame("vllm/v1/engine/utils.py", 1272, "wait_for_engine_startup", "raise RuntimeError("),
    )
    reason = f"See root cause above. Failed core proc(s): {{'EngineCore': {exit_code}}}"
    return traceback(frames, f"RuntimeError: Engine core initialization failed. {reason}")


def terminated_traceback() -> str:
    """Return what a SIGTERM during the start leaves behind."""
    frame = Frame(
        "vllm/entrypoints/openai/api_server.py", 430, "signal_handler", 'raise KeyboardInterrupt("terminated")'
    )
    return traceback((*_CLI, frame), "KeyboardInterrupt: terminated")


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


def bind_failed(error: OSError) -> ConfigError:
    """Say that the port cannot be had; errno 98 when it belongs to somebody else."""
    frames = (
        Frame("vllm/entrypoints/openai/api_server.py", 757, "run_server", "listen_address, sock = setup_server(args)"),
        Frame("vllm/entrypoints/openai/api_server.py", 700, "create_server_socket", "sock.bind(addr)"),
    )
    return ConfigError(f"{type(error).__name__}: [Errno {error.errno}] {error.strerror}", *_CLI, *frames)


def model_not_found(model: str) -> ConfigError:
    """Say that a path does not exist, as if it were the name of a repository (seen with 0.32)."""
    text = (
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
        f"'{model}'. Use `repo_type` argument if needed."
    )
    frame = Frame("huggingface_hub/utils/_validators.py", 133, "validate_repo_id", "raise HFValidationError(")
    return ConfigError(text, *_CLI, *_WORKER, frame)


def model_len_too_long(asked: int, limit: int) -> ConfigError:
    """Say that the context length is beyond what the model was made for (seen with 0.32)."""
    text = (
        f"User-specified max_model_len ({asked}) is greater than the derived max_model_len (max_position_embeddings="
        f"{float(limit)} or model_max_length=None in model's config.json). To allow overriding this maximum, set the "
        "env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
    )
    return _validation("ModelConfig", text)


def batched_below_seqs(batched: int, seqs: int) -> ConfigError:
    """Say that there are fewer batched tokens than sequences."""
    text = f"max_num_batched_tokens ({batched}) must be greater than or equal to max_num_seqs ({seqs})."
    return _validation("SchedulerConfig", text)


def batched_below_length(batched: int, length: int) -> ConfigError:
    """Say that without chunked prefill a whole prompt must fit into one step (config/scheduler.py)."""
    text = (
        f"max_num_batched_tokens ({batched}) is smaller than max_model_len ({length}). This effectively limits the "
        "maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. Please increase "
        "max_num_batched_tokens or decrease max_model_len."
    )
    return _validation("SchedulerConfig", text)


def _validation(model: str, text: str) -> ConfigError:
    details = "[type=value_error, input_value=ArgsKwargs((), {...}), input_type=ArgsKwargs]"
    return ConfigError(
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {model}\n"
        f"  Value error, {text} {details}\n"
        "    For further information visit https://errors.pydantic.dev/2.14/v/value_error",
        *_CONFIGURING,
    )


def free_memory_low(free: int, total: int, utilization: float, requested: int) -> EngineError:
    """Say that the utilization asks for more than is free at the start."""
    text = (
        f"ValueError: Free memory on device cuda:0 ({gib(free)}/{gib(total)} GiB) on startup is less than desired GPU "
        f"memory utilization ({utilization}, {gib(requested)} GiB). Decrease GPU memory utilization or reduce GPU "
        "memory used by other processes."
    )
    frame = Frame("vllm/v1/worker/utils.py", 435, "request_memory", "raise ValueError(")
    return EngineError(text, *_EXECUTOR, frame)


def no_cache_memory() -> EngineError:
    """Say that nothing is left for the KV cache."""
    text = (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine (this flag also controls CPU memory reservation on the CPU backend, despite its "
        f"name). {_CONSERVING}"
    )
    return EngineError(text, *_CACHES, _CHECK)


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
    return EngineError(text, *_CACHES, _CHECK)


def no_auto_fit() -> EngineError:
    """Say that `--max-model-len auto` found no length at all (v1/core/kv_cache_utils.py)."""
    text = (
        "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token. Try "
        "increasing `gpu_memory_utilization`."
    )
    return EngineError(text, *_CACHES, _CHECK)


@dataclass(frozen=True, slots=True)
class Shortage:
    """An allocation that did not fit, in bytes: what was tried, and how the device's memory was used."""

    tried: int
    total: int
    free: int
    own: int
    allocated: int


def out_of_memory(short: Shortage, *frames: Frame, notice: str = "") -> EngineError:
    """Say in torch's own words that an allocation does not fit."""
    return EngineError(_oom_text(short), *frames, notice=notice)


def weights_oom(short: Shortage) -> EngineError:
    """Say that the weights do not fit (gpu_model_runner.py); utilization does not limit them, whatever it advises."""
    notice = (
        "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to free memory for "
        "weights, increasing --tensor-parallel-size, or using --quantization. (original error: "
        f"{_oom_text(short).partition(': ')[2]})"
    )
    frame = Frame("vllm/v1/worker/gpu_model_runner.py", 5060, "load_model", "self.model = model_loader.load_model(")
    return out_of_memory(short, *_EXECUTOR, frame, notice=notice)


def profiling_oom(short: Shortage) -> EngineError:
    """Say that the largest step does not fit beside the weights."""
    frame = Frame("vllm/v1/worker/gpu_worker.py", 520, "determine_available_memory", "self.model_runner.profile_run()")
    return out_of_memory(short, *_CACHES, frame)


def pool_oom(short: Shortage) -> EngineError:
    """Say that the KV cache itself does not fit, which only an explicit size can bring about."""
    frame = Frame("vllm/v1/worker/gpu_model_runner.py", 5500, "_allocate_kv_cache_tensors", "torch.zeros(")
    return out_of_memory(short, *_CACHES, frame)


def capture_oom(short: Shortage) -> EngineError:
    """Say that the CUDA graphs need more than was estimated."""
    frame = Frame("vllm/v1/worker/gpu_worker.py", 588, "compile_or_warm_up_model", "self.model_runner.capture_model()")
    return out_of_memory(short, *_CACHES, frame)


def sampler_oom(short: Shortage, sequences: int) -> EngineError:
    """Say that the sampler's buffers for the largest batch do not fit into what is left (gpu_model_runner.py)."""
    text = (
        f"RuntimeError: CUDA out of memory occurred when warming up sampler with {sequences} dummy requests. Please "
        "try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
    )
    frame = Frame("vllm/v1/worker/gpu_model_runner.py", 5928, "_dummy_sampler_run", "sampler_output = self.sampler(")
    return EngineError(text, *_CACHES, frame, cause=out_of_memory(short, frame))


def runtime_oom(short: Shortage) -> EngineError:
    """Say that a step does not fit into what is left while serving."""
    frames = (
        Frame("vllm/v1/engine/core.py", 1323, "run_engine_core", "engine_core.run_busy_loop()"),
        Frame("vllm/v1/worker/gpu_worker.py", 1147, "execute_model", "output = self.model_runner.execute_model("),
    )
    return out_of_memory(short, *frames)


def _oom_text(short: Shortage) -> str:
    reserved = 64 * 2**20  # what torch's allocator holds without using it: no failure here comes from fragmentation
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {_size(short.tried)}. GPU 0 has a total "
        f"capacity of {short.total / 2**30:.2f} GiB of which {_size(short.free)} is free. Including non-PyTorch "
        f"memory, this process has {_size(short.own)} memory in use. Of the allocated memory {_size(short.allocated)} "
        f"is allocated by PyTorch, and {_size(reserved)} is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html)"
    )


def _size(size: int) -> str:
    """Return bytes as torch writes them."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"
