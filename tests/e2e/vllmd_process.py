"""A real `vllmd run` under test: configured, started, asked over its command line, stopped, and nothing left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from host_now import host_now
from vllmd.cli.places import SOCKET_NAME, Places
from vllmd.cli.status import as_document, look_at

# The command in this environment, beside the interpreter that runs the tests.
VLLMD = (str(Path(sys.executable).parent / "vllmd"),)

Instance = dict[str, Any]  # one element of `instances` of `vllmd status --json`
Settings = Mapping[str, Mapping[str, Any]]  # sections of the configuration

_ASK_LIMIT_S = 60.0  # two cores may be busy with a server's start, and some machines are slow
_STOP_LIMIT_S = 60.0
_POLL_S = 0.1
_TAIL_LINES = 60


def free_port() -> int:
    """Return a loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


class VllmdProcess:
    """One daemon. Made by `running`, which also ends it."""

    def __init__(
        self, folder: Path, argv: Sequence[str], settings: Settings, environ: Mapping[str, str], vllmd: Sequence[str]
    ) -> None:
        self._vllmd = tuple(vllmd)
        self._environ = {**os.environ, **environ}
        self._config = folder / "vllmd.toml"
        self._seen: set[psutil.Process] = set()
        self.log_path = folder / "vllmd.log"
        self.metrics_url = f"http://127.0.0.1:{free_port()}/metrics"
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.configure(argv, settings)
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._vllmd, "run", "--config", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environ,
                cwd=folder,
            )

    def configure(self, argv: Sequence[str], settings: Settings) -> None:
        """Write the configuration."""
        common: Settings = {
            "engine": {"argv": list(argv), "scrape_interval": "1s", "drain_timeout": "10s"},
            "listen": {"metrics": self.metrics_url.removeprefix("http://").removesuffix("/metrics")},
            "state": {"dir": str(self._folder / "state")},
        }
        names = dict.fromkeys((*common, *settings))
        sections = {name: {**common.get(name, {}), **settings.get(name, {})} for name in names}
        self._config.write_text(toml_text(sections), encoding="utf-8")

    # Asking

    def ask(self, command: str, *options: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of vllmd's on this instance."""
        return subprocess.run(
            [*self._vllmd, command, *options, "--config", str(self._config)],
            capture_output=True,
            text=True,
            env=self._environ,
            timeout=_ASK_LIMIT_S,
            check=False,
        )

    def status(self) -> Instance:
        """Return what `vllmd status --json` says of the instance now."""
        self.server_processes()
        asked = self.ask("status", "--json")
        try:
            (instance,) = json.loads(asked.stdout)["instances"]
        except ValueError:
            return {"state": "unknown", "problem": asked.stderr}
        assert isinstance(instance, dict)
        self._remember_server(instance.get("pid"))
        return instance

    def wait(self, condition: Callable[[Instance], object], what: str, within_s: float) -> Instance:
        """Return the first status for which the condition holds; AssertionError past the limit or vllmd's end."""
        deadline = time.monotonic() + within_s
        while True:
            instance = self._told()
            if condition(instance):
                return instance
            ended = self.process.poll()
            if ended is not None:
                raise AssertionError(self.story(f"vllmd ended with code {ended} before: {what}", instance))
            if time.monotonic() > deadline:
                raise AssertionError(self.story(f"not within {within_s:.0f} s: {what}", instance))
            time.sleep(_POLL_S)  # asked for, which sends no event

    def _told(self) -> Instance:
        """Return what `status` returns, by the same functions in this process: 2 ms instead of 200."""
        self.server_processes()
        state = self._folder / "state" / "default"
        seen = look_at(Places("default", state, state / SOCKET_NAME))
        (instance,) = as_document([seen])["instances"]
        assert isinstance(instance, dict)
        self._remember_server(instance.get("pid"))
        return instance

    def wait_serving(self, generation: int, within_s: float) -> Instance:
        """Wait until the launch with this number, or a later one, serves."""
        return self.wait(
            lambda i: i["state"] == "serving" and i["generation"] >= generation,
            f"generation {generation} serves",
            within_s,
        )

    def wait_ended(self, within_s: float) -> int:
        """Wait for vllmd to end by itself; return its exit code."""
        return self.process.wait(within_s)

    def log(self) -> str:
        """Return what vllmd printed."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def story(self, headline: str, instance: Instance) -> str:
        """Return what somebody needs who reads of a failure in CI: the host, vllmd's log, the status, the server's log.

        The longest comes last: what prints a failure may cut it.
        """
        engine_log = Path(instance.get("log") or "/dev/null")
        tails = [f"--- {path}\n{_tail(path)}" for path in (self.log_path, engine_log)]
        pids = [os.getpid(), self.process.pid, *(process.pid for process in self.server_processes())]
        return "\n".join((headline, host_now(pids), tails[0], json.dumps(instance, indent=1), tails[1]))

    # Processes

    def server_processes(self) -> frozenset[psutil.Process]:
        """Return the server's processes now, and remember them as ones that must not be left over."""
        try:
            found = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            found = []
        self._seen.update(found)
        return frozenset(process for process in {*found, *self._seen} if alive(process))

    def _remember_server(self, leader: int | None) -> None:
        """Remember the processes of a session: those of a server that was taken over are no children of this vllmd."""
        if leader is not None:
            self._seen.update(process for process in psutil.process_iter() if _session_of(process) == leader)

    def leftovers(self) -> list[str]:
        """Return the processes that were seen below vllmd, or are in a session of one of them, and still live."""
        sessions = {process.pid for process in self._seen}
        orphans = [p for p in psutil.process_iter() if _session_of(p) in sessions]
        return [str(p) for p in {*self._seen, *orphans} if alive(p)]

    def stop(self) -> None:
        """Stop vllmd as a service manager does, and assert that it ends well and leaves no process."""
        self.server_processes()
        instance = self.status()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                self.story(f"vllmd did not end {_STOP_LIMIT_S:.0f} s after SIGTERM", instance)
            ) from None
        assert code == 0, self.story(f"vllmd ended with code {code} after SIGTERM", instance)
        assert not self.leftovers(), self.story(f"left over: {self.leftovers()}", instance)

    def destroy(self) -> None:
        """End whatever is left, without a question: the test has failed already."""
        self.server_processes()
        sessions = {process.pid for process in self._seen}
        self.process.kill()
        self.process.wait()
        orphans = [p for p in psutil.process_iter() if _session_of(p) in sessions]
        killed = [process for process in {*self._seen, *orphans} if alive(process)]
        for process in killed:
            process.kill()
        psutil.wait_procs(killed, _STOP_LIMIT_S)


@contextmanager
def running(
    folder: Path,
    argv: Sequence[str],
    settings: Settings | None = None,
    environ: Mapping[str, str] | None = None,
    vllmd: Sequence[str] = VLLMD,
) -> Iterator[VllmdProcess]:
    """Run vllmd over a server's command for as long as the block runs, then stop it, if it has not ended by itself."""
    daemon = VllmdProcess(folder, argv, settings or {}, environ or {}, vllmd)
    try:
        yield daemon
        if daemon.process.poll() is None:
            daemon.stop()
        assert not daemon.leftovers()
    finally:
        daemon.destroy()


def alive(process: psutil.Process) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def toml_text(settings: Settings) -> str:
    """Return a configuration file's text. JSON's strings, numbers, booleans and arrays are TOML's, too."""
    lines = [
        line
        for section, keys in settings.items()
        for line in (f"[{section}]", *(f"{json.dumps(key)} = {_toml_value(value)}" for key, value in keys.items()))
    ]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml_value(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value)


def _session_of(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None


def _tail(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])
