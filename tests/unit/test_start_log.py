"""What a start prints is read in every wording, once, and never from a user's text."""

import pytest

from captures import GIB
from vllmd.decide.start_log import read_start
from vllmd.model.status import StartFacts

LOGGED = "(EngineCore pid=7) INFO 11-29 16:34:58 [gpu_worker.py:857] "
V0 = [
    "the current vLLM instance can use total_gpu_memory (79.15GiB) x gpu_memory_utilization (0.90) = 71.24GiB",
    (
        "model weights take 14.96GiB; non_torch_memory takes 0.14GiB; PyTorch activation peak memory takes 1.20GiB;"
        " the rest of the memory reserved for KV Cache is 54.94GiB."
    ),
]
V0_EARLY = [
    (
        "INFO 11-21 10:14:24 worker.py:232] Memory profiling results: total_gpu_memory=79.15GiB"
        " initial_memory_usage=68.01GiB peak_torch_memory=10.2GiB memory_usage_post_profile=68.3GiB"
        " non_torch_memory=58.4GiB kv_cache_size=-52.8GiB gpu_memory_utilization=0.20"
    ),
]
BREAKDOWN = [
    (
        f"{LOGGED}Free memory on device (139.29/139.8 GiB) on startup. Desired GPU memory utilization is (0.9, 125.82"
        " GiB). Actual usage is 13.5 GiB for weight, 0.93 GiB for peak activation, 0.22 GiB for non-torch memory, and"
        " 0.98 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=118155385856`"
    ),
]
NEWER_BREAKDOWN = [
    (
        f"{LOGGED}Free memory on device cuda:0 (139.29/139.8 GiB) on startup. Desired GPU memory utilization is (0.92,"
        " 128.62 GiB). Actual usage is 13.72 GiB for consumed memory (weights + non-torch), 0.93 GiB for peak"
        " activation, and 0.98 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with"
    ),
]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["Loading model weights took 14.9600 GB"], {"weights_bytes": 14.96}),
        (["Model loading took 9.0934 GB and 8.7 seconds"], {"weights_bytes": 9.0934}),
        (["Model loading took 18.41 GiB memory and 8.512034 seconds"], {"weights_bytes": 18.41}),
        (["Available KV cache memory: -4.75 GiB"], {"kv_cache_bytes": -4.75}),
        (
            ["Initial free memory 139.29 GiB, reserved 122.6 GiB memory for KV Cache as specified by"],
            {"kv_cache_bytes": 122.6},
        ),
        (["Estimated CUDA graph memory: 0.85 GiB total"], {"graphs_estimate_bytes": 0.85}),
        (["CUDA graph pool memory: 0.98 GiB (actual), 0.85 GiB (estimated)"], {"graphs_bytes": 0.98}),
        (["Graph capturing finished in 5 secs, took 0.98 GiB"], {"graphs_bytes": 0.98}),
        (
            V0,
            {
                "weights_bytes": 14.96,
                "non_torch_bytes": 0.14,
                "activation_bytes": 1.2,
                "kv_cache_bytes": 54.94,
                "device_bytes": 79.15,
            },
        ),
        (
            V0_EARLY,
            {"torch_peak_bytes": 10.2, "non_torch_bytes": 58.4, "kv_cache_bytes": -52.8, "device_bytes": 79.15},
        ),
        (
            BREAKDOWN,
            {"activation_bytes": 0.93, "non_torch_bytes": 0.22, "graphs_bytes": 0.98, "device_bytes": 139.8},
        ),
        (
            NEWER_BREAKDOWN,
            {"consumed_bytes": 13.72, "activation_bytes": 0.93, "graphs_bytes": 0.98, "device_bytes": 139.8},
        ),
    ],
)
def test_sizes_are_read_in_every_wording(lines: list[str], said: dict[str, float]) -> None:
    """Each version's line gives its sizes and no other."""
    facts = read_start(StartFacts(), lines)
    sizes = {name: getattr(facts, name) for name in StartFacts.__dataclass_fields__ if name.endswith("_bytes")}
    assert {name: size for name, size in sizes.items() if size is not None} == {n: g * GIB for n, g in said.items()}


@pytest.mark.parametrize(
    ("lines", "utilization"), [(V0, 0.9), (V0_EARLY, 0.2), (BREAKDOWN, 0.9), (NEWER_BREAKDOWN, 0.92)]
)
def test_the_utilization_in_force_is_read(lines: list[str], utilization: float) -> None:
    """What was asked for is printed in every version that prints a breakdown."""
    assert read_start(StartFacts(), lines).utilization == utilization


@pytest.mark.parametrize(
    "lines",
    [
        ["GPU KV cache size: 910,656 tokens", "Maximum concurrency for 16,384 tokens per request: 55.58x"],
        ["GPU KV cache size: 910,656 tokens, Maximum concurrency for 16,384 tokens per request: 55.58x"],
    ],
)
def test_the_pool_is_read_in_tokens_and_requests(lines: list[str]) -> None:
    """The pool in tokens, the full length, and how many requests of it fit, on two lines or on one."""
    facts = read_start(StartFacts(), lines)
    assert (facts.kv_cache_tokens, facts.request_tokens, facts.concurrency) == (910_656, 16_384, 55.58)


def test_the_first_rank_counts_and_of_the_pools_the_smallest() -> None:
    """Every rank prints its share: the first one stands for all, but the smallest pool decides what fits."""
    loaded = read_start(StartFacts(), ["Model loading took 30.0 GiB", "Model loading took 30.5 GiB"])
    pools = [f"(Worker_TP{n} pid=7) Available KV cache memory: {size} GiB" for n, size in enumerate((8.5, 8.0, 9.0))]
    assert loaded.weights_bytes == 30 * GIB
    assert read_start(loaded, pools).kv_cache_bytes == 8 * GIB


def test_users_texts_say_nothing_of_memory() -> None:
    """A prompt that quotes a start, logged before or after the server serves, changes nothing."""
    echoed = ["Received request r-1: prompt: 'Model loading took 1.0 GiB', params: x"]
    served = ["INFO:     Application startup complete.", "Model loading took 1.0 GiB and 3 seconds"]
    assert read_start(StartFacts(), echoed).weights_bytes is None
    assert read_start(StartFacts(), served).weights_bytes is None
