"""The host's own memory: what is kept in it and in /dev/shm, and how too little of either ends an engine. Pure."""

from vllmd_sim import failures
from vllmd_sim.config import EngineConfig
from vllmd_sim.host import GIB, Host
from vllmd_sim.versions import at_least

# Shared memory of the queue to the workers: ten chunks of 16 MiB (VLLM_MQ_MAX_CHUNK_BYTES_MB in envs.py).
_QUEUE_MIB = 160
_SAYS_SHM_SINCE = (0, 30)  # before, the first write beyond what is there is a SIGBUS
_SIGBUS, _SIGKILL = -7, -9


def check_queue(config: EngineConfig, host: Host) -> None:
    """Fail when /dev/shm does not hold the queue to the workers, which there is with tensor parallelism only."""
    if config.tensor_parallel == 1 or host.shm_mib >= _QUEUE_MIB:
        return
    if not at_least(host.version, _SAYS_SHM_SINCE):
        raise failures.ProcessEndError(_SIGBUS)
    raise failures.shm_too_small(_QUEUE_MIB, host.shm_mib)


def check_offload(config: EngineConfig, host: Host) -> None:
    """Fail when the weights that are kept in the host's memory do not fit there."""
    _claim(config.cpu_offload_gib * config.tensor_parallel, config, host)


def check_tier(config: EngineConfig, host: Host) -> None:
    """Fail when the host's part of the KV cache does not fit beside the weights that are kept there."""
    _claim(config.cpu_offload_gib * config.tensor_parallel + config.kv_offload_gib, config, host)


def _claim(size_gib: float, config: EngineConfig, host: Host) -> None:
    """Refuse more than the machine has with an error; the kernel kills what outgrows the limit of its group."""
    if size_gib > host.host_memory_gib:
        raise failures.host_memory_refused(int(size_gib * GIB / config.tensor_parallel))
    if host.host_limit_gib is not None and size_gib > host.host_limit_gib:
        raise failures.ProcessEndError(_SIGKILL)
