"""SIGHUP: another configuration is taken by a running vllmd, or refused with its reason; the server serves on."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.vllmd_process import Instance, Settings, VllmdProcess, free_port, running
from simulated import host, serve

LIMIT_S = 60.0
SECRET = "s3cr3t-of-the-new-command"  # noqa: S105 - planted to be looked for


@pytest.fixture
def argv() -> list[str]:
    """Give a server's command."""
    return serve(free_port())


@pytest.fixture
def daemon(tmp_path: Path, argv: list[str]) -> Iterator[VllmdProcess]:
    """Give a vllmd whose server serves."""
    with running(tmp_path, argv, environ=host()) as started:
        started.wait_serving(1, LIMIT_S)
        yield started


def reload(daemon: VllmdProcess, argv: list[str], settings: Settings) -> None:
    """Write another configuration and tell the daemon."""
    daemon.configure(argv, settings)
    daemon.process.send_signal(signal.SIGHUP)


def taken(daemon: VllmdProcess) -> Instance:
    """Wait until the log says that a configuration was taken; return the status."""
    return daemon.wait(lambda _: "configuration taken" in daemon.log(), "taken", LIMIT_S)


def test_limits_and_targets_count_at_once(daemon: VllmdProcess, argv: list[str]) -> None:
    """No launch is made for them."""
    pid = daemon.status()["pid"]
    guard = {"gpu-memory-utilization": {"min": 0.5, "max": 0.8}}
    reload(daemon, argv, {"guard": guard, "slo": {"itl_p99": "100ms"}, "mode": {"memory": "advisory"}})
    taken(daemon)
    instance = daemon.wait(lambda i: i["slo"], "the target is judged", LIMIT_S)
    (flag,) = [flag for flag in instance["flags"] if flag["name"] == "gpu-memory-utilization"]
    assert (flag["min"], flag["max"]) == (0.5, 0.8)
    assert instance["mode"]["memory"] == "advisory"
    assert (instance["pid"], instance["pending"]) == (pid, [])


def test_another_command_is_taken_with_the_next_launch(daemon: VllmdProcess, argv: list[str]) -> None:
    """Until then it is pending; its secret is never told."""
    reload(daemon, [*argv, "--max-num-seqs", "64", "--api-key", SECRET], {})
    taken(daemon)
    assert set(daemon.status()["pending"]) == {"--max-num-seqs", "--api-key"}
    assert daemon.ask("restart").returncode == 0
    instance = daemon.wait_serving(2, LIMIT_S)
    assert "64" in instance["argv"]
    assert instance["pending"] == []
    told = (daemon.log(), daemon.ask("status", "--json").stdout, daemon.ask("history", "--all", "--json").stdout)
    assert not [text for text in told if SECRET in text]


def test_the_environment_is_taken_with_the_next_launch(daemon: VllmdProcess, argv: list[str], tmp_path: Path) -> None:
    """The file of variables is read again."""
    variables = tmp_path / "engine.env"
    variables.write_text("VLLM_LOGGING_LEVEL=DEBUG\n")
    reload(daemon, argv, {"engine": {"env_file": str(variables)}})
    taken(daemon)
    assert daemon.ask("restart").returncode == 0
    daemon.wait_serving(2, LIMIT_S)
    environs = [process.environ() for process in daemon.server_processes() if "serve" in process.cmdline()]
    assert [environ.get("VLLM_LOGGING_LEVEL") for environ in environs] == ["DEBUG"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"slo": {"itl_p99": "never"}}, "vllmd.toml:"),
        ({"listen": {"metrics": "127.0.0.1:1"}}, "a running vllmd cannot change: listen.metrics"),
        ({"engine": {"argv": ["bash", "-c", "vllm serve m"]}}, "vllmd.toml:"),
    ],
    ids=["a bad value", "what is fixed", "a command that is not vLLM's"],
)
def test_what_cannot_be_taken_changes_nothing_and_says_why(
    daemon: VllmdProcess, argv: list[str], settings: Settings, said: str
) -> None:
    """The status says it until a configuration is taken."""
    reload(daemon, argv, {"mode": {"memory": "advisory"}, **settings})
    instance = daemon.wait(lambda i: i["problem"], "a problem is told", LIMIT_S)
    assert said in instance["problem"]
    assert (instance["state"], instance["mode"]["memory"], instance["degraded"]) == ("serving", "active", True)
    reload(daemon, argv, {"mode": {"memory": "advisory"}})
    taken(daemon)
    assert daemon.status()["problem"] is None


def test_a_recovery_goes_on_from_the_new_command(daemon: VllmdProcess, argv: list[str]) -> None:
    """A server that ends after a reload is launched with what is configured now."""
    reload(daemon, [*argv, "--max-num-seqs", "64"], {})
    pid = taken(daemon)["pid"]
    (server,) = [process for process in daemon.server_processes() if process.pid == pid]
    server.kill()
    instance = daemon.wait_serving(2, LIMIT_S)
    assert "64" in instance["argv"]
    assert instance["launches"]["crash"] == 1
