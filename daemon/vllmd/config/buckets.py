"""The bucket edges of vLLM's latency histograms: on an edge a target's attainment is exact.

Source: vllm/v1/metrics/loggers.py of 0.33.0, the same on pages captured from 0.26.0 (H200) and 0.32.0 (CPU).
"""

import bisect
from collections.abc import Mapping

HISTOGRAM: Mapping[str, str] = {
    "itl": "vllm:inter_token_latency_seconds",
    "ttft": "vllm:time_to_first_token_seconds",
}
EDGES_S: Mapping[str, tuple[float, ...]] = {
    "itl": (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
    "ttft": (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
        *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
    ),
}


def edges_beside(metric: str, limit_s: float) -> tuple[float, ...]:
    """Return the nearest edges below and above a limit in seconds; empty when the limit is an edge itself."""
    edges = EDGES_S[metric]
    if limit_s in edges:
        return ()
    above = bisect.bisect_left(edges, limit_s)
    return edges[max(0, above - 1) : above + 1]
