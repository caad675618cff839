"""The simulated host's own memory: tiers, offloaded weights, and /dev/shm."""

from dataclasses import replace

import pytest

from vllmd_sim import host_memory
from vllmd_sim.config import EngineConfig, resolve
from vllmd_sim.failures import EngineError, ProcessEndError
from vllmd_sim.host import Host
from vllmd_sim.options import parse

HOST = Host(host_memory_gib=128.0)


def config_of(*argv: str) -> EngineConfig:
    """Return the configuration of a command line."""
    return resolve(parse(argv), HOST)


def test_a_tier_beyond_the_machine_is_refused() -> None:
    """200 GiB over two ranks: torch names the 100 GiB that one rank asked for; half of it fits."""
    with pytest.raises(
        EngineError, match=r"DefaultCPUAllocator: can't allocate memory: .* allocate 107374182400 bytes"
    ):
        host_memory.check_tier(config_of("--kv-offloading-size", "200", "-tp", "2"), HOST)
    host_memory.check_tier(config_of("--kv-offloading-size", "100", "-tp", "2"), HOST)


def test_what_outgrows_its_group_is_killed_without_a_word() -> None:
    """A container's limit below the machine's memory: SIGKILL, no text; up to the limit it lives."""
    limited = replace(HOST, host_limit_gib=64.0)
    with pytest.raises(ProcessEndError) as end:
        host_memory.check_tier(config_of("--kv-offloading-size", "65"), limited)
    assert end.value.code == -9
    host_memory.check_tier(config_of("--kv-offloading-size", "64"), limited)


def test_offloaded_weights_count_for_each_gpu_and_beside_the_tier() -> None:
    """40 GiB on each of two GPUs are 80; a tier of 48 beside them fits the 128 of the machine, one of 49 does not."""
    argv = ("--cpu-offload-gb", "40", "-tp", "2", "--kv-offloading-size")
    host_memory.check_offload(config_of(*argv, "49"), HOST)
    host_memory.check_tier(config_of(*argv, "48"), HOST)
    with pytest.raises(EngineError, match="DefaultCPUAllocator"):
        host_memory.check_tier(config_of(*argv, "49"), HOST)
    with pytest.raises(EngineError, match="DefaultCPUAllocator"):
        host_memory.check_offload(config_of("--cpu-offload-gb", "65", "-tp", "2"), HOST)


@pytest.mark.parametrize(
    ("version", "error", "words"),
    [
        ("0.33.0", EngineError, r"Insufficient space in /dev/shm for .*: 160\.0 MiB required, 64\.0 MiB free"),
        ("0.26.0", ProcessEndError, "-7"),
    ],
)
def test_a_small_shm_fails_where_there_are_workers(version: str, error: type[Exception], words: str) -> None:
    """Docker's 64 MiB are too few for the queue to the workers: a SIGBUS, in later versions words; one GPU has none."""
    host = replace(HOST, shm_mib=64.0, version=version)
    host_memory.check_queue(config_of(), host)
    with pytest.raises(error, match=words):
        host_memory.check_queue(config_of("-tp", "2"), host)
    host_memory.check_queue(config_of("-tp", "2"), replace(host, shm_mib=160.0))
