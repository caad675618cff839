"""vLLM's memory arithmetic: what an engine asks for, in the order of its start, and where it does not fit.

KV cache = ceil(total * utilization) - weights - non-torch - activation peak - estimate of the graphs. Pure: what other
processes use comes in as a number.
"""

import math
from dataclasses import dataclass, replace

from vllmd_sim import failures, v0
from vllmd_sim.config import EngineConfig
from vllmd_sim.failures import Shortage
from vllmd_sim.host import GIB, MIB, Host

_SAFETY = 150 * MIB  # what vLLM leaves out of the sizes that it suggests (gpu_worker.py)
_LAYERS = 32  # an 8B Llama's weights come in so many equal parts, and loading fails at one of them
_CAPTURE_FULL = 512  # batch sizes up to this one were captured when graphs_gib was measured


@dataclass(frozen=True, slots=True)
class Pool:
    """The KV cache: its size in blocks and tokens, and the context length that it allows."""

    blocks: int
    tokens: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Memory:
    """One engine's claims on the GPU, in bytes. Every check raises failures.EngineError with vLLM's own words."""

    total: int
    others: int
    context: int
    requested: int
    weights: int
    non_torch: int
    activation: int
    graphs: int
    graphs_estimate: int
    batch_buffers: int
    token_bytes: int
    config: EngineConfig

    @property
    def free_at_start(self) -> int:
        """Free memory when the engine looks first: others and its own CUDA context are already there."""
        return self.total - self.others - self.context

    @property
    def loaded(self) -> int:
        """What the model itself takes."""
        return self.weights + self.non_torch

    @property
    def available(self) -> int:
        """What is left for the KV cache; may be negative."""
        if self.config.kv_cache_bytes is not None:
            return self.config.kv_cache_bytes
        return self.requested - self.loaded - self.activation - self.graphs_estimate

    @property
    def blocks(self) -> int:
        """How many blocks of the KV cache that is; not negative."""
        return max(0, self.available // (self.config.block_size * self.token_bytes))

    @property
    def suggestions(self) -> tuple[int, int]:
        """KV cache sizes that vLLM suggests: inside the requested memory, and for the whole device."""
        used = self.loaded + self.activation + self.graphs + _SAFETY
        return self.requested - used, self.free_at_start - used

    def held(self, pool: Pool) -> int:
        """Return what the serving engine holds. The activation peak is reserved: torch keeps what profiling took."""
        return self.context + self.loaded + self.activation + self.graphs + self.pool_bytes(pool)

    def pool_bytes(self, pool: Pool) -> int:
        """Return the size of a pool."""
        return pool.tokens * self.token_bytes

    def check_request(self) -> None:
        """Refuse a utilization beyond what is free."""
        if self.free_at_start < self.requested:
            raise failures.free_memory_low(self.free_at_start, self.total, self.config.utilization, self.requested)

    def check_weights(self) -> None:
        """Fail while loading when the weights do not fit on the device."""
        if self.loaded > self.free_at_start:
            layer = self.loaded // _LAYERS
            raise failures.weights_oom(self._shortage(layer, self.free_at_start % layer))

    def check_profile(self) -> None:
        """Fail in the profiling run when the largest step does not fit beside the weights."""
        free = self.free_at_start - self.loaded
        if self.activation > free:
            raise failures.profiling_oom(self._shortage(self.activation, free))

    def check_unmoved(self, others: int) -> None:
        """Fail when more is free after the profiling run than before it: what `others` hold has shrunk meanwhile."""
        now = self.total - others - self.context - self.loaded
        if now > self.free_at_start:
            raise failures.memory_moved(self.free_at_start, now)

    def plan_pool(self, max_position: int) -> Pool:
        """Return the KV cache, or fail when it does not hold one request of the full length."""
        block, blocks = self.config.block_size, self.blocks
        length = self.config.max_model_len
        if length < 0:
            if blocks == 0:
                raise failures.no_auto_fit()
            length = min(max_position, blocks * block)
        if self.available <= 0:
            raise v0.no_cache_memory() if self.config.v0 else failures.no_cache_memory()
        if blocks * block < length and self.config.v0:
            raise v0.cache_too_small(length, blocks * block)
        if blocks * block < length:
            needed = math.ceil(length / block) * block * self.token_bytes
            raise failures.cache_too_small(length, needed, self.available, blocks * block)
        return Pool(blocks, blocks * block, length)

    def check_capture(self, pool: Pool) -> None:
        """Fail when the pool itself or, beside it, the CUDA graphs do not fit."""
        after_pool = self.free_at_start - self.loaded - self.pool_bytes(pool)
        if after_pool < 0:
            raise failures.pool_oom(self._shortage(self.pool_bytes(pool), after_pool + self.pool_bytes(pool)))
        if self.graphs > after_pool:
            raise failures.capture_oom(self._shortage(self.graphs, after_pool))

    def check_warm_up(self, pool: Pool) -> None:
        """Fail when the buffers of the sampler, or the pooler, do not fit into what the pool and the graphs leave."""
        free = self.free_at_start - self.loaded - self.pool_bytes(pool) - self.graphs
        if self.batch_buffers > free:
            refused = failures.pooler_oom if self.config.pooling else failures.sampler_oom
            raise refused(self._shortage(self.batch_buffers, free), self.config.max_num_seqs)

    def check_step(self, pool: Pool, peak: int, others: int) -> None:
        """Fail while serving when `peak` more bytes do not fit beside what `others` hold now."""
        free = self.total - others - self.held(pool)
        if peak > free:
            raise failures.runtime_oom(replace(self._shortage(peak, max(0, free), others), graphs=self.graphs))

    def _shortage(self, tried: int, free: int, others: int | None = None) -> Shortage:
        own = self.total - free - (self.others if others is None else others)
        return Shortage(tried, self.total, free, own, own - self.context)


def measure(config: EngineConfig, host: Host, others: int) -> Memory:
    """Return the claims of one engine on a host where other processes hold `others` bytes."""
    parallel = config.tensor_parallel
    total = int(host.gpu_total_gib * GIB)
    graphs = 0 if config.eager else int(host.graphs_gib * GIB * min(1.0, config.capture_size / _CAPTURE_FULL))
    estimate = graphs if host.graphs_estimate_gib is None or config.eager else int(host.graphs_estimate_gib * GIB)
    if config.v0:  # which sets nothing aside for them
        estimate = 0
    halved = 2 if config.kv_cache_dtype.startswith("fp8") else 1
    return Memory(
        total=total,
        others=others,
        context=int(host.context_gib * GIB),
        requested=math.ceil(total * config.utilization),
        weights=int(max(0.0, host.weights_gib / parallel - config.cpu_offload_gib) * GIB),
        non_torch=int(host.non_torch_gib * GIB),
        activation=int(host.activation_base_gib * GIB) + host.activation_bytes_per_token * config.batched_tokens,
        graphs=graphs,
        graphs_estimate=estimate,
        batch_buffers=config.max_num_seqs * (host.pooler_bytes_per_seq if config.pooling else _logits_bytes(host)),
        token_bytes=host.kv_bytes_per_token // parallel // halved,
        config=config,
    )


def _logits_bytes(host: Host) -> int:
    """Return what the sampler needs for one sequence: copies of its logits in float32."""
    return int(host.vocabulary * 4 * host.sampler_copies)
