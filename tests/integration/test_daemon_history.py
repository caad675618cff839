"""The past of a real vllmd over the simulated server, told by the daemon and, when it is dead, by its ledger."""

import json
from pathlib import Path
from typing import Any

from e2e.vllmd_process import VllmdProcess, free_port, running
from simulated import host, serve

LIMIT_S = 30.0
PLANTED = "planted-api-key-1"
ASKED = (
    ("history", "--all"),
    ("history", "--all", "--json"),
    ("explain", "D1"),
    ("explain", "D1", "--json"),
    ("explain", "D1", "--markdown"),
    ("explain",),
    ("explain", "--json"),
)


def too_little(port: int) -> list[str]:
    """Return the command of a server whose first start fails, with a key on it."""
    return serve(port, "--gpu-memory-utilization", "0.2", "--api-key", PLANTED)


def told(daemon: VllmdProcess) -> dict[tuple[str, ...], str]:
    """Return what each command prints; all of them end well."""
    done = {words: daemon.ask(*words) for words in ASKED}
    assert {words: d.stderr for words, d in done.items() if d.returncode != 0} == {}
    return {words: d.stdout for words, d in done.items()}


def decision(told_: dict[tuple[str, ...], str]) -> Any:
    """Return the first decision as JSON."""
    return json.loads(told_["explain", "D1", "--json"])["decision"]


def test_the_past_is_told_with_the_daemon_alive_and_dead(tmp_path: Path) -> None:
    """A recovery is in the history and explained down to the line of the log; the key is nowhere."""
    with running(tmp_path, too_little(free_port()), environ=host()) as daemon:
        daemon.wait_serving(2, LIMIT_S)
        # The first hold after the start is recorded by a reading, a second later.
        daemon.wait(lambda i: i["holds"], "a hold", LIMIT_S)
        alive = told(daemon)
        daemon.stop()
        dead = told(daemon)
    for texts in (alive, dead):
        assert "utilization-too-low" in texts["history", "--all"]
        assert "No available memory for the cache blocks" in texts["explain", "D1"]
        assert str(tmp_path / "state" / "default" / "logs" / "engine-0001.log") in texts["explain", "D1"]
        assert "no_targets" in texts["explain",]
        assert not [words for words, text in texts.items() if PLANTED in text]
    assert decision(alive) == decision(dead)
    assert json.loads(alive["explain", "--json"])["live"] is True
    assert json.loads(dead["explain", "--json"])["live"] is False
    assert "vllmd is not running" in dead["explain",]


def test_what_is_forgotten_is_tried_again(tmp_path: Path) -> None:
    """After `vllmd forget` the next vllmd begins with the operator's flags; the history still tells all of it."""
    port = free_port()
    with running(tmp_path, too_little(port), environ=host()) as first:
        first.wait_serving(2, LIMIT_S)
        assert first.ask("forget").returncode == 2
        assert first.ask("forget", "--yes").returncode == 0
    with running(tmp_path, too_little(port), environ=host()) as second:
        instance = second.wait_serving(4, LIMIT_S)
        assert [d["action"] for d in instance["decisions"]] == ["recover", "recover"]
        listed = json.loads(second.ask("history", "--json").stdout)
    assert [d["id"] for d in listed["decisions"]] == ["D2", "D1"]


def test_what_is_not_forgotten_is_remembered_and_explained(tmp_path: Path) -> None:
    """Without it the next vllmd begins with the flags that served, and says why."""
    port = free_port()
    with running(tmp_path, too_little(port), environ=host()) as first:
        first.wait_serving(2, LIMIT_S)
    with running(tmp_path, too_little(port), environ=host()) as second:
        second.wait_serving(3, LIMIT_S)
        assert "first launch" in second.ask("history").stdout
        explained = second.ask("explain", "D2").stdout
    assert "first launch with flags that served before" in explained
    assert "generation 2 served with these flags" in explained
