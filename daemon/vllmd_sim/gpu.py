"""Who holds how much of the simulated GPU: one file a process in a common folder, so that a leftover engine counts."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from vllmd_sim.host import GIB, Host


@dataclass(frozen=True, slots=True)
class Gpu:
    """The device as one engine process sees it. Without a folder only the host's `other_used` counts."""

    host: Host

    def hold(self, size: int) -> None:
        """Say that this process holds so many bytes; replaces what it said before."""
        if self.host.gpu_dir is None:
            return
        entry = {"bytes": size, "start_ticks": start_ticks(os.getpid())}
        own = Path(self.host.gpu_dir) / str(os.getpid())
        own.parent.mkdir(parents=True, exist_ok=True)
        written = own.with_suffix(".new")
        written.write_text(json.dumps(entry), encoding="ascii")
        written.replace(own)

    def release(self) -> None:
        """Give everything back."""
        if self.host.gpu_dir is not None:
            (Path(self.host.gpu_dir) / str(os.getpid())).unlink(missing_ok=True)

    def others_bytes(self) -> int:
        """Return what others hold now: the host's share and every other living process of the folder."""
        return self._foreign_bytes() + sum(
            _held(entry) for entry in self._entries() if entry.name.isdigit() and int(entry.name) != os.getpid()
        )

    def _entries(self) -> list[Path]:
        folder = self.host.gpu_dir
        return sorted(Path(folder).iterdir()) if folder is not None and Path(folder).is_dir() else []

    def _foreign_bytes(self) -> int:
        """Return what the description says that others hold, in the file (GiB as text) if it names one."""
        if self.host.other_used_file is None:
            return int(self.host.other_used_gib * GIB)
        try:
            return int(float(Path(self.host.other_used_file).read_text(encoding="ascii")) * GIB)
        except FileNotFoundError:
            return int(self.host.other_used_gib * GIB)


def start_ticks(pid: int) -> int | None:
    """Return when a living process started, in clock ticks since boot; None if it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[18])  # field 22 of proc_pid_stat(5)


def _held(entry: Path) -> int:
    """Return the bytes of one entry, 0 when its process has ended (a pid that lives again has another start)."""
    try:
        said = json.loads(entry.read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0
    return int(said["bytes"]) if said["start_ticks"] == start_ticks(int(entry.name)) else 0
