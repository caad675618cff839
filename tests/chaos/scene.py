"""The scene of one run: a folder, a daemon over the simulated server, a device, and whoever watches them."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from chaos.clock import WallClock
from chaos.nvml import Driver, Nvml
from chaos.processes import Process, Role, family
from chaos.service import Service
from chaos.storage import Storage
from chaos.told import Told
from chaos.watch import Watch
from e2e.vllmd_process import Settings, free_port, toml_text
from simulated import host, serve
from vllmd.act.parked_port import connections_migrate

_WORKERS = 2
# A start of the server in a tenth of a second besides its two interpreters'. An orphan lives for as long as a run may.
_HOST = {"start_s": 0.1, "orphan_s": 7200}
_SETTINGS = {
    "stall_timeout": "2s",
    "scrape_interval": "250ms",
    "start_timeout": "10s",
    "drain_timeout": "2s",
    "hold_timeout": "6s",
}
_KEEP_ALIVE = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "1"}  # a planned restart waits for it
_VICTIM_LIMIT_S = 3.0


class Scene:
    """What faults act on."""

    def __init__(self, folder: Path) -> None:
        self.port = port = free_port()
        self.folder = folder
        self.url = f"http://127.0.0.1:{port}"
        self.storage = Storage(folder / "state")
        self.nvml = Nvml(folder)
        self.clock = WallClock(folder)
        self.log = folder / "vllmd.log"
        self.log.touch()
        config, control = folder / "vllmd.toml", folder / "control.sock"
        sections: Settings = {
            "engine": {"argv": serve(port, "--tensor-parallel-size", str(_WORKERS)), **_SETTINGS},
            "listen": {"metrics": f"127.0.0.1:{free_port()}", "control": str(control)},
            "log": {"format": "json"},
            "state": {"dir": str(self.storage.root)},
        }
        config.write_text(toml_text(sections), encoding="utf-8")
        environ = {**host(**_HOST, gpu_dir=str(self.nvml.gpu)), **_KEEP_ALIVE}
        environ |= {**self.nvml.environ, **self.clock.environ}
        self.service = Service(config, control, self.log, environ)
        self.watch = Watch(self.nvml.gpu)
        self.told = Told(self.log, self.storage.state)
        self.waiting: list[threading.Thread] = []  # for the answers to requests that came in a planned restart

    @property
    def parks(self) -> bool:
        """Whether restarts can be planned ones: in a network of our own."""
        return connections_migrate() is True

    def processes(self) -> list[Process]:
        """Return the live processes of all launches; the folder stands in the environment of each."""
        return family(str(self.nvml.gpu), {self.service.pid})

    def victim(self, role: Role) -> Process | None:
        """Return a process of this role; None if none appears in time."""
        deadline_s = time.monotonic() + _VICTIM_LIMIT_S
        while True:
            found = [p for p in self.processes() if p.role is role]
            if found:
                return found[-1]
            if time.monotonic() > deadline_s:
                return None
            self.service.tend()
            time.sleep(0.02)  # /proc sends no event

    def leader(self) -> Process | None:
        """Return the leader of the newest launch now."""
        return next((p for p in reversed(self.processes()) if p.role is Role.LEADER), None)

    def recover(self) -> None:
        """End what a fault may have left broken around the daemon."""
        self.storage.unlock()
        self.storage.free()
        self.nvml.set(Driver.WORKS)

    def keep_state(self) -> Path:
        """Copy the state folder out of its file system, for whoever looks for the cause; return the copy."""
        copy = self.folder / "state-kept"
        shutil.copytree(self.storage.root, copy, ignore=shutil.ignore_patterns("ballast"), dirs_exist_ok=True)
        return copy

    def close(self) -> None:
        """End every process of the scene, and take its file system away."""
        self.watch.stop()
        self.service.kill()
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                psutil.Process(process.pid).kill()
        self.storage.close()


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    """Set a scene in a folder for as long as the block runs."""
    made = Scene(folder)
    try:
        yield made
    finally:
        made.recover()
        made.close()
