"""How far a launch has come, by the lines of its log."""

from collections.abc import Sequence

from vllmd.decide.log_lines import is_echo
from vllmd.model.server import Phase

PHASES = tuple(Phase)

# What a line says once its phase has begun (vLLM 0.6 to 0.33; templates in gpu_worker.py, gpu_model_runner.py,
# kv_cache_utils.py, cpu_worker.py, core.py, and uvicorn). The memory for the cache is settled when its size is
# printed: what fails after that fails for want of what the pool took.
MARKS: tuple[tuple[str, Phase], ...] = (
    ("Starting to load model", Phase.LOADING),
    ("Loading model from scratch", Phase.LOADING),
    ("Loading safetensors checkpoint shards", Phase.LOADING),
    ("Model loading took", Phase.PROFILING),
    ("Loading model weights took", Phase.PROFILING),
    ("Warming up model for the compilation", Phase.PROFILING),
    ("for KV cache on node", Phase.PROFILING),
    ("on kv cache allocation is less than", Phase.PROFILING),
    ("Available KV cache memory", Phase.PROFILING),
    ("KV cache size:", Phase.CAPTURE),
    ("# GPU blocks:", Phase.CAPTURE),
    ("# cuda blocks:", Phase.CAPTURE),
    ("Capturing CUDA graph", Phase.CAPTURE),
    ("Graph capturing finished", Phase.WARMUP),
    ("init engine (profile", Phase.WARMUP),
    ("Starting vLLM server on", Phase.WARMUP),
    ("Available routes are", Phase.WARMUP),
    ("Application startup complete", Phase.SERVING),
    ("Avg prompt throughput", Phase.SERVING),
    ("[shutdown] API server: shutdown triggered", Phase.SHUTDOWN),
    ("Shutting down FastAPI HTTP server", Phase.SHUTDOWN),
    ("INFO:     Shutting down", Phase.SHUTDOWN),
    ("Waiting for application shutdown", Phase.SHUTDOWN),
)

# What is done in a phase, as a sentence says it.
DOING = {
    Phase.CONFIG: "reading its configuration",
    Phase.LOADING: "loading the weights",
    Phase.PROFILING: "measuring memory",
    Phase.CAPTURE: "capturing graphs",
    Phase.WARMUP: "warming up",
    Phase.SERVING: "serving",
    Phase.SHUTDOWN: "shutting down",
}


def phase_of(lines: Sequence[str]) -> Phase:
    """Return the last phase that the lines show; CONFIG if they show none."""
    phase = Phase.CONFIG
    for line in lines:
        for mark, begun in MARKS:
            if mark in line and not is_echo(line):
                phase = later(phase, begun)
    return phase


def later(one: Phase, other: Phase) -> Phase:
    """Return the phase that comes later in a launch's life."""
    return max(one, other, key=PHASES.index)
