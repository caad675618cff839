"""`vllmd doctor` as its own process: with a daemon, without one, and with what is bad."""

import json
import socket
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

from e2e.vllmd_process import VLLMD, free_port, running, toml_text
from own_network import own_network
from simulated import host, serve

LIMIT_S = 60.0


def doctor(config: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run the command on a configuration."""
    command = [*VLLMD, "doctor", "--config", str(config), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def verdicts(asked: "subprocess.CompletedProcess[str]") -> dict[str, tuple[str, str]]:
    """Return verdict and message by the name of the check."""
    document: dict[str, Any] = json.loads(asked.stdout)
    assert document["schema"] == "vllmd.doctor/v1"
    assert document["bad"] == (asked.returncode == 1)
    return {check["check"]: (check["verdict"], check["message"]) for check in document["checks"]}


def configured(folder: Path, port: int, metrics: int, **engine: Any) -> Path:
    """Write a configuration of the simulated server."""
    settings = {
        "engine": {"argv": serve(port), **engine},
        "listen": {"metrics": f"127.0.0.1:{metrics}"},
        "state": {"dir": str(folder / "state")},
    }
    path = folder / "vllmd.toml"
    path.write_text(toml_text(settings), encoding="utf-8")
    return path


def test_of_a_running_server_its_daemon_is_asked(tmp_path: Path) -> None:
    """What the shim can do in the server that runs, its restarts, the state and the metrics; nothing is bad."""
    with own_network(), running(tmp_path, serve(free_port()), environ=host()) as daemon:
        daemon.wait_serving(1, LIMIT_S)
        daemon.wait(lambda i: i["data"]["age_seconds"] is not None, "a reading", LIMIT_S)
        asked = daemon.ask("doctor", "--json")
        assert asked.returncode == 0, asked.stdout
        found = verdicts(asked)
        assert found["daemon"] == ("ok", "serving, generation 1")
        assert found["config"][0] == found["state"][0] == found["metrics"][0] == "ok"
        assert found["restart"] == ("ok", "planned: connections wait for the next server, none is refused")
        assert "requests counted" in found["shim"][1]
        assert "simulated" in found["vLLM"][1]
        page = daemon.ask("doctor").stdout
        assert page.splitlines()[-1].startswith("default: 0 bad, ")


def test_without_a_daemon_it_says_what_is_expected(tmp_path: Path) -> None:
    """The same checks from the configuration and the host alone, the restart by the kernel's setting."""
    config = configured(tmp_path, free_port(), free_port())
    with own_network():
        found = verdicts(doctor(config, "--json"))
        assert found["daemon"][0] == "warn"
        assert found["shim"][0] == found["restart"][0] == found["metrics"][0] == "ok"
        assert "is not there yet" in found["state"][1]
    with own_network(migrating=False):
        found = verdicts(doctor(config, "--json"))
        assert found["restart"][0] == "warn"
        assert "net.ipv4.tcp_migrate_req is 0" in found["restart"][1]
        assert "sysctl -w net.ipv4.tcp_migrate_req=1" in doctor(config).stdout
    assert not (tmp_path / "state").exists()


def test_what_is_bad_fails(tmp_path: Path) -> None:
    """A port of the metrics that is taken, a ledger of a newer vllmd, a command that is not vLLM's: exit code 1."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        config = configured(tmp_path, free_port(), taken.getsockname()[1], shim=False)
        found = verdicts(doctor(config, "--json"))
        assert found["metrics"][0] == "bad"
        assert found["shim"] == ("warn", "engine.shim is off")
        assert found["restart"][0] == "warn"
    state = tmp_path / "state" / "default"
    state.mkdir(parents=True)
    (state / "ledger.db").write_text("no database")
    config.write_text(toml_text({"engine": {"argv": ["sleep", "1"]}, "state": {"dir": str(tmp_path / "state")}}))
    asked = doctor(config, "--json")
    found = verdicts(asked)
    assert (found["config"][0], found["state"][0], found["vLLM"][0]) == ("bad", "bad", "bad")


def test_an_instance_that_is_not_configured_is_bad(tmp_path: Path) -> None:
    """No file names a command: that is said, and the rest is looked at all the same."""
    (tmp_path / "empty.toml").write_text("")
    asked = doctor(tmp_path / "empty.toml", "--json", "--state-dir", str(tmp_path / "state"))
    assert verdicts(asked)["config"][0] == "bad"
