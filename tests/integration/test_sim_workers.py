"""The workers of tensor parallelism as real processes: who they are, and what their death and their silence bring."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from captures import diagnose_lines
from sim_process import LIMIT_S, LONG, Launch, Sim, launching
from vllmd.model.failure import FailureClass

TWO = ("--tensor-parallel-size", "2")
STILL_S = 0.5  # some eighty steps


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start simulated servers; afterwards nothing of their groups is left, stopped processes included."""
    with launching(tmp_path) as start:
        yield start


def tokens(sim: Sim) -> float:
    """Return how many tokens have come out so far."""
    return sim.metrics()["generation_tokens_total"]


def test_a_gpu_more_is_a_worker_more(launch: Launch) -> None:
    """Children of the engine with vLLM's titles, in the server's own group; with one GPU there are none."""
    assert not launch().serving().workers()
    sim = launch("--tensor-parallel-size", "4").serving()
    assert [worker.cmdline()[0] for worker in sim.workers()] == [f"VLLM::Worker_TP{rank}" for rank in range(4)]
    assert [worker.name() for worker in sim.workers()] == [f"VLLM::Worker_TP{rank}" for rank in range(4)]
    assert {os.getpgid(worker.pid) for worker in sim.workers()} == {sim.process.pid}
    first = sim.workers()[0].pid
    assert f"(Worker_TP0 pid={first}) INFO" in sim.text()
    assert sim.post("/v1/completions", prompt="x", max_tokens=3).status_code == 200


def test_an_older_version_names_no_process_and_its_workers_by_rank(launch: Launch) -> None:
    """Titles came with 0.10; the old engine is the first rank itself."""
    new = launch(*TWO, version="0.9.2").serving()
    assert "(VllmWorker rank=0 pid=" in new.text()
    assert "VLLM::" not in " ".join(word for process in (new.engine(), *new.workers()) for word in process.cmdline())
    assert len(new.workers()) == 2
    assert len(launch(*TWO, version="0.7.3").serving().workers()) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGSEGV, -11)])
def test_a_worker_that_is_killed_ends_the_server(launch: Launch, number: int, code: int) -> None:
    """In flight: the engine says who died, fails, and takes the rest along; the server ends with code 0."""
    sim = launch(*TWO).serving()
    engine, workers = sim.engine(), sim.workers()
    with httpx.stream("POST", f"{sim.url}/v1/completions", json=LONG, timeout=LIMIT_S) as response:
        lines = response.iter_lines()
        next(lines)
        workers[1].send_signal(number)
        assert "EngineCore encountered an issue" in [line for line in lines if line][-2]
    assert sim.ended() == 0
    text = sim.text()
    order = (
        f"Worker proc VllmWorker-1 died unexpectedly (exit code: {code}), shutting down executor.",
        "EngineCore encountered a fatal error.",
        "RuntimeError: cancelled",
        "AsyncLLM output_handler failed.",
        "EngineDeadError",
    )
    assert (places := [text.index(words) for words in order]) == sorted(places)
    assert not any(process.is_running() for process in (engine, *workers))
    failure = diagnose_lines(text.splitlines(), exit_code=0, stop_requested=False)
    assert failure.kind is FailureClass.INFRA_FAULT
    assert "worker VllmWorker-1 died" in failure.summary


def test_a_worker_that_is_asked_to_go_ends_an_idle_server(launch: Launch) -> None:
    """SIGTERM is an orderly end of the worker, and the end of the engine all the same; no request is needed for it."""
    sim = launch(*TWO).serving()
    sim.workers()[0].terminate()
    assert sim.ended() == 0
    assert "WARNING" in sim.text().split("WorkerProc was terminated")[0].splitlines()[-1]
    assert "Worker proc VllmWorker-0 died unexpectedly (exit code: 0)" in sim.text()
    assert "RuntimeError: Executor failed." in sim.text()


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("Starting to load model", "Exception: WorkerProc initialization failed due to an exception in a background"),
        ("Model loading took", "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor."),
    ],
)
def test_a_worker_that_is_killed_in_a_start_ends_it(launch: Launch, phase: str, words: str) -> None:
    """With code 1; it is named above the generic words once its weights are loaded, before it is not."""
    sim = launch(*TWO, start_s=20.0)
    sim.until(lambda: phase in sim.text(), "its phase")
    sim.workers()[0].kill()
    assert sim.ended() == 1
    assert words in sim.text()
    assert sim.text().rstrip().endswith("See root cause above. Failed core proc(s): {'EngineCore': 1}")
    failure = diagnose_lines(sim.text().splitlines(), exit_code=1, stop_requested=False)
    assert failure.kind is FailureClass.INFRA_FAULT


def test_a_worker_that_is_stopped_stops_every_token(launch: Launch) -> None:
    """/health stays 200 and the request stays where it is, until the worker goes on."""
    sim = launch(*TWO).serving()
    with httpx.stream("POST", f"{sim.url}/v1/completions", json=LONG, timeout=LIMIT_S) as response:
        lines = response.iter_lines()
        next(lines)
        sim.workers()[1].suspend()
        time.sleep(STILL_S)  # the step under way ends
        stood = tokens(sim)
        time.sleep(STILL_S)  # what does not happen sends no event
        assert (tokens(sim), sim.metrics()["num_requests_running"]) == (stood, 1)
        assert httpx.get(f"{sim.url}/health", timeout=LIMIT_S).status_code == 200
        sim.workers()[1].resume()
        sim.until(lambda: tokens(sim) > stood, "tokens move again")


def test_a_worker_that_stays_stopped_ends_the_server(launch: Launch) -> None:
    """After complaints and vLLM's patience the call times out; what cannot end by itself is killed."""
    sim = launch(*TWO, silence_s=0.5).serving()
    workers = sim.workers()
    workers[0].suspend()
    assert sim.post("/v1/completions", prompt="x", max_tokens=3).status_code == 500
    assert sim.ended() == 0
    assert sim.text().count("No available shared memory broadcast block found in 60 seconds.") == 4
    assert "TimeoutError: RPC call to execute_model timed out." in sim.text()
    assert psutil.wait_procs(workers, timeout=LIMIT_S)[1] == []
    failure = diagnose_lines(sim.text().splitlines(), exit_code=0, stop_requested=False)
    assert failure.kind is FailureClass.HANG


def test_workers_end_with_their_engine(launch: Launch) -> None:
    """Whether it is killed or told to stop; a server that was killed leaves engine and workers behind."""
    for end in (Sim.engine, lambda sim: sim.process):
        sim = launch(*TWO).serving()
        workers = sim.workers()
        with suppress(psutil.NoSuchProcess):
            end(sim).send_signal(signal.SIGKILL if end is Sim.engine else signal.SIGTERM)
        assert sim.ended() == 0
        assert psutil.wait_procs(workers, timeout=LIMIT_S)[1] == []
    left = launch(*TWO, orphan_s=1.0).serving()
    orphans = [left.engine(), *left.workers()]
    left.process.kill()
    left.ended()
    assert all(process.is_running() for process in orphans)
    assert psutil.wait_procs(orphans, timeout=LIMIT_S)[1] == []


def test_a_failure_of_a_worker_is_told_by_every_rank(launch: Launch) -> None:
    """Weights that do not fit: each rank's own traceback, then the engine's, then the server's; code 1."""
    sim = launch(*TWO, weights_gib=200)
    assert sim.ended() == 1
    for rank in (0, 1):
        own = [line for line in sim.text().splitlines() if line.startswith(f"(Worker_TP{rank} pid=")]
        assert any("WorkerProc failed to start." in line for line in own)
        assert any("Failed to load model - not enough GPU memory." in line for line in own)
    assert "WorkerProc initialization failed due to an exception in a background process." in sim.text()
    failure = diagnose_lines(sim.text().splitlines(), exit_code=1, stop_requested=False)
    assert failure.kind is FailureClass.WEIGHTS_DO_NOT_FIT
