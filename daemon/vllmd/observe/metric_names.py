"""vLLM's metric names by version, and vllmd's own name for each.

Source: vllm/v1/metrics/loggers.py of 0.9.2 to 0.33.0 and vllm/engine/metrics.py of 0.6.0 to 0.8.5. vLLM renames a
metric over three minor versions (deprecated, hidden, gone), so that a page holds one spelling or both: the first one
found here counts.
"""

from collections.abc import Mapping

GAUGES: Mapping[str, tuple[str, ...]] = {
    "requests_running": ("vllm:num_requests_running",),
    "requests_waiting": ("vllm:num_requests_waiting",),
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # the second one: up to 0.11
}
COUNTERS: Mapping[str, tuple[str, ...]] = {
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "preemptions": ("vllm:num_preemptions_total",),
    "requests_finished": ("vllm:request_success_total",),  # by finished_reason, "error" and "abort" among them
    "steps": ("vllm:iteration_tokens_total_count",),
}
HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    # the second one: up to 0.14
    "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "ttft": ("vllm:time_to_first_token_seconds",),
}
# One series for each state of sleep (0.12 and later, label sleep_state), 1 for the one that an engine is in. That of
# `awake` is 0 at each level of sleep; at level 0 no other one is 1.
SLEEP_STATE = "vllm:engine_sleep_state"
CACHE_CONFIG = "vllm:cache_config_info"

# A label that tells engines and API servers apart: their gauges of usage are not added up, the fullest one counts.
TIGHTEST = frozenset({"kv_cache_usage"})
