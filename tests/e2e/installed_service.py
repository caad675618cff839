"""vllmd as an operator installs it: from the wheel, as vllmd@sim.service in a machine, over a simulated server."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from e2e.systemd_machine import PYTHON, Machine, inner_pid, pip_settings
from e2e.vllmd_process import Instance, Settings, free_port, toml_text
from simulated import NAME as MODEL
from simulated import host

UNIT = "vllmd@sim.service"
CONFIG = "/etc/vllmd/sim.toml"
MEMBER, STRANGER = "anna", "bob"  # who may read the control socket, and who may not

_ENVIRONMENT = "/usr/local/lib/vllmd"  # where the README installs it
_ENV_FILE = "/etc/vllmd/sim.env"
_DROP_INS = f"/etc/systemd/system/{UNIT}.d"
_STATE = "/var/lib/vllmd/sim"
_INSTALL_LIMIT_S = 300.0  # pip fetches the dependencies
_START_LIMIT_S = 100.0  # longer than the unit's TimeoutStartSec: its end is systemd's to tell
_STOP_LIMIT_S = 200.0  # likewise TimeoutStopSec
_POLL_S = 0.25


class Service:
    """One instance in one machine. `reset` brings it back to what `install` left."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.url = f"http://127.0.0.1:{free_port()}"
        self.metrics_url = f"http://127.0.0.1:{free_port()}/metrics"

    # What an operator does once

    def install(self, wheel: Path) -> None:
        """Install the wheel, the unit with its companions, and two people."""
        machine = self.machine
        machine.must(PYTHON, "-m", "venv", _ENVIRONMENT)
        self.install_wheel(wheel)
        machine.must("ln", "-s", f"{_ENVIRONMENT}/bin/vllmd", "/usr/bin/vllmd")
        machine.must("vllmd", "install-service", "sim")
        machine.must("systemd-sysusers")
        machine.must("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/vllmd.conf")
        machine.must("systemctl", "restart", "systemd-modules-load", "systemd-sysctl")
        machine.must("systemctl", "daemon-reload")
        machine.must("useradd", "--groups=vllmd-admin", MEMBER)
        machine.must("useradd", STRANGER)

    def install_wheel(self, wheel: Path) -> None:
        """Install a wheel, also over one of the same version."""
        file = self.machine.copy(wheel, "/root")
        command = (f"{_ENVIRONMENT}/bin/python", "-m", "pip", "install", "--quiet", "--force-reinstall", file)
        self.machine.must(*command, environ=pip_settings(), within_s=_INSTALL_LIMIT_S)

    # What an operator does then

    def configure(self, settings: Settings | None = None, *options: str, **simulated: float) -> None:
        """Write the configuration and the file of variables, which describes the simulated host."""
        port = self.url.rpartition(":")[2]
        argv = [f"{_ENVIRONMENT}/bin/python", "-m", "vllmd_sim", "serve", MODEL, "--port", port, *options]
        common: Settings = {
            "engine": {"argv": argv, "env_file": _ENV_FILE, "scrape_interval": "1s", "drain_timeout": "10s"},
            "listen": {
                "metrics": self.metrics_url.removeprefix("http://").removesuffix("/metrics"),
                "group": "vllmd-admin",
            },
        }
        self.machine.write(CONFIG, toml_text({**common, **(settings or {})}))
        self.machine.write(_ENV_FILE, "".join(f"{name}={value}\n" for name, value in host(**simulated).items()))

    def drop_in(self, text: str) -> None:
        """Change lines of the unit as `systemctl edit` does."""
        self.machine.write(f"{_DROP_INS}/test.conf", text)
        self.machine.must("systemctl", "daemon-reload")

    def start(self) -> None:
        """Start it; AssertionError with the journal if systemd says that this failed."""
        done = self.machine.run("systemctl", "start", UNIT, within_s=_START_LIMIT_S)
        assert done.returncode == 0, self.story(done.stderr)

    def stop(self) -> None:
        """Stop it."""
        self.machine.must("systemctl", "stop", UNIT, within_s=_STOP_LIMIT_S)

    def reset(self) -> None:
        """Stop it, end what a test left, and forget: drop-ins, state, systemd's counts of starts and failures."""
        self.stop()
        for process in self.processes():
            process.kill()
        self.machine.must("rm", "-rf", _DROP_INS, _STATE)
        self.machine.must("systemctl", "daemon-reload")
        if self.machine.run("systemctl", "is-failed", UNIT).returncode == 0:
            self.machine.must("systemctl", "reset-failed", UNIT)

    # What is

    def show(self, name: str) -> str:
        """Return a property of the unit."""
        return self.machine.show(UNIT, name)[name]

    def main_process(self) -> psutil.Process:
        """Return the daemon: systemd's main process, which must run."""
        pid = int(self.show("MainPID"))
        (found,) = [p for p in self.machine.processes() if inner_pid(p) == pid]
        return found

    def status(self) -> Instance:
        """Return what `vllmd status --json` says of the instance now."""
        asked = self.machine.run("vllmd", "status", "sim", "--json")
        try:
            (instance,) = json.loads(asked.stdout)["instances"]
        except ValueError:
            return {"state": "unknown", "problem": asked.stderr}
        assert isinstance(instance, dict)
        return instance

    def server_pid(self) -> int:
        """Return the server's process, by its number inside, as the status names it; it must be there."""
        pid = self.status()["pid"]
        assert isinstance(pid, int)
        return pid

    def servers(self) -> list[int]:
        """Return the numbers of all servers that run, whoever started them; of the leader each, not of its engine."""
        return [inner_pid(p) for p in self.machine.processes() if "vllmd_sim" in _argv(p)]

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the service's user, in the unit's control group or out of it."""
        uid = int(self.machine.must("id", "--user", "vllmd"))
        return [p for p in self.machine.processes() if p.uids().real == uid]

    # Waiting

    def wait(self, condition: Callable[[], object], what: str, within_s: float) -> None:
        """Return as soon as the condition holds; AssertionError with the journal past the limit."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, self.story(f"not within {within_s:.0f} s: {what}")
            time.sleep(_POLL_S)  # asked over command lines, which send no event

    def wait_serving(self, within_s: float = 60.0) -> None:
        """Wait until the daemon that runs now says that its server serves."""
        self.wait(lambda: self.status()["state"] == "serving", "it serves", within_s)

    def story(self, headline: str) -> str:
        """Return what somebody needs who reads of a failure in CI."""
        status = self.machine.run("systemctl", "status", "--no-pager", "--full", UNIT).stdout
        journal = self.machine.must("journalctl", f"--unit={UNIT}", "--lines=60", "--no-pager")
        return "\n".join((headline, json.dumps(self.status(), indent=1), status, journal))


def _argv(process: psutil.Process) -> Sequence[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
