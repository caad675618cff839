"""vllmd over the simulated server: one that hangs is found within its limit, started again, and none that is idle."""

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from e2e.vllmd_process import Instance, VllmdProcess, alive, free_port, running
from simulated import NAME, host, serve
from vllmd_shim.block import VARIABLE, Block, Word, opened

LIMIT_S = 30.0
STALL_S = 3.0
FOUND_WITHIN_S = STALL_S + 5.0
FOUND = "the server hangs and is ended"  # vllmd's log, when the evidence is kept
BEAT_S = 5.0  # the limit of a heartbeat whose steps are short
LOOKS_S = 4.0  # a look every second, a reading, the evidence
SETTINGS = {"engine": {"stall_timeout": f"{STALL_S:g}s", "scrape_interval": "250ms"}}


def engine_of(daemon: VllmdProcess) -> psutil.Process:
    """Return the engine's process."""
    return next(p for p in daemon.server_processes() if "EngineCore" in " ".join(p.cmdline()))


def worker_of(daemon: VllmdProcess) -> psutil.Process:
    """Return a worker's process."""
    return next(p for p in daemon.server_processes() if "Worker" in " ".join(p.cmdline()))


def ask(port: int, tokens: int) -> int | None:
    """Ask for an answer of so many tokens; return the status code, None where the connection broke."""
    body = {"model": NAME, "prompt": "x" * 400, "max_tokens": tokens, "ignore_eos": True}
    try:
        return httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=LIMIT_S).status_code
    except httpx.HTTPError:
        return None


@contextmanager
def load(port: int, requests: int = 4) -> Iterator[None]:
    """Keep so many long requests under way; they end with the server at the latest."""
    with ThreadPoolExecutor(requests) as pool:
        for _ in range(requests):
            pool.submit(ask, port, 20_000)
        yield


def running_requests(port: int) -> float:
    """Return how many requests run, by the server's own page."""
    page = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S).text
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith("vllm:num_requests_running"))


def until_running(port: int, requests: int) -> None:
    """Wait until the requests run."""
    deadline_s = time.monotonic() + LIMIT_S
    while running_requests(port) < requests:
        assert time.monotonic() < deadline_s, "the requests do not run"
        time.sleep(0.1)  # a metrics page sends no event


def until_found(daemon: VllmdProcess, number: int) -> float:
    """Wait until vllmd has found this hang, of those since it began; return how long it took, in seconds."""
    began_s = time.monotonic()
    while daemon.log().count(FOUND) < number:
        assert time.monotonic() - began_s < LIMIT_S, daemon.story("the hang is not found", daemon.status())
        time.sleep(0.05)  # a log sends no event
    return time.monotonic() - began_s


def evidence_of(instance: Instance, generation: int) -> str:
    """Return what was kept of a launch that hung."""
    path = Path(instance["log"]).with_name(f"evidence-{generation:04d}.txt")
    assert path.stat().st_mode & 0o777 == 0o600
    return path.read_text(encoding="utf-8")


def test_a_stopped_engine_under_load_is_found_and_replaced(tmp_path: Path) -> None:
    """SIGSTOP: every endpoint answers on; within the limit the server is ended, and another one serves."""
    port = free_port()
    with running(tmp_path, serve(port), SETTINGS, host()) as daemon:
        daemon.wait_serving(1, LIMIT_S)
        with load(port):
            until_running(port, 4)
            old, engine = daemon.server_processes(), engine_of(daemon)
            engine.send_signal(signal.SIGSTOP)
            began_s = time.monotonic()
            assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=LIMIT_S).status_code == 200
            daemon.wait(lambda i: i["last_failure"] is not None, "the hang is found", FOUND_WITHIN_S + LIMIT_S)
            assert time.monotonic() - began_s < FOUND_WITHIN_S
        instance = daemon.wait_serving(2, LIMIT_S)
        assert instance["last_failure"]["class"] == "hang"
        assert instance["last_failure"]["phase"] == "serving"
        assert "with 4 requests running" in instance["last_failure"]["summary"]
        assert not [p for p in old if alive(p)]
        assert ask(port, 4) == 200
        evidence = evidence_of(instance, 1)
        assert f"{engine.pid} " in evidence
        assert " T " in evidence  # stopped by a signal
        assert "Application startup complete" in evidence


def test_a_deadlock_is_found_and_a_second_one_tries_eager_mode(tmp_path: Path) -> None:
    """An engine that takes no step any more, twice: the same flags again, then eager mode, which serves."""
    port = free_port()
    world = host(fault="hang", fault_after_requests=2, fault_unless="enforce-eager")
    with running(tmp_path, serve(port), SETTINGS, world) as daemon:
        for generation in (1, 2):
            daemon.wait_serving(generation, LIMIT_S)
            with ThreadPoolExecutor(2) as pool:
                pool.submit(ask, port, 20_000)
                until_running(port, 1)
                pool.submit(ask, port, 20_000)
                instance = daemon.wait_serving(generation + 1, LIMIT_S)
            assert instance["last_failure"]["class"] == "hang"
        changed = {c["flag"]: c["to"] for c in instance["decisions"][-1]["changes"]}
        assert changed == {"enforce-eager": "on"}
        assert instance["decisions"][-2]["changes"] == []
        assert ask(port, 4) == 200


def strike(daemon: VllmdProcess, fault: str, port: int, pool: ThreadPoolExecutor) -> None:
    """Let the server hang in this way, under load."""
    pool.submit(ask, port, 20_000)
    until_running(port, 1)
    match fault:
        case "engine":
            engine_of(daemon).send_signal(signal.SIGSTOP)
        case "worker":
            worker_of(daemon).send_signal(signal.SIGSTOP)
        case "deadlock":
            pool.submit(ask, port, 20_000)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", ["engine", "worker", "deadlock"])
@pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_every_hang_under_load_is_found_in_time(tmp_path: Path, fault: str, times: int) -> None:
    """One fresh fault after the other, each within the limit and 5 s: all of them, and nothing that is none."""
    port = free_port()
    settings = {**SETTINGS, "budget": {"crash_breaker": "100 in 15m"}}
    world = host(fault="hang", fault_after_requests=2) if fault == "deadlock" else host()
    found_s: list[float] = []
    argv = serve(port, *(("--tensor-parallel-size", "2") if fault == "worker" else ()))
    with running(tmp_path, argv, settings, world) as daemon, ThreadPoolExecutor(2) as pool:
        for number in range(1, times + 1):
            daemon.wait_serving(2 * number - 1, LIMIT_S)
            strike(daemon, fault, port, pool)
            found_s.append(until_found(daemon, number))
            assert daemon.wait_serving(2 * number, LIMIT_S)["generation"] == 2 * number
            daemon.ask("restart")  # forgets the failures in a row, whose wait grows to minutes
    shown = " ".join(f"{seconds:.1f}" for seconds in found_s)
    print(f"{fault}: found after {shown} s, limit {STALL_S:g} s")  # noqa: T201 - these are what it measures
    assert max(found_s) < FOUND_WITHIN_S


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", ["engine", "worker"])
@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_heartbeat_shows_a_stopped_process_long_before_the_page_could(tmp_path: Path, fault: str, times: int) -> None:
    """With limits as by default: 5 s, a look and a reading, of 120; the message says which of the two it was."""
    port = free_port()
    settings = {"budget": {"crash_breaker": "100 in 15m"}}
    found_s: list[float] = []
    argv = serve(port, *(("--tensor-parallel-size", "2") if fault == "worker" else ()))
    with running(tmp_path, argv, settings, host()) as daemon, ThreadPoolExecutor(2) as pool:
        for number in range(1, times + 1):
            daemon.wait_serving(2 * number - 1, LIMIT_S)
            strike(daemon, fault, port, pool)
            found_s.append(until_found(daemon, number))
            instance = daemon.wait_serving(2 * number, LIMIT_S)
            assert "no heartbeat of its engine for" in instance["last_failure"]["summary"]
            daemon.ask("restart")  # forgets the failures in a row, whose wait grows to minutes
        assert "no heartbeat of its engine for" in evidence_of(instance, 2 * times - 1)
    shown = " ".join(f"{seconds:.1f}" for seconds in found_s)
    print(f"{fault}: found by its heartbeat after {shown} s, limit {BEAT_S:g} s")  # noqa: T201 - what it measures
    assert max(found_s) < BEAT_S + LOOKS_S


@pytest.mark.parametrize("shim", [False, True], ids=["without the shim", "with another engine's words"])
def test_without_its_heartbeat_a_hang_is_found_by_the_page(tmp_path: Path, *, shim: bool) -> None:
    """Where there is none, or it is of an engine that is not this server's: the operator's limit alone holds."""
    port = free_port()
    engine = {"stall_timeout": "9s", "scrape_interval": "250ms", "shim": shim}
    with running(tmp_path, serve(port), {"engine": engine}, host()) as daemon, ThreadPoolExecutor(2) as pool:
        pid = daemon.wait_serving(1, LIMIT_S)["pid"]
        if shim:
            block_of(pid).words[Word.ENGINE_PID] = os.getpid()
        strike(daemon, "engine", port, pool)
        assert until_found(daemon, 1) > 8
        assert "no token and no step for" in daemon.wait_serving(2, LIMIT_S)["last_failure"]["summary"]


def block_of(pid: int) -> Block:
    """Return the control block of a server, which its environment names."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    name = f"{VARIABLE}=".encode()
    return opened(next(os.fsdecode(word.removeprefix(name)) for word in words if word.startswith(name)))


@pytest.mark.slow
def test_a_hang_is_found_when_its_limit_has_passed_however_seldom_the_server_is_read(tmp_path: Path) -> None:
    """A reading every 5 s, as by default: once a hang is near it is looked for every second."""
    port = free_port()
    engine = {"stall_timeout": "12s", "scrape_interval": "5s", "shim": False}
    with running(tmp_path, serve(port), {"engine": engine}, host()) as daemon:
        daemon.wait_serving(1, LIMIT_S)
        with load(port):
            until_running(port, 4)
            engine_of(daemon).send_signal(signal.SIGSTOP)
            found_s = until_found(daemon, 1)
        instance = daemon.wait_serving(2, LIMIT_S)
    assert found_s < 12 + 5 + 2
    assert re.search(r"for 1[23] s with", instance["last_failure"]["summary"])


def test_an_api_server_that_stands_still_is_found_and_replaced(tmp_path: Path) -> None:
    """SIGSTOP of the main process: nothing is answered any more, and no CPU used. No request need be under way."""
    with running(tmp_path, serve(free_port()), SETTINGS, host()) as daemon:
        pid = daemon.wait_serving(1, LIMIT_S)["pid"]
        os.kill(pid, signal.SIGSTOP)
        # Two questions of 4 s each are not answered.
        assert until_found(daemon, 1) < FOUND_WITHIN_S + 8
        instance = daemon.wait_serving(2, LIMIT_S)
        assert instance["last_failure"]["class"] == "hang"
        assert "its main process stood still" in instance["last_failure"]["summary"]


def test_an_api_server_that_stands_still_before_it_was_seen_to_serve_is_found_too(tmp_path: Path) -> None:
    """It listens, which it does when its start is over: nobody waits for the rest of a start's time."""
    port = free_port()
    with running(tmp_path, serve(port), SETTINGS, host(start_s=1.0)) as daemon:
        pid = daemon.wait(lambda i: i["state"] == "starting" and i["pid"], "starting", LIMIT_S)["pid"]
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            deadline = time.monotonic() + LIMIT_S
            while not listens(port):
                assert time.monotonic() < deadline, "it does not listen"
                time.sleep(0.05)  # a listener sends no event
            os.kill(pid, signal.SIGSTOP)
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        assert until_found(daemon, 1) < FOUND_WITHIN_S + 4
        instance = daemon.wait_serving(2, LIMIT_S)
        assert instance["last_failure"]["class"] == "hang"
        assert "it listens, no answer for" in instance["last_failure"]["summary"]


def listens(port: int) -> bool:
    """Whether a server answers on a port, and so listens."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=LIMIT_S).status_code == 200
    except httpx.HTTPError:
        return False


def test_an_idle_server_is_no_hang(tmp_path: Path) -> None:
    """Three times the limit without a request, after one that was answered: nothing is done."""
    port = free_port()
    with running(tmp_path, serve(port), SETTINGS, host()) as daemon:
        daemon.wait_serving(1, LIMIT_S)
        assert ask(port, 4) == 200
        time.sleep(3 * STALL_S)  # that nothing happens sends no event
        instance = daemon.status()
        assert (instance["state"], instance["generation"]) == ("serving", 1)
        assert instance["last_failure"] is None
