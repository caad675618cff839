"""Every class of failure, from the command line to a server that serves again, or to one that is held and says why.

Real daemons over real simulated servers. Where a number decides, the host's numbers make it fail; elsewhere a fault of
the host does. README.md of vllmd_sim explains both. One case a class belongs to `make test`, the others to `make e2e`.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from e2e.vllmd_process import Instance, VllmdProcess, free_port, running
from failure_cases import CASES, Case
from failure_variants import VARIANTS
from simulated import NAME, host, serve
from vllmd.model.failure import FailureClass

LIMIT_S = 60.0
POLL_S = 0.2
AT_A_TIME = 4
RUN = "TEST_RUN"  # a variable that every process below a daemon inherits
# A port that is taken has a test of its own below, and an end that vllmd asked for; of NONE there is no end.
ELSEWHERE = {FailureClass.PORT_IN_USE, FailureClass.CLEAN_EXIT, FailureClass.NONE}


@contextmanager
def started(case: Case, folder: Path) -> Iterator[VllmdProcess]:
    """Run vllmd over the server of a case."""
    values = dict(case.host)
    if "other_used_file" in values:
        values["other_used_file"] = str(folder / values["other_used_file"])
    if case.once and "fault" in values:
        values |= {"fault_launches": 1, "fault_file": str(folder / "launches")}
    environ = {**case.environ, **host(**values), RUN: str(folder)}
    with running(folder, serve(free_port(), *case.argv), case.settings, environ) as daemon:
        yield daemon
    assert not [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get(RUN) == str(folder)]


def until(daemon: VllmdProcess, condition: Callable[[Instance], object], what: str) -> Instance:
    """Return the first status for which the condition holds, read from status.json, which costs no process."""
    document = daemon.log_path.parent / "state" / "default" / "status.json"
    deadline = time.monotonic() + LIMIT_S
    launch = None
    while True:
        if document.exists():
            (instance,) = json.loads(document.read_text(encoding="utf-8"))["instances"]
            assert isinstance(instance, dict)
            if launch != (launch := (instance["generation"], instance["state"])):
                daemon.server_processes()  # they must not be left over
            if condition(instance):
                return instance
            assert time.monotonic() < deadline, daemon.story(f"never: {what}", instance)
        assert daemon.process.poll() is None, daemon.log()
        assert time.monotonic() < deadline, daemon.log()
        time.sleep(POLL_S)  # a file that is replaced sends no event


def ends_in(state: str, launches: int) -> Callable[[Instance], bool]:
    """Return the condition that this launch, or a later one, came to a state."""
    return lambda instance: instance["state"] == state and instance["generation"] >= launches


def run_to_its_end(case: Case, folder: Path) -> None:
    """Let a case happen, and assert what came of it."""
    with started(case, folder) as daemon:
        if case.provoke is not None:
            seen = (lambda i: i["last_failure"]) if case.while_down else ends_in("serving", 1)
            case.provoke(daemon, until(daemon, seen, "the first launch"))
        wanted = "serving" if case.held is None else "held"
        instance = until(daemon, ends_in(wanted, case.launches), f"{wanted} at last")
        said = instance["last_failure"]
        action = instance["decisions"][-1] if case.held is None else instance["last_decision"]
        changed = {f["name"]: f["value"] for f in instance["flags"] if f["value"] != f["baseline"]}
        story = daemon.story("not what was to come", instance)
        assert (said["class"], said["exit_code"]) == (case.kind, case.exit_code), story
        assert action["action"] == case.action, story
        assert sum(instance["launches"].values()) == instance["generation"] == case.launches, story
        assert changed.keys() == case.changed.keys(), story
        assert all(least <= float(changed[name]) <= most for name, (least, most) in case.changed.items()), story
        if case.held is None:
            assert action["verification"]["effect"] == "serving", story
        else:
            assert case.held in instance["message"], story
            assert not daemon.server_processes()


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, "Future[None]"]]:
    """Run the cases that were chosen, some at a time: each spends most of its time in waits."""
    chosen = [item.callspec.params.get("case") for item in request.session.items if hasattr(item, "callspec")]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {
            case.name: pool.submit(run_to_its_end, case, tmp_path_factory.mktemp("case"))
            for case in chosen
            if isinstance(case, Case)
        }


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name) for case in CASES]
    + [pytest.param(case, id=case.name, marks=pytest.mark.slow) for case in VARIANTS],
)
def test_a_failure_leads_to_serving_or_to_held(case: Case, runs: dict[str, "Future[None]"]) -> None:
    """The class, the action, the flags at the end, the number of launches; and no process is left over."""
    runs[case.name].result(LIMIT_S * len(runs))


def test_every_class_of_failure_has_a_case() -> None:
    """A new class needs a way from its cause to its end."""
    assert {case.kind for case in CASES} | ELSEWHERE == set(FailureClass)


def test_a_taken_port_is_held_before_any_launch(tmp_path: Path) -> None:
    """The class, the holder by name, no process."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with running(tmp_path, serve(port), environ=host()) as daemon:
            instance = until(daemon, ends_in("held", 1), "held")
            assert instance["last_failure"]["class"] == FailureClass.PORT_IN_USE
            assert f"port {port} is taken by pid {os.getpid()}" in instance["message"]
            assert not daemon.server_processes()


def test_an_end_that_was_asked_for_is_no_failure(tmp_path: Path) -> None:
    """A restart on request is counted as such, and nothing is held against the flags."""
    with running(tmp_path, serve(free_port()), environ=host()) as daemon:
        until(daemon, ends_in("serving", 1), "serving")
        assert daemon.ask("restart").returncode == 0
        instance = until(daemon, ends_in("serving", 2), "serving again")
        assert instance["last_failure"] is None
        assert instance["launches"] == {"first": 1, "admin": 1}


def test_a_crash_loop_is_held_with_its_reason(tmp_path: Path) -> None:
    """Three ends of a kind without a remedy are enough for the breaker; what happened is named."""
    values = {"fault": "process-dies", "fault_at": "start", "fault_code": -11}
    settings = {"budget": {"crash_breaker": "3 in 15m"}}
    with running(tmp_path, serve(free_port()), settings, host(**values)) as daemon:
        instance = until(daemon, ends_in("held", 3), "held")
        assert instance["generation"] == 3
        assert instance["last_failure"]["class"] == FailureClass.INFRA_FAULT
        assert instance["last_decision"]["reason"] == "breaker"
        assert instance["budget"]["breaker"] == "open"
        assert "3 failures of the kind infra-fault within 15 min and no remedy is left" in instance["message"]
        assert "exit code -11" in instance["message"]


def test_a_fault_that_an_option_keeps_away_does_not_strike(tmp_path: Path) -> None:
    """An illegal access that only graphs bring about: a server in eager mode lives through the request."""
    values = {"fault": "illegal-access", "fault_unless": "enforce-eager"}
    with running(tmp_path, serve(free_port(), "--enforce-eager"), environ=host(**values)) as daemon:
        instance = until(daemon, ends_in("serving", 1), "serving")
        body = {"model": NAME, "prompt": "x", "max_tokens": 2}
        assert httpx.post(f"{instance['url']}/v1/completions", json=body, timeout=LIMIT_S).status_code == 200
        assert daemon.status()["generation"] == 1
