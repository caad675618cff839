"""Failures of a real vLLM beyond its memory flags: a length that the model lacks, a pool that the environment sets."""

import re
from pathlib import Path

import pytest

from e2e.cpu_vllm import ENVIRON, FIXED_POOL, RECOVERY_LIMIT_S, START_LIMIT_S, completes, serve
from e2e.vllmd_process import free_port, running

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_vllm")]

POSITIONS = 8192  # of the tiny model (vllm_cpu/make_tiny_model.py)


def test_a_length_above_the_models_own_is_lowered_to_it(tmp_path: Path) -> None:
    """One failed launch, then the longest length that the model has: the number is vLLM's, the leave the operator's."""
    argv = serve("tiny", free_port(), "--max-model-len", "999999")
    settings = {"guard": {"max-model-len": {"min": 4096}}}
    with running(tmp_path, argv, settings, FIXED_POOL) as daemon:
        instance = daemon.wait_serving(2, RECOVERY_LIMIT_S)
        assert completes(instance["url"])

    assert instance["launches"] == {"first": 1, "crash": 1}
    assert instance["last_failure"]["class"] == "invalid-combination"
    assert instance["last_failure"]["exit_code"] == 1
    (decision,) = instance["decisions"]
    assert decision["action"] == "recover"
    assert [(c["flag"], c["from"], c["to"]) for c in decision["changes"]] == [
        ("max-model-len", "999999", str(POSITIONS))
    ]
    assert decision["verification"]["effect"] == "serving"
    # The way out that vLLM advises makes answers wrong beyond the model's positions: it is not passed on as advice.
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN" not in decision["message"]


def test_a_pool_that_the_environment_sets_too_large_is_held_with_the_size_that_fits(tmp_path: Path) -> None:
    """Flags are moved, the operator's environment is not: one launch, then the variable and a value, in words."""
    argv = serve("tiny", free_port(), "--max-model-len", "4096")
    with running(tmp_path, argv, environ={**ENVIRON, "VLLM_CPU_KVCACHE_SPACE": "10000"}) as daemon:
        held = daemon.wait(lambda i: i["state"] == "held", "held", START_LIMIT_S)
        assert not daemon.server_processes()

    assert held["launches"] == {"first": 1}
    assert held["pid"] is None
    assert held["last_failure"]["class"] == "utilization-too-high"
    free = re.search(r"\(([\d.]+)/[\d.]+ GiB\).* \(10000\.0 GiB\)", held["last_failure"]["evidence"]["text"])
    fitting = re.search(r"lower VLLM_CPU_KVCACHE_SPACE to (\d+) or less", held["message"])
    assert free is not None
    assert fitting is not None
    assert 1 <= int(fitting[1]) <= float(free[1])
    assert held["decisions"] == []
