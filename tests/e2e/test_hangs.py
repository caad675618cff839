"""Hangs of a real vLLM: its engine stopped by a signal, under load and while idle; found, told, and serving again."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from e2e.cpu_vllm import FIXED_POOL, SERVED_NAME, START_LIMIT_S, completes, serve
from e2e.load import Clients, traffic
from e2e.vllmd_process import Instance, VllmdProcess, alive, free_port, running

pytestmark = [pytest.mark.usefixtures("real_vllm"), pytest.mark.slow]

# Longer than any honest silence of the tiny model on two busy cores.
STALL_S = 15.0
CANARY_S = 5.0
FOUND_WITHIN_S = STALL_S + 5.0
SETTINGS = {"engine": {"stall_timeout": f"{STALL_S:g}s", "canary": f"{CANARY_S:g}s"}}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmdProcess]:
    """Return a daemon whose server serves, and whose hangs are taken for what they are."""
    argv = serve("tiny", free_port(), "--max-model-len", "4096")
    with running(tmp_path_factory.mktemp("hangs"), argv, SETTINGS, FIXED_POOL) as daemon:
        daemon.wait_serving(1, START_LIMIT_S)
        yield daemon


def test_a_stopped_engine_under_load_is_found_and_replaced(daemon: VllmdProcess) -> None:
    """Within the limit and 5 s; what it did is kept, nothing of it lives, and the next server answers."""
    before = daemon.wait_serving(1, START_LIMIT_S)
    old = daemon.server_processes()
    with traffic(before["url"], SERVED_NAME, [Clients(4, 200, 400)]) as seen:
        daemon.wait(lambda _: len(seen.gaps_s) > 20, "tokens come", START_LIMIT_S)
        engine, found_s = stop_engine(daemon, old)
        after = daemon.wait_serving(before["generation"] + 1, START_LIMIT_S)
    replaced(after, engine, found_s, old)
    assert "no token and no step for" in after["last_failure"]["summary"]


def test_an_engine_that_was_stopped_while_idle_is_found_by_a_canary(daemon: VllmdProcess) -> None:
    """It takes the time until a canary is due, the limit and 5 s, without a request of anybody."""
    before = daemon.wait_serving(1, START_LIMIT_S)
    old = daemon.server_processes()
    engine, found_s = stop_engine(daemon, old, canary_s=CANARY_S)
    replaced(daemon.wait_serving(before["generation"] + 1, START_LIMIT_S), engine, found_s, old)
    page = httpx.get(daemon.metrics_url, timeout=30).text
    assert 'vllmd_canary_total{name="default",result="silent"} 1.0' in page


def stop_engine(
    daemon: VllmdProcess, old: frozenset[psutil.Process], canary_s: float = 0.0
) -> tuple[psutil.Process, float]:
    """Stop the engine; return it, and after how many seconds that was found."""
    engine = next(process for process in old if process.cmdline()[0].startswith("VLLM::EngineCore"))
    hangs = daemon.log().count("the server hangs and is ended")
    engine.send_signal(signal.SIGSTOP)
    began_s = time.monotonic()
    while daemon.log().count("the server hangs and is ended") == hangs:
        waited_s = time.monotonic() - began_s
        assert waited_s < FOUND_WITHIN_S + canary_s, daemon.story("the hang is not found", daemon.status())
        time.sleep(0.05)  # a log sends no event
    return engine, time.monotonic() - began_s


def replaced(after: Instance, engine: psutil.Process, found_s: float, old: frozenset[psutil.Process]) -> None:
    """Assert that a hang was told, its evidence kept, and that the next server serves alone with the same flags."""
    print(f"found after {found_s:.1f} s, limit {STALL_S:g} s")  # noqa: T201 - this is what it measures
    assert (after["last_failure"]["class"], after["last_failure"]["phase"]) == ("hang", "serving")
    path = Path(after["log"]).with_name(f"evidence-{after['generation'] - 1:04d}.txt")
    assert f"  {engine.pid} VLLM::EngineCor T " in path.read_text(encoding="utf-8")
    assert not [process for process in old if alive(process)]
    assert completes(after["url"])
