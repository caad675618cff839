"""A restart whose next server is prepared beside the serving one: nothing is lost, whatever becomes of it."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.vllmd_process import Instance, VllmdProcess, free_port, running
from own_network import own_network
from simulated import NAME, host, serve
from steady_load import Outcomes, steady
from vllmd.act.launcher import CANDIDATE_NAME, RECORD_NAME

LIMIT_S = 60.0
# The keep-alive time is waited for, so that no connection is reused while its server stops.
KEEP_ALIVE = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "3"}
SETTINGS = {"engine": {"drain_timeout": "10s", "hold_timeout": "30s"}}
SLOW = {**host(start_s=30), **KEEP_ALIVE}  # its gate is at 43 % of it


@contextmanager
def loaded(folder: Path, environ: dict[str, str], **engine: Any) -> Iterator[tuple[VllmdProcess, Outcomes]]:
    """Run vllmd over a simulated server under a steady load, which must lose no request."""
    chosen = {"engine": {**SETTINGS["engine"], **engine}}
    with own_network(), running(folder, serve(free_port()), chosen, environ) as daemon:
        url = daemon.wait_serving(1, LIMIT_S)["url"]
        with steady(url, NAME, rate=20) as seen:
            yield daemon, seen
        assert seen.errors == []


def prepared(daemon: VllmdProcess) -> Instance:
    """Order a restart; return the status while the next server is prepared. Skips where the host is too busy."""
    assert daemon.ask("restart").returncode == 0
    told = daemon.wait(lambda i: "prepared beside" in i["message"], "the next server is prepared, or not", LIMIT_S)
    if "the processors are busy" in told["message"]:
        pytest.skip(told["message"])
    assert told["state"] == "serving", told["message"]
    return told


def on_record(folder: Path, name: str) -> dict[str, Any] | None:
    """Return what vllmd has on record of the server, or of what is beside it; None for nothing."""
    file = folder / "state" / "default" / name
    return json.loads(file.read_text()) if file.exists() else None


def goes_on(daemon: VllmdProcess, seen: Outcomes, requests: int = 40) -> None:
    """Wait until so many more requests are over."""
    least = seen.ended + requests
    daemon.wait(lambda _: seen.ended >= least, "the load goes on", LIMIT_S)


def test_two_gated_restarts_lose_no_request(tmp_path: Path) -> None:
    """The server serves while the next one starts, and is away for the rest of that start alone."""
    with loaded(tmp_path, {**host(start_s=3), **KEEP_ALIVE}) as (daemon, seen):
        for generation in (2, 3):
            assert prepared(daemon)["generation"] == generation - 1
            daemon.wait_serving(generation, LIMIT_S)
            goes_on(daemon, seen)
        assert daemon.log().count("the next server waits at its gate") == 2
        assert on_record(tmp_path, CANDIDATE_NAME) is None
        told = daemon.wait_serving(3, LIMIT_S)["decisions"][-1]["outcome"]["restart"]
        assert (told["kind"], told["requests_cut"], told["requests_refused"]) == ("gated", 0, 0)


def test_the_workers_of_tensor_parallelism_all_wait(tmp_path: Path) -> None:
    """Two ranks, two words: the server makes room when both are there."""
    argv = [*serve(free_port()), "--tensor-parallel-size", "2"]
    environ = {**host(start_s=2), **KEEP_ALIVE}
    with own_network(), running(tmp_path, argv, SETTINGS, environ) as daemon:
        daemon.wait_serving(1, LIMIT_S)
        prepared(daemon)
        daemon.wait_serving(2, LIMIT_S)
        assert "waits at its gate" in daemon.log()


def test_one_that_fails_before_its_gate_leaves_the_server_serving(tmp_path: Path) -> None:
    """The model is gone: what was to come ends, is diagnosed, and the server never stopped."""
    model = tmp_path / "model"
    model.mkdir()
    argv = serve(free_port(), "--served-model-name", NAME, model=str(model))
    environ = {**host(start_s=2), **KEEP_ALIVE}
    with own_network(), running(tmp_path / "run", argv, SETTINGS, environ) as daemon:
        before = daemon.wait_serving(1, LIMIT_S)
        with steady(before["url"], NAME, rate=20) as seen:
            model.rmdir()
            assert daemon.ask("restart").returncode == 0
            after = daemon.wait(lambda i: "failed beside it" in i["message"], "the failure", LIMIT_S)
            goes_on(daemon, seen)
        assert seen.errors == []
        assert (after["state"], after["pid"]) == ("serving", before["pid"])
        assert "event=failure" in daemon.log()
        assert "kind=model-" in daemon.log()


def test_one_that_is_not_at_its_gate_in_time_is_started_afterwards(tmp_path: Path) -> None:
    """Past park_timeout it is ended, the server drained, and the next one started while connections wait."""
    with loaded(tmp_path, {**host(start_s=5), **KEEP_ALIVE}, park_timeout="1s") as (daemon, _):
        prepared(daemon)
        daemon.wait_serving(3, LIMIT_S)
        assert "within engine.park_timeout" in daemon.log()
        assert "the port is no longer parked" in daemon.log()


def test_a_stop_ends_what_is_prepared_too(tmp_path: Path) -> None:
    """SIGTERM: nothing is left of either."""
    with own_network(), running(tmp_path, serve(free_port()), SETTINGS, SLOW) as daemon:
        daemon.wait_serving(1, LIMIT_S)
        prepared(daemon)
        daemon.stop()
        assert on_record(tmp_path, CANDIDATE_NAME) is None


def test_the_next_vllmd_ends_what_was_prepared_and_takes_the_server_over(tmp_path: Path) -> None:
    """SIGKILL of vllmd while the next server is prepared: the serving one is adopted, the other one ended."""
    argv = serve(free_port())
    with own_network(), running(tmp_path, argv, SETTINGS, SLOW) as first:
        server = first.wait_serving(1, LIMIT_S)
        prepared(first)
        first.wait(lambda _: on_record(tmp_path, CANDIDATE_NAME), "its record", LIMIT_S)
        taken_over(tmp_path, argv, first, server)


def test_the_next_vllmd_takes_over_one_whose_place_was_to_be_taken(tmp_path: Path) -> None:
    """SIGKILL of vllmd when one waits at its gate, and the server is drained: it serves on as before."""
    argv = serve(free_port())
    environ = {**host(start_s=3), **KEEP_ALIVE}
    body = {"model": NAME, "prompt": "one", "max_tokens": 20_000, "ignore_eos": True, "stream": True}
    with own_network(), running(tmp_path, argv, SETTINGS, environ) as first:
        server = first.wait_serving(1, LIMIT_S)
        with httpx.stream("POST", f"{server['url']}/v1/completions", json=body, timeout=LIMIT_S):
            prepared(first)
            first.wait(lambda i: i["state"] == "draining", "the gate", LIMIT_S)
            taken_over(tmp_path, argv, first, server)


def taken_over(folder: Path, argv: list[str], first: VllmdProcess, server: Instance) -> None:
    """Kill a vllmd under load, and see the next one take its server over and end what was beside it."""
    candidate = on_record(folder, CANDIDATE_NAME)
    assert candidate is not None
    with steady(server["url"], NAME, rate=20) as seen:
        first.process.kill()
        first.process.wait(LIMIT_S)
        with running(folder, argv, SETTINGS, SLOW) as second:
            assert second.wait_serving(1, LIMIT_S)["pid"] == server["pid"]
            second.wait(lambda _: on_record(folder, CANDIDATE_NAME) is None, "the other one's end", LIMIT_S)
            assert not _runs(candidate["leader"][0])
            record = on_record(folder, RECORD_NAME)
            assert record is not None
            assert record["generation"] == 1
            goes_on(second, seen)
            assert seen.errors == []


def test_a_vllmd_that_leaves_its_server_leaves_nothing_beside_it(tmp_path: Path) -> None:
    """SIGUSR1: the server lives on, what was to take its place does not."""
    argv = serve(free_port())
    with own_network(), running(tmp_path, argv, SETTINGS, SLOW) as first:
        server = first.wait_serving(1, LIMIT_S)
        prepared(first)
        candidate = first.wait(lambda _: on_record(tmp_path, CANDIDATE_NAME), "its record", LIMIT_S)
        assert candidate
        record = on_record(tmp_path, CANDIDATE_NAME)
        assert record is not None
        first.process.send_signal(signal.SIGUSR1)
        assert first.wait_ended(LIMIT_S) == 0
        deadline = time.monotonic() + LIMIT_S
        while _runs(record["leader"][0]):
            assert time.monotonic() < deadline
            time.sleep(0.1)  # its end is nobody's event here
        with running(tmp_path, argv, SETTINGS, SLOW) as second:
            assert second.wait_serving(1, LIMIT_S)["pid"] == server["pid"]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
