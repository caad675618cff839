"""A real systemd: this machine's own root, booted in a container that forgets what it wrote and shares the network.

The network is this machine's: what listens on 127.0.0.1 in the container is reached from the tests, and `e2e/load.py`
sends its traffic from outside. Nothing else is shared: processes, mounts, files and control groups are its own.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

PYTHON = "/usr/bin/python3"  # the distribution's: it lies in the root that the container has

_BOOT = Path(__file__).with_name("systemd_machine.sh")
_TOOLS = {
    "systemd-nspawn": "systemd-container",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
}
_NAMESPACES = ("--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup")
_ENVIRON = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
_PROBE_LIMIT_S = 30.0
_BOOT_LIMIT_S = 60.0  # it takes 1.5 s on two cores
_END_LIMIT_S = 30.0
_COMMAND_LIMIT_S = 60.0
_KILLED_IN_TIME_S = 10.0  # within which a command that was killed at its limit is gone
_POLL_S = 0.1


def missing() -> str | None:
    """Return why these tests cannot run here; None if they can."""
    if os.geteuid() != 0:
        return "a container with systemd needs root"
    lacking = {package for tool, package in _TOOLS.items() if shutil.which(tool) is None}
    if lacking:
        return f"not installed: Debian's {' and '.join(sorted(lacking))}"
    if not _succeeds("unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"):
        return "no right to mount, which a container with systemd needs (CAP_SYS_ADMIN)"
    if not _succeeds(PYTHON, "-c", "import ensurepip, sys; sys.exit(sys.version_info < (3, 11))"):
        return f"{PYTHON} is no Python 3.11 or newer with venv (Debian's python3-venv)"
    return None


class Machine:
    """A container that runs. Made by `booted`, which also ends it."""

    def __init__(self, leader: psutil.Process) -> None:
        self._leader = leader
        self.root = Path(f"/proc/{leader.pid}/root")  # its files, seen from here

    def run(
        self,
        *command: str,
        user: str | None = None,
        environ: Mapping[str, str] | None = None,
        within_s: float = _COMMAND_LIMIT_S,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command inside, as root or as a user with the groups it has; AssertionError if it takes too long."""
        enter = ["nsenter", f"--target={self._leader.pid}", *_NAMESPACES, "--"]
        become = [] if user is None else ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"]
        # Who kills it is inside: killed from here, nsenter would leave its child, and a pipe that stays open.
        limit = ["timeout", "--signal=KILL", str(within_s)]
        done = subprocess.run(
            [*enter, *limit, *become, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",
            env={**_ENVIRON, **(environ or {})},
            timeout=within_s + _KILLED_IN_TIME_S,
            check=False,
        )
        assert done.returncode not in {-9, 137}, f"not within {within_s:.0f} s: {command}\n{done.stdout}{done.stderr}"
        return done

    def must(self, *command: str, environ: Mapping[str, str] | None = None, within_s: float = _COMMAND_LIMIT_S) -> str:
        """Run a command inside as root and return what it prints; AssertionError unless it exits with 0."""
        done = self.run(*command, environ=environ, within_s=within_s)
        assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def write(self, path: str, text: str) -> None:
        """Write a file inside, to be read by everybody."""
        file = self.root / path.removeprefix("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o644)

    def copy(self, file: Path, folder: str) -> str:
        """Copy a file of this machine into a folder inside; return its path there."""
        shutil.copy(file, self.root / folder.removeprefix("/"))
        return f"{folder}/{file.name}"

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Return properties of a unit as `systemctl show` gives them."""
        text = self.must("systemctl", "show", unit, f"--property={','.join(names)}")
        return dict(line.split("=", 1) for line in text.splitlines())

    def journal(self, unit: str, *matches: str) -> list[dict[str, str]]:
        """Return what the journal holds on a unit, oldest first; a match is FIELD=VALUE."""
        text = self.must("journalctl", "--unit", unit, "--output=json", *matches)
        return [json.loads(line) for line in text.splitlines()]

    def processes(self) -> list[psutil.Process]:
        """Return every process that systemd keeps: all inside, but for what `run` started."""
        return self._leader.children(recursive=True)

    def processes_of(self, unit: str) -> list[psutil.Process]:
        """Return the processes in the unit's control group; none where it has none."""
        group = self.show(unit, "ControlGroup")["ControlGroup"]
        listed = self.root / f"sys/fs/cgroup{group}/cgroup.procs"
        if not group or not listed.exists():
            return []
        # The kernel writes the numbers of whoever reads.
        return [psutil.Process(int(pid)) for pid in listed.read_text(encoding="ascii").split()]


def inner_pid(process: psutil.Process) -> int:
    """Return the number that a process has inside."""
    return int(status_field(process, "NSpid").split()[-1])


def status_field(process: psutil.Process, name: str) -> str:
    """Return a line of /proc/PID/status (proc(5))."""
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
    return dict(line.split(":", 1) for line in lines)[name].strip()


@contextmanager
def booted(folder: Path) -> Iterator[Machine]:
    """Boot a container for as long as the block runs; the folder is its mount point. Whatever happens, all of it ends.

    The boot script is told to end when the block is left, and by the kernel when the tests are killed.
    """
    mount_point, console = folder / "machine", folder / "console.log"
    mount_point.mkdir()
    with console.open("wb") as output:
        boot = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", "unshare", "--mount", "sh", str(_BOOT), str(mount_point)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # an interrupt from the keyboard is for the tests, which end this in order
        )
    try:
        machine = _wait_booted(boot, console)
        yield machine
    finally:
        boot.terminate()
        try:
            boot.wait(_END_LIMIT_S)
        finally:
            boot.kill()
            boot.wait()


def _wait_booted(boot: "subprocess.Popen[bytes]", console: Path) -> Machine:
    deadline = time.monotonic() + _BOOT_LIMIT_S
    while True:
        leader = _leader(boot.pid)
        if leader is not None:
            machine = Machine(leader)
            state = machine.run("systemctl", "is-system-running", "--wait", within_s=_BOOT_LIMIT_S).stdout.strip()
            if state in {"running", "degraded"}:
                return machine
        story = console.read_text(encoding="utf-8", errors="replace")
        assert boot.poll() is None, f"systemd did not boot:\n{story}"
        assert time.monotonic() < deadline, f"systemd did not boot within {_BOOT_LIMIT_S:.0f} s:\n{story}"
        time.sleep(_POLL_S)  # before it answers there is nothing that could tell


def _leader(boot_pid: int) -> psutil.Process | None:
    """Return the container's first process, once it is systemd."""
    try:
        below = psutil.Process(boot_pid).children(recursive=True)
        found = [p for p in below if p.name() == "systemd" and psutil.Process(p.ppid()).name() == "systemd-nspawn"]
    except psutil.NoSuchProcess:
        return None
    return found[0] if found else None


def _succeeds(*command: str) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROBE_LIMIT_S, check=False)
    except OSError:
        return False
    return done.returncode == 0


def pip_settings() -> dict[str, str]:
    """Return the variables by which pip finds its index here; inside it is to find the same one."""
    return {name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()}


if __name__ == "__main__":  # boots one, says which, and waits: to look at by hand, and to be killed by a test
    with booted(Path(sys.argv[1])) as example:
        sys.stdout.write(f"{example.root}\n")
        sys.stdout.flush()
        sys.stdin.read()
