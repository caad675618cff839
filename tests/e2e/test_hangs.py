"""Hangs of a real vLLM: a worker, or its engine, stopped by a signal, under load and idle; found, told, replaced."""

import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from e2e.cpu_vllm import FIXED_POOL, SERVED_NAME, START_LIMIT_S, completes, serve
from e2e.load import Clients, traffic
from e2e.vllmd_process import Instance, VllmdProcess, alive, free_port, running

pytestmark = [pytest.mark.usefixtures("real_vllm"), pytest.mark.slow]

# Longer than five of the tiny model's longest steps on two busy cores (its first ones, 2.3 to 3.2 s; of two ranks up to
# 9 s): by its heartbeat a hang is found earlier.
STALL_S = 40.0
TWO_RANKS_STALL_S = 120.0
BEAT_S = 5.0
CANARY_S = 5.0
LATE_S = 5.0
# Two ranks of one thread each, bound to no core: vLLM binds them only where each has a NUMA node.
TWO_RANKS = {**FIXED_POOL, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
TWO_RANKS_START_LIMIT_S = 200.0  # 76-120 s on two busy cores
TITLE_CHARS = 15  # of a process, by the kernel (TASK_COMM_LEN without its end)


def settings(stall_s: float) -> dict[str, dict[str, str]]:
    """Return the configuration with this limit of a hang, in seconds, and a canary in idle times."""
    return {"engine": {"stall_timeout": f"{stall_s:g}s", "canary": f"{CANARY_S:g}s"}}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmdProcess]:
    """Return a daemon whose server serves, and whose hangs are taken for what they are."""
    argv = serve("tiny", free_port(), "--max-model-len", "4096")
    with running(tmp_path_factory.mktemp("hangs"), argv, settings(STALL_S), FIXED_POOL) as daemon:
        daemon.wait_serving(1, START_LIMIT_S)
        yield daemon


@dataclass(frozen=True, slots=True)
class Found:
    """A hang that was found: which process was stopped, and after how many seconds vllmd said so."""

    pid: int
    title: str
    after_s: float


def test_a_stopped_worker_of_two_under_load_is_found_and_replaced(tmp_path: Path) -> None:
    """The rank that returns no output: engine and other rank wait for it, and it alone is told as stopped."""
    argv = serve("tiny", free_port(), "--max-model-len", "4096", "--tensor-parallel-size", "2")
    with running(tmp_path, argv, settings(TWO_RANKS_STALL_S), TWO_RANKS) as daemon:
        before = daemon.wait_serving(1, TWO_RANKS_START_LIMIT_S)
        stopped_under_load(daemon, before, "VLLM::Worker_TP1", TWO_RANKS_STALL_S, TWO_RANKS_START_LIMIT_S)


def test_a_stopped_engine_under_load_is_found_and_replaced(daemon: VllmdProcess) -> None:
    """By its heartbeat; what it did is kept, nothing of it lives, and the next server answers."""
    stopped_under_load(daemon, daemon.wait_serving(1, START_LIMIT_S), "VLLM::EngineCore", STALL_S, START_LIMIT_S)


def test_an_engine_that_was_stopped_while_idle_is_found_by_a_canary(daemon: VllmdProcess) -> None:
    """It takes the time until a canary is due, the limit and 5 s, without a request of anybody."""
    before = daemon.wait_serving(1, START_LIMIT_S)
    old = daemon.server_processes()
    found = stop(daemon, old, "VLLM::EngineCore", CANARY_S + STALL_S)
    in_time(found, CANARY_S + STALL_S)
    replaced(before, daemon.wait_serving(before["generation"] + 1, START_LIMIT_S), found, old)
    page = httpx.get(daemon.metrics_url, timeout=30).text
    assert 'vllmd_canary_total{name="default",result="silent"} 1.0' in page


def stopped_under_load(
    daemon: VllmdProcess, before: Instance, title: str, stall_s: float, start_limit_s: float
) -> None:
    """Stop a process while tokens come, and assert that the hang is found and the server replaced."""
    old = daemon.server_processes()
    # Of two lengths, so that there is never a moment at which all have ended together and nothing runs.
    with traffic(before["url"], SERVED_NAME, [Clients(2, 200, 400), Clients(2, 200, 3000)]) as seen:
        daemon.wait(lambda _: len(seen.gaps_s) > 20, "tokens come", start_limit_s)
        found = stop(daemon, old, title, stall_s)
        after = daemon.wait_serving(before["generation"] + 1, start_limit_s)
    replaced(before, after, found, old)
    # By the longest step until the stop, which none but the hang's own words tell: one more may end at any time before.
    told = re.search(
        r"no heartbeat of its engine for .* its longest step took ([\d.]+) s", after["last_failure"]["summary"]
    )
    assert told, after["last_failure"]
    in_time(found, min(stall_s, max(BEAT_S, 5 * float(told[1]))))


def stop(daemon: VllmdProcess, old: frozenset[psutil.Process], title: str, limit_s: float) -> Found:
    """Stop the process with this title, and wait until that is found: within this limit and 5 s."""
    process = next(process for process in old if process.cmdline()[0] == title)
    hangs = daemon.log().count("the server hangs and is ended")
    process.send_signal(signal.SIGSTOP)
    began_s = time.monotonic()
    while daemon.log().count("the server hangs and is ended") == hangs:
        waited_s = time.monotonic() - began_s
        assert waited_s < limit_s + LATE_S, daemon.story("the hang is not found", daemon.status())
        time.sleep(0.05)  # a log sends no event
    return Found(process.pid, title, time.monotonic() - began_s)


def in_time(found: Found, limit_s: float) -> None:
    """Assert that a hang was found within this limit and 5 s, and print how long it took."""
    print(f"{found.title} found after {found.after_s:.1f} s, limit {limit_s:.1f} s")  # noqa: T201 - what it measures
    assert found.after_s < limit_s + LATE_S, found


def replaced(before: Instance, after: Instance, found: Found, old: frozenset[psutil.Process]) -> None:
    """Assert that a hang was told, its evidence kept, and that the next server serves alone with the same flags."""
    assert (after["last_failure"]["class"], after["last_failure"]["phase"]) == ("hang", "serving")
    path = Path(after["log"]).with_name(f"evidence-{before['generation']:04d}.txt")
    stopped = re.findall(r"^  (\d+) (\S+) T .* (\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert stopped == [(str(found.pid), found.title[:TITLE_CHARS], found.title.removeprefix("VLLM::"))]
    assert (after["generation"], after["argv"]) == (before["generation"] + 1, before["argv"])
    assert not [process for process in old if alive(process)]
    assert completes(after["url"])
