"""A real vLLM whose token budget is changed while it serves, and one to which the shim comes broken."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cpu_vllm import FIXED_POOL, SERVED_NAME, START_LIMIT_S, completes, serve
from e2e.load import Clients, Observed, traffic
from e2e.vllmd_process import Instance, VllmdProcess, free_port, running

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_vllm")]

FLAG, LAUNCHED, LOW = "max-num-batched-tokens", 2048, 256
# Streams that wait for each step, beside long prompts that fill it.
MIX = (Clients(6, prompt_tokens=32, output_tokens=64), Clients(1, prompt_tokens=4000, output_tokens=1))
PAIRS = 3
GAPS = 300  # of each phase; its p99 is the third longest
SETTLING_S = 2.0  # steps under way, and prompts that were begun before
PHASE_LIMIT_S = 120.0
RATIO = 0.6


def serve_mid() -> list[str]:
    """Return the command for the model "mid". In float32: without AVX-512, bfloat16 takes more than twice as long."""
    sizes = ("--max-model-len", "8192", "--max-num-seqs", "64", f"--{FLAG}", str(LAUNCHED))
    return serve("mid", free_port(), "--dtype", "float32", *sizes)


def knob(instance: Instance, flag: str = FLAG) -> Instance:
    """Return what a status says of a flag."""
    (found,) = [knob for knob in instance["live"]["flags"] if knob["flag"] == flag]
    assert isinstance(found, dict)
    return found


def set_to(daemon: VllmdProcess, value: str, *options: str) -> Instance:
    """Set the budget as an operator does; return what is told, confirmed by a step of the engine's."""
    done = daemon.ask("set", f"{FLAG}={value}", *options, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert isinstance(told, dict)
    assert told["settled"] is True, told
    return told


def p99_s(observed: Observed) -> float:
    """Wait for enough gaps between tokens; return their p99."""
    time.sleep(SETTLING_S)  # steps of the value before are no evidence
    first, deadline = len(observed.gaps_s), time.monotonic() + PHASE_LIMIT_S
    while len(observed.gaps_s) < first + GAPS:
        assert time.monotonic() < deadline, f"{len(observed.gaps_s) - first} of {GAPS} gaps"
        time.sleep(0.2)  # the load is what is waited for
    gaps_s = sorted(observed.gaps_s[first : first + GAPS])
    return gaps_s[math.ceil(0.99 * len(gaps_s)) - 1]


@pytest.mark.timeout(900)
def test_the_budget_of_a_serving_vllm_moves_and_nobody_notices_but_by_shorter_gaps(
    tmp_path: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """2048 and 256 in turn: each confirmed by the engine, the same process, no failed request, shorter gaps."""
    with running(tmp_path, serve_mid(), {}, FIXED_POOL) as daemon:
        before = daemon.wait_serving(1, START_LIMIT_S)
        with traffic(before["url"], SERVED_NAME, MIX) as observed:
            pairs = []
            for _ in range(PAIRS):
                high = p99_s(observed)
                assert set_to(daemon, str(LOW))["in_force"] == LOW
                pairs.append((high, p99_s(observed)))
                assert set_to(daemon, "launched")["in_force"] == LAUNCHED
            assert set_to(daemon, str(LOW), "--for", "3s")["until"] is not None
            back = daemon.wait(lambda i: knob(i)["in_force"] == LAUNCHED and knob(i)["settled"], "its end", 30)
            assert observed.errors == []
            done = observed.completed
        refused = daemon.ask("set", f"{FLAG}={2 * LAUNCHED}")
        history = daemon.ask("history").stdout
    record_testsuite_property("p99_of_gaps_s", pairs)
    record_testsuite_property("requests", done)
    record_testsuite_property("heartbeat", back["live"]["heartbeat"])
    assert (back["pid"], back["generation"], back["launches"]) == (before["pid"], 1, {"first": 1})
    assert refused.returncode == 5
    assert str(LAUNCHED) in refused.stderr
    assert history.count(f"{FLAG} {LAUNCHED} -> {LOW}") == PAIRS + 1
    assert [pair for pair in pairs if pair[1] > RATIO * pair[0]] == [], pairs


def test_a_server_to_which_the_shim_comes_broken_starts_and_serves(tmp_path: Path) -> None:
    """The operator's own sitecustomize makes its import fail; the server is as without it, and that is told."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nsys.modules['vllmd_shim'] = None\n")
    variables = tmp_path / "engine.env"
    variables.write_text(f"PYTHONPATH={own}\n")
    variables.chmod(0o600)
    argv = serve("tiny", free_port(), "--max-model-len", "4096")
    with running(tmp_path / "run", argv, {"engine": {"env_file": str(variables)}}, FIXED_POOL) as daemon:
        instance = daemon.wait_serving(1, START_LIMIT_S)
        assert completes(instance["url"])
        assert "not loaded" in knob(daemon.status())["off"]
        refused = daemon.ask("set", f"{FLAG}=256")
        assert refused.returncode == 5
        assert "not loaded" in refused.stderr
    assert "Failed to load plugin vllmd_shim" in Path(instance["log"]).read_text(errors="replace")
