"""Where a GPU's memory goes: weights, activation peak, graphs, KV pool, others, what is free."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The memory of one GPU, in bytes; None where nobody said.

    `gpu` is its index, `total_bytes` and `free_bytes` are the driver's. `device_bytes` is what a utilization is a share
    of: the total as the server counts it, which lacks the driver's own part (139.8 of 140.4 GiB on an H200).
    `activation_bytes` is a peak, not held all the time; `others_bytes` is held by processes that are not ours.
    Of `graphs_bytes` the server counted only `graphs_counted_bytes` when it sized the pool, the rest comes on top.
    `request_bytes` is the KV pool that one request of full length, `request_tokens`, needs at least.
    """

    gpu: int | None = None
    total_bytes: float | None = None
    free_bytes: float | None = None
    others_bytes: float | None = None
    weights_bytes: float | None = None
    activation_bytes: float | None = None
    non_torch_bytes: float | None = None
    graphs_bytes: float | None = None
    graphs_counted_bytes: float | None = None
    kv_cache_bytes: float | None = None
    device_bytes: float | None = None
    utilization: float | None = None  # in force
    utilization_default: float | None = None  # this vLLM's, where no flag says it
    request_bytes: float | None = None
    request_tokens: float | None = None
    batched_tokens: float | None = None
    counts_others: bool = False  # utilization includes what others hold: vLLM before 0.9

    @property
    def requested_bytes(self) -> float | None:
        """What the utilization in force asks for."""
        if self.device_bytes is None or self.utilization is None:
            return None
        return self.device_bytes * self.utilization

    @property
    def uncounted_graphs_bytes(self) -> float:
        """What graphs take beyond what the utilization asks for, as far as it is known."""
        if self.graphs_bytes is None or self.graphs_counted_bytes is None:
            return 0.0
        return max(0.0, self.graphs_bytes - self.graphs_counted_bytes)

    @property
    def held_bytes(self) -> float:
        """What the server is known to need: the sum of the parts that somebody said."""
        parts = (
            self.weights_bytes,
            self.activation_bytes,
            self.non_torch_bytes,
            self.graphs_bytes,
            self.kv_cache_bytes,
        )
        return sum(part for part in parts if part is not None)

    @property
    def unexplained_bytes(self) -> float | None:
        """What is used and is none of the parts: the driver, the CUDA context, fragments, and parts that nobody said.

        None before weights and pool are known, or where others' share is not. Never less than nothing: before the first
        large step the activation peak is not held yet.
        """
        if self.total_bytes is None or self.free_bytes is None or self.others_bytes is None:
            return None
        if self.weights_bytes is None or self.kv_cache_bytes is None:
            return None
        return max(0.0, self.total_bytes - self.free_bytes - self.others_bytes - self.held_bytes)
