"""The effective configuration: vLLM's defaults filled in and its combinations checked, before any engine starts."""

import argparse
from dataclasses import dataclass

from vllmd_sim import refusals
from vllmd_sim.host import Host
from vllmd_sim.versions import runs_v0

_LARGE_GPU_GIB = 70  # from here on vLLM's defaults are larger (get_batch_defaults in engine/arg_utils.py)
_DEFAULTS_LARGE = (8192, 1024)  # batched tokens, sequences
_DEFAULTS_SMALL = (2048, 256)
_CAPTURE_LIMIT = 512  # the largest captured batch unless the operator says otherwise


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine runs with. `max_model_len` is -1 until the pool is known when the operator asked for `auto`."""

    model: str
    served_name: str
    max_model_len: int
    batched_tokens: int
    max_num_seqs: int
    utilization: float
    kv_cache_bytes: int | None
    kv_cache_dtype: str
    block_size: int
    tensor_parallel: int
    eager: bool
    capture_size: int
    chunked: bool
    prefix_caching: bool
    long_prefill_threshold: int
    watermark: float
    scheduled_tokens: int
    active_seqs: int
    dtype: str
    pooling: bool
    kv_offload_gib: float
    cpu_offload_gib: float
    shutdown_timeout_s: int
    v0: bool  # the old engine runs


def resolve(args: argparse.Namespace, host: Host, use_v1: str | None = None) -> EngineConfig:
    """Return the effective configuration; raises failures.ConfigError with vLLM's own words.

    `use_v1` is the environment's VLLM_USE_V1, None if unset.
    """
    _check_device(args, host)
    length = _model_len(args.max_model_len, host)
    batched, seqs = _batch_limits(args, host, length)
    _check_limits(args, seqs, host.max_position if length < 0 else length)
    capture = args.max_cudagraph_capture_size
    model = args.model_tag or args.model
    return EngineConfig(
        model=model,
        served_name=(args.served_model_name or [model])[0],
        max_model_len=length,
        batched_tokens=batched,
        max_num_seqs=seqs,
        utilization=args.gpu_memory_utilization,
        kv_cache_bytes=args.kv_cache_memory_bytes,
        kv_cache_dtype=args.kv_cache_dtype,
        block_size=args.block_size,
        tensor_parallel=args.tensor_parallel_size,
        eager=args.enforce_eager or args.optimization_level == 0,
        capture_size=min(seqs * 2, _CAPTURE_LIMIT) if capture is None else capture,
        chunked=args.enable_chunked_prefill,
        prefix_caching=args.enable_prefix_caching,
        long_prefill_threshold=args.long_prefill_token_threshold,
        watermark=args.watermark,
        scheduled_tokens=min(args.max_num_scheduled_tokens or batched, batched),
        active_seqs=args.max_num_active_seqs or seqs,
        dtype=args.dtype,
        pooling=args.runner == "pooling",
        kv_offload_gib=args.kv_offloading_size or 0.0,
        cpu_offload_gib=args.cpu_offload_gb,
        shutdown_timeout_s=args.shutdown_timeout,
        v0=runs_v0(host.version, use_v1),
    )


def _check_device(args: argparse.Namespace, host: Host) -> None:
    """Refuse what these GPUs cannot be asked for, in vLLM's order: a device, its share, enough of them, equal parts."""
    ranks = args.tensor_parallel_size
    if host.gpu_count == 0:
        raise refusals.no_device()
    if not 0 < args.gpu_memory_utilization <= 1:
        raise refusals.utilization_out_of_range(args.gpu_memory_utilization)
    if ranks > host.gpu_count:
        raise refusals.too_few_devices(ranks, host.gpu_count)
    if host.attention_heads % ranks:
        raise refusals.heads_indivisible(host.attention_heads, ranks)


def _check_limits(args: argparse.Namespace, seqs: int, length: int) -> None:
    """Refuse limits above the ones that they are parts of."""
    if args.max_num_active_seqs is not None and args.max_num_active_seqs > seqs:
        raise refusals.active_above_seqs(args.max_num_active_seqs, seqs)
    if args.long_prefill_token_threshold > length:
        raise refusals.threshold_above_length(args.long_prefill_token_threshold, length)


def _model_len(asked: int | None, host: Host) -> int:
    """Return the context length: the model's own by default, -1 for `auto`."""
    if asked is not None and asked > host.max_position:
        raise refusals.model_len_too_long(asked, host.max_position)
    return host.max_position if asked is None else asked


def _batch_limits(args: argparse.Namespace, host: Host, length: int) -> tuple[int, int]:
    """Return batched tokens and sequences by vLLM's rules.

    What is unset comes from the size of the GPU (an A100 counts as small); without chunked prefill a whole prompt must
    fit; defaults are capped by each other, explicit values only checked against each other.
    """
    large = host.gpu_total_gib >= _LARGE_GPU_GIB and "a100" not in host.gpu.lower()
    default_batched, default_seqs = _DEFAULTS_LARGE if large else _DEFAULTS_SMALL
    length = host.max_position if length < 0 else length
    seqs: int = args.max_num_seqs or default_seqs
    batched: int | None = args.max_num_batched_tokens
    if batched is None:
        wanted = default_batched if args.enable_chunked_prefill else max(default_batched, length)
        batched = min(wanted, seqs * length)
    if args.max_num_seqs is None:
        seqs = min(seqs, batched)
    if not args.enable_chunked_prefill and batched < length:
        raise refusals.batched_below_length(batched, length)
    if batched < seqs:
        raise refusals.batched_below_seqs(batched, seqs)
    return batched, seqs
