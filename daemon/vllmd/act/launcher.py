"""What every launch of an instance has in common: where its files are, its address, and the limits of its waits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllmd.act.planned_restart import Limits

RECORD_NAME = "server.json"
CANDIDATE_NAME = "candidate.json"
LOG_FOLDER = "logs"
SHIM_FOLDER = Path("shim", "plugin")

# From when a worker is at the gate to when it opens, beyond announcing and the drain: the old server's end (25 s
# at most), and the GPU memory of dead processes (60 s).
_TO_THE_OPENING_S = 120.0
_KEEP_ALIVE_S = 5.0  # VLLM_HTTP_TIMEOUT_KEEP_ALIVE (vllm/envs.py)


@dataclass(frozen=True, slots=True)
class Launcher:
    """What every launch of an instance has in common. Times in seconds."""

    state_dir: Path
    environment: Mapping[str, str]
    host: str  # the address that the server binds; empty for all
    port: int
    start_timeout_s: float
    stall_timeout_s: float
    drain_timeout_s: float
    hold_timeout_s: float
    keep_logs: int
    mask: Callable[[str], str]  # secrets of text that is kept
    shim: bool = True  # whether vllmd_shim comes into the server's processes
    gate: bool = True  # whether the next server is prepared beside the serving one
    park_timeout_s: float = 300.0  # for that

    @property
    def record_path(self) -> Path:
        """Where the identities of the server's processes are kept."""
        return self.state_dir / RECORD_NAME

    @property
    def candidate_path(self) -> Path:
        """Where the identities of the processes are kept of a launch that is prepared beside the server."""
        return self.state_dir / CANDIDATE_NAME

    @property
    def gate_s(self) -> float:
        """How long a worker waits at the gate at most: vllmd may die meanwhile."""
        limits = self.restart_limits
        return self.park_timeout_s + limits.announce_s + limits.drain_s + _TO_THE_OPENING_S

    @property
    def shim_folder(self) -> Path:
        """What comes in front of the server's PYTHONPATH."""
        return self.state_dir / SHIM_FOLDER

    @property
    def address(self) -> str:
        """The server's address, as the shim is told it."""
        return f"{self.host}:{self.port}"

    @property
    def restart_limits(self) -> Limits:
        """The limits of a planned restart."""
        told = self.environment.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "")
        keep_alive_s = float(told) if told.isdecimal() else _KEEP_ALIVE_S
        return Limits(self.drain_timeout_s, self.hold_timeout_s, keep_alive_s)

    @property
    def log_dir(self) -> Path:
        """Where the logs of the launches are."""
        return self.state_dir / LOG_FOLDER
