"""The /metrics page: vLLM 0.26's names, labels and buckets, filled from what the engine reports.

As in vLLM, latencies of single tokens are live, those of whole requests appear when a request ends, and the tokens of
a prompt are booked in the step that brings out its first token.
"""

from dataclasses import dataclass
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from vllmd_sim.config import EngineConfig
from vllmd_sim.memory import Pool

_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_ITERATION = (1, *(2**power for power in range(3, 15)))
_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
_GAUGES = {
    "num_requests_running": "Requests in the running batch.",
    "num_requests_waiting": "Requests in the queue.",
    "kv_cache_usage_perc": "Share of the KV cache in use; 1 is all of it.",
}
_COUNTERS = {
    "prefix_cache_queries": "Tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Tokens found in the prefix cache.",
    "external_prefix_cache_queries": "Tokens looked up in caches of other instances.",
    "external_prefix_cache_hits": "Tokens found in caches of other instances.",
    "mm_cache_queries": "Items looked up in the multi-modal cache.",
    "mm_cache_hits": "Items found in the multi-modal cache.",
    "num_preemptions": "Preemptions so far.",
    "prompt_tokens": "Prompt tokens processed.",
    "prompt_tokens_cached": "Prompt tokens that came from a cache.",
    "generation_tokens": "Tokens generated.",
}
_LABELLED: dict[str, tuple[str, tuple[str, ...]]] = {
    "num_requests_waiting_by_reason": ("reason", ("capacity", "deferred")),
    "engine_sleep_state": ("sleep_state", ("awake", "weights_offloaded", "discard_all")),
    "prompt_tokens_by_source": ("source", ("local_compute", "local_cache_hit", "external_kv_transfer")),
    "request_success": ("finished_reason", _FINISH_REASONS),
}
_GAUGES_LABELLED = frozenset({"num_requests_waiting_by_reason", "engine_sleep_state"})
_HISTOGRAMS = {
    "time_to_first_token_seconds": _TTFT,
    "inter_token_latency_seconds": _ITL,
    "request_time_per_output_token_seconds": _ITL,
    "e2e_request_latency_seconds": _LATENCY,
    "request_queue_time_seconds": _LATENCY,
    "request_inference_time_seconds": _LATENCY,
    "request_prefill_time_seconds": _LATENCY,
    "request_decode_time_seconds": _LATENCY,
    "iteration_tokens_total": _ITERATION,
    "request_params_n": (1, 2, 5, 10, 20),
}
_LENGTH_HISTOGRAMS = (
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_max_tokens",
    "request_prefill_kv_computed_tokens",
)


@dataclass(slots=True)
class Timing:
    """When things happened to one request, on the machine's monotonic clock."""

    arrived_s: float
    prompt_tokens: int
    max_tokens: int
    generated: int = 0
    scheduled_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0


class Metrics:
    """Everything that /metrics shows. With log statistics disabled only the process is left, as in vLLM."""

    def __init__(self, config: EngineConfig, pool: Pool, *, enabled: bool) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        own = self._registry if enabled else CollectorRegistry()
        self._pool_tokens = pool.tokens
        self._prefix_caching = config.prefix_caching
        self.totals = {"prompt_tokens": 0, "generation_tokens": 0, "num_preemptions": 0}
        self.usage = 0.0
        names, values = ("model_name", "engine"), (config.served_name, "0")
        self._gauges = {n: Gauge(f"vllm:{n}", text, names, registry=own).labels(*values) for n, text in _GAUGES.items()}
        self._counters = {
            n: Counter(f"vllm:{n}", text, names, registry=own).labels(*values) for n, text in _COUNTERS.items()
        }
        self._labelled: dict[tuple[str, str], Any] = {}
        for name, (label, choices) in _LABELLED.items():
            kind = Gauge if name in _GAUGES_LABELLED else Counter
            family = kind(f"vllm:{name}", f"Simulated, by {label}.", (*names, label), registry=own)
            self._labelled |= {(name, choice): family.labels(*values, choice) for choice in choices}
        buckets: dict[str, tuple[float, ...]] = dict(_HISTOGRAMS)
        buckets |= dict.fromkeys(_LENGTH_HISTOGRAMS, _one_two_five(pool.max_model_len))
        self._histograms = {
            name: Histogram(f"vllm:{name}", "Simulated.", names, buckets=bounds, registry=own).labels(*values)
            for name, bounds in buckets.items()
        }
        self._labelled["engine_sleep_state", "awake"].set(1)
        labels = {**_cache_labels(config, pool), "engine": "0"}
        Gauge("vllm:cache_config_info", "The KV cache's configuration.", tuple(labels), registry=own).labels(
            **labels
        ).set(1)

    def page(self) -> bytes:
        """Return the page as text."""
        return generate_latest(self._registry)

    def step(self, running: int, waiting: int, used: int, preemptions: int) -> None:
        """Book the state after a step."""
        self._gauges["num_requests_running"].set(running)
        self._gauges["num_requests_waiting"].set(waiting)
        self._labelled["num_requests_waiting_by_reason", "capacity"].set(waiting)
        self.usage = used / self._pool_tokens
        self._gauges["kv_cache_usage_perc"].set(self.usage)
        self._counters["num_preemptions"].inc(preemptions)
        self.totals["num_preemptions"] += preemptions

    def iteration(self, first: int, decoded: int) -> None:
        """Book a step that brought out tokens: prompt tokens of new answers, and tokens generated."""
        self._histograms["iteration_tokens_total"].observe(first + decoded)
        self._counters["generation_tokens"].inc(decoded)
        self.totals["generation_tokens"] += decoded

    def token(self, timing: Timing, now_s: float) -> None:
        """Book one token of a request; `timing` still shows the state before it."""
        if timing.generated:
            self._histograms["inter_token_latency_seconds"].observe(now_s - timing.last_s)
            return
        self._histograms["time_to_first_token_seconds"].observe(now_s - timing.arrived_s)
        self._counters["prompt_tokens"].inc(timing.prompt_tokens)
        self._labelled["prompt_tokens_by_source", "local_compute"].inc(timing.prompt_tokens)
        self._counters["prefix_cache_queries"].inc(timing.prompt_tokens if self._prefix_caching else 0)
        self.totals["prompt_tokens"] += timing.prompt_tokens

    def finished(self, timing: Timing, reason: str, now_s: float) -> None:
        """Book the end of a request."""
        self._labelled["request_success", reason].inc()
        observed = {
            "e2e_request_latency_seconds": now_s - timing.arrived_s,
            "request_prompt_tokens": timing.prompt_tokens,
            "request_generation_tokens": timing.generated,
            "request_max_num_generation_tokens": timing.generated,
            "request_params_max_tokens": timing.max_tokens,
            "request_params_n": 1,
        }
        if timing.generated:
            decode_s = timing.last_s - timing.first_s
            observed |= {
                "request_queue_time_seconds": timing.scheduled_s - timing.arrived_s,
                "request_prefill_time_seconds": timing.first_s - timing.scheduled_s,
                "request_decode_time_seconds": decode_s,
                "request_inference_time_seconds": timing.last_s - timing.scheduled_s,
                "request_time_per_output_token_seconds": decode_s / max(1, timing.generated - 1),
                "request_prefill_kv_computed_tokens": timing.prompt_tokens,
            }
        for name, value in observed.items():
            self._histograms[name].observe(value)


def _one_two_five(limit: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50 … up to a limit."""
    series = (mantissa * 10**power for power in range(len(str(limit))) for mantissa in (1, 2, 5))
    return tuple(bound for bound in series if bound <= limit)


def _cache_labels(config: EngineConfig, pool: Pool) -> dict[str, str]:
    """Return vLLM's CacheConfig as labels; what the simulation has no notion of keeps vLLM's default."""
    defaults = {
        "_block_size_resolved": "True",
        "calculate_kv_scales": "False",
        "is_attention_free": "False",
        "kv_cache_dtype_skip_layers": "[]",
        "kv_offloading_backend": "native",
        "kv_offloading_size": "None",
        "kv_sharing_fast_prefill": "False",
        "mamba_block_size": "None",
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_page_size_padded": "None",
        "mamba_ssm_cache_dtype": "auto",
        "num_cpu_blocks": "None",
        "num_gpu_blocks_override": "None",
        "prefix_caching_hash_algo": "sha256",
        "prefix_match_unit": "None",
        "skip_page_size_padded": "None",
        "sliding_window": "None",
        "user_specified_mamba_block_size": "False",
    }
    return defaults | {
        "block_size": str(config.block_size),
        "cache_dtype": config.kv_cache_dtype,
        "enable_prefix_caching": str(config.prefix_caching),
        "gpu_memory_utilization": str(config.utilization),
        "kv_cache_max_concurrency": str(pool.tokens / pool.max_model_len),
        "kv_cache_memory_bytes": str(config.kv_cache_bytes),
        "kv_cache_size_tokens": str(pool.tokens),
        "num_gpu_blocks": str(pool.blocks),
        "user_specified_block_size": str(config.block_size != 16),  # noqa: PLR2004 - vLLM's default
    }
