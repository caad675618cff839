"""Memory failures of a real vLLM: one failed launch, a flag computed from what it printed, then it serves."""

import re
from pathlib import Path

import pytest

from e2e.cpu_vllm import ENVIRON, RECOVERY_LIMIT_S, START_LIMIT_S, completes, serve
from e2e.vllmd_process import Instance, free_port, running

pytestmark = pytest.mark.usefixtures("real_vllm")

MEMINFO = (Path("/sys/devices/system/node/node0/meminfo"), Path("/proc/meminfo"))


def test_a_utilization_that_leaves_no_pool_is_raised(tmp_path: Path) -> None:
    """The log advises to free memory; what helps is a higher utilization, by the number that it prints."""
    # A quarter of a GiB, of which the worker needs twice as much for itself.
    too_low = round(2**28 / node_bytes("MemTotal"), 4)
    argv = serve("tiny", free_port(), "--max-model-len", "4096", "--gpu-memory-utilization", str(too_low))
    with running(tmp_path, argv, environ=ENVIRON) as daemon:
        instance = daemon.wait_serving(2, RECOVERY_LIMIT_S)
        assert completes(instance["url"])

    assert instance["last_failure"]["class"] == "utilization-too-low"
    (_, total_gib), (lacking_gib, asked_gib) = printed_gib(instance)
    least = (asked_gib - lacking_gib) / total_gib
    assert least <= computed(instance, "gpu-memory-utilization") <= least + 0.3


@pytest.mark.slow
def test_a_utilization_above_the_free_memory_is_lowered(tmp_path: Path) -> None:
    """The same option, the opposite failure, the opposite remedy: no more than what is free."""
    argv = serve("tiny", free_port(), "--max-model-len", "4096", "--gpu-memory-utilization", "0.99")
    # Held until the failure is there, so that what was free then leaves this machine room to breathe afterwards.
    ballast = b"\1" * (node_bytes("MemFree") // 5)
    with running(tmp_path, argv, environ=ENVIRON) as daemon:
        daemon.wait(lambda i: i.get("last_failure"), "a failure", START_LIMIT_S)
        del ballast
        instance = daemon.wait_serving(2, RECOVERY_LIMIT_S)
        assert completes(instance["url"])

    # The ballast is another process's memory: with what this machine itself holds, it may be what counts as taken.
    assert instance["last_failure"]["class"] in {"utilization-too-high", "gpu-memory-taken-by-others"}
    free_gib, total_gib = printed_gib(instance)[0]
    assert 0.5 * free_gib / total_gib <= computed(instance, "gpu-memory-utilization") <= free_gib / total_gib


def test_a_length_that_does_not_fit_is_shortened_where_the_operator_allows_it(tmp_path: Path) -> None:
    """The pool's size is the operator's, so the length gives way, to the one that vLLM says fits."""
    argv = serve("tiny", free_port(), "--max-model-len", "8192", "--kv-cache-memory-bytes", "1000000")
    settings = {"guard": {"max-model-len": {"min": 1024}}}
    with running(tmp_path, argv, settings, ENVIRON) as daemon:
        instance = daemon.wait_serving(2, RECOVERY_LIMIT_S)
        assert completes(instance["url"])

    assert instance["last_failure"]["class"] == "max-model-len-too-long"
    assert computed(instance, "max-model-len") == 1792


def node_bytes(name: str) -> int:
    """Return a line of the memory of the node that vLLM's worker runs on, read where vLLM reads it."""
    meminfo = next(file for file in MEMINFO if file.exists())
    found = re.search(rf"{name}:\s+(\d+) kB", meminfo.read_text(encoding="utf-8"))
    assert found is not None
    return int(found[1]) * 1024


def printed_gib(instance: Instance) -> list[tuple[float, float]]:
    """Return the pairs of sizes in the line of the log that decided."""
    text = instance["last_failure"]["evidence"]["text"]
    return [(float(a), float(b)) for a, b in re.findall(r"\((-?[\d.]+)/([\d.]+) GiB\)", text)]


def computed(instance: Instance, flag: str) -> float:
    """Return the value that the only decision gave to a flag, after the only failed launch."""
    assert instance["launches"] == {"first": 1, "crash": 1}
    (decision,) = instance["decisions"]
    assert decision["action"] == "recover"
    assert decision["verification"]["effect"] == "serving"
    (change,) = decision["changes"]
    assert change["flag"] == flag
    assert f"--{flag}" in instance["argv"] or any(word.startswith(f"--{flag}=") for word in instance["argv"])
    return float(change["to"])
