"""The simulated old engine: when it runs, what fits, what it says."""

import re
from itertools import pairwise

import pytest

from vllmd_sim import v0
from vllmd_sim.config import resolve
from vllmd_sim.failures import STEPPING, EngineError
from vllmd_sim.host import GIB, Host
from vllmd_sim.lines import API_SERVER, Console
from vllmd_sim.memory import Memory, measure
from vllmd_sim.options import parse
from vllmd_sim.versions import runs_v0


@pytest.mark.parametrize(
    ("version", "use_v1", "old"),
    [
        ("0.6.6", None, True),
        ("0.7.3", None, True),
        ("0.7.3", "1", False),
        ("0.8.0", None, False),
        ("0.10.2", "0", True),
        ("0.10.2", None, False),
        ("0.11.0", "0", False),
        ("0.26.0", None, False),
    ],
)
def test_the_old_engine_runs_where_vllm_has_it(version: str, use_v1: str | None, *, old: bool) -> None:
    """By default before 0.8, on request up to 0.10, never afterwards."""
    assert runs_v0(version, use_v1) is old


def memory_of(*argv: str, version: str = "0.7.3") -> Memory:
    """Return the claims of a command line on an H100 with an 8B Llama."""
    host = Host(version=version)
    return measure(resolve(parse(argv), host), host, 0)


def test_the_old_engine_sets_no_memory_aside_for_graphs() -> None:
    """Its pool is larger by what the new one estimates."""
    old, new = memory_of(), memory_of(version="0.26.0")
    assert old.available - new.available == int(0.98 * GIB)
    assert old.graphs == new.graphs


@pytest.mark.parametrize(
    ("utilization", "words"),
    [
        ("0.2", "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing"),
        (
            "0.25",
            (
                "The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV "
                "cache (23424). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when"
            ),
        ),
    ],
)
def test_a_pool_that_is_too_small_is_refused_in_its_words(utilization: str, words: str) -> None:
    """With the numbers of the host; one utilization further it fits."""
    with pytest.raises(EngineError) as refusal:
        memory_of("--gpu-memory-utilization", utilization).plan_pool(32768)
    assert refusal.value.text.startswith(f"ValueError: {words}")
    assert memory_of("--gpu-memory-utilization", "0.27").plan_pool(32768).tokens >= 32768


def test_every_fiftieth_preemption_is_told() -> None:
    """The first one too, over steps; the number counts from 1."""
    names = [f"cmpl-{number}" for number in range(120)]
    cuts = (0, 1, 30, 60, 120)
    said = [text for low, high in pairwise(cuts) for text in v0.preemption_warnings(names[low:high], low)]
    assert [text.rpartition("=")[2] for text in said] == ["1", "51", "101"]
    assert said[1].startswith("Sequence group cmpl-50 is preempted by PreemptionMode.RECOMPUTE mode because there is")


def test_a_traceback_leads_through_the_old_engine() -> None:
    """Its own files, whatever the failure; the last words of a server whose engine did not start are generic."""
    stepping = v0.engine_traceback(EngineError("RuntimeError: x", *STEPPING), serving=True)
    starting = v0.engine_traceback(v0.cache_too_small(2, 1), serving=False)
    assert "vllm/v1/" not in stepping + starting
    assert "in run_engine_loop" not in starting
    assert "in engine_step" in stepping
    assert "in run_mp_engine" in starting
    assert "in raise_if_cache_size_invalid" in starting
    assert v0.start_traceback().endswith(
        "\nRuntimeError: Engine process failed to start. See stack trace for the root cause."
    )


@pytest.mark.parametrize(
    ("version", "pattern"),
    [
        ("0.7.3", r"INFO \d\d-\d\d [\d:]{8} a\.py:1\] x\n"),
        ("0.8.5", r"INFO \d\d-\d\d [\d:]{8} \[a\.py:1\] x\n"),
        ("0.10.0", r"\(APIServer pid=7\) INFO \d\d-\d\d [\d:]{8} \[a\.py:1\] x\n"),
    ],
)
def test_a_line_has_the_form_of_its_version(version: str, pattern: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets since 0.8, prefixes of API server and engine since 0.10."""
    Console(API_SERVER, version, 7).info("a.py:1", "x")
    assert re.fullmatch(pattern, capsys.readouterr().out)
