"""What vLLM's old engine says otherwise: V0, the only one before 0.8, there with VLLM_USE_V1=0 up to 0.10.2.

Templates: vLLM 0.7.3 (engine/multiprocessing, worker/worker.py, core/scheduler.py, engine/metrics.py) and what users
reported of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from vllmd_sim import failures
from vllmd_sim.failures import CLI, EngineError, Frame, traceback

_INITIALIZING = (
    Frame("vllm/engine/multiprocessing/engine.py", 380, "run_mp_engine", "engine = MQLLMEngine.from_engine_args("),
    Frame("vllm/engine/llm_engine.py", 276, "__init__", "self._initialize_kv_caches()"),
)
_RUNNING = (
    Frame("vllm/engine/multiprocessing/engine.py", 137, "start", "self.run_engine_loop()"),
    Frame("vllm/engine/multiprocessing/engine.py", 218, "engine_step", "return self.engine.step()"),
)
_SIZING = (
    Frame("vllm/worker/worker.py", 291, "initialize_cache", "raise_if_cache_size_invalid("),
    Frame("vllm/worker/worker.py", 545, "raise_if_cache_size_invalid", "raise ValueError("),
)
_WARNS_EVERY = 50  # preemptions, the first one included


def no_cache_memory() -> EngineError:
    """Say that nothing is left for the KV cache."""
    text = (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine."
    )
    return EngineError(text, *_SIZING)


def cache_too_small(length: int, fitting: int) -> EngineError:
    """Say that the KV cache holds `fitting` tokens, less than one request of the full length."""
    text = (
        f"ValueError: The model's max seq len ({length}) is larger than the maximum number of tokens that can be "
        f"stored in KV cache ({fitting}). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
        "initializing the engine."
    )
    return EngineError(text, *_SIZING)


def worker_lost(pid: int, code: int) -> EngineError:
    """Say that a worker ended (executor/multiproc_worker_utils.py)."""
    died = f"Worker VllmWorkerProcess pid {pid} died, exit code: {code}"
    return EngineError(
        "ChildProcessError: worker died", notices=[failures.Notice("multiproc_worker_utils.py:124", died)]
    )


def engine_traceback(failure: EngineError, *, serving: bool) -> str:
    """Return the engine's traceback: V0's own way to the frame where it failed."""
    outer = _RUNNING if serving else _INITIALIZING
    inner = (
        replace(frame, file=frame.file.replace("vllm/v1/", "vllm/").replace("gpu_worker", "worker"))
        for frame in failure.frames
        if not frame.file.startswith("vllm/v1/engine/")
    )
    return traceback((*outer, *inner), failure.text)


def start_traceback() -> str:
    """Return the API server's last words after its engine failed to start: generic, the cause stands above."""
    frame = Frame(
        "vllm/entrypoints/openai/api_server.py",
        233,
        "build_async_engine_client_from_engine_args",
        "raise RuntimeError(",
    )
    return traceback((*CLI, frame), "RuntimeError: Engine process failed to start. See stack trace for the root cause.")


def preemption_warnings(preempted: Sequence[str], before: int) -> Iterator[str]:
    """Yield what is said of requests that lost their place in a step, after so many preemptions before it."""
    for total, name in enumerate(preempted, before):
        if total % _WARNS_EVERY == 0:
            yield (
                f"Sequence group {name} is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV "
                "cache space. This can affect the end-to-end performance. Increase gpu_memory_utilization or "
                "tensor_parallel_size to provide more KV cache memory. "
                f"total_num_cumulative_preemption={total + 1}"
            )
