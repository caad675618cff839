"""Whether the next server can be prepared beside the one that serves, and why not."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from vllmd.model.flags import TENSOR_PARALLEL, Flags
from vllmd.model.live import Gate
from vllmd.model.server import ProcessId
from vllmd.observe.cgroup import memory_left
from vllmd_shim.gate import RANKS

_PIPELINE_PARALLEL = "pipeline-parallel-size"
# Workers elsewhere, which the words of this host do not count, and ports of their own, which two servers cannot share.
_SPREADS = ("nnodes", "kv-transfer-config", "kv-events-config")
_EXECUTOR = "distributed-executor-backend"
_OF_THIS_HOST = frozenset({None, "mp", "uni"})  # vLLM's own choice on one host is one of the two
# Beside what the server itself holds: for requests that come meanwhile, and for the candidate's last imports.
_RESERVE_BYTES = 2**30
# vLLM 0.32 came to its gate after 226 s while the load of two cores rose from 7 to 10 tasks a core (measured once), of
# the 5 min of engine.park_timeout. The share of time in which a task waits (/proc/pressure/cpu) is no measure: it was
# 98 % with six a core.
_TASKS_A_CORE = 10.0


@dataclass(frozen=True, slots=True)
class Room:
    """What the host has for a second server: memory that is free, and that the first one's processes hold (bytes).

    `tasks_a_core` is how many run or wait to run, on average of the last minute (proc_loadavg(5)).
    """

    free_bytes: int
    held_bytes: int
    tasks_a_core: float


def local_ranks(flags: Flags) -> int:
    """Return how many workers a launch of one engine on this host has."""
    return int((flags.number(TENSOR_PARALLEL) or 1) * (flags.number(_PIPELINE_PARALLEL) or 1))


def beside_refused(flags: Flags, plain: str | None, gate: Gate, room: Room) -> str | None:
    """Return why a launch with these flags cannot be prepared beside the server that serves, None if it can.

    `plain` says why the port cannot be parked, `gate` what the workers of the server that serves told of it.
    """
    if plain is not None:
        return plain
    if gate.off or not gate.passed:
        return gate.off or "no worker of the server came through vllmd_shim's gate"
    spread = [name for name in _SPREADS if name in flags]
    if flags.get(_EXECUTOR) not in _OF_THIS_HOST:
        spread.append(_EXECUTOR)
    if spread:
        return f"--{spread[0]}: what it does beside a server that serves is not known"
    if (ranks := local_ranks(flags)) > RANKS:
        return f"{ranks} workers: the gate counts {RANKS}"
    return _no_room(room)


def _no_room(room: Room) -> str | None:
    if room.free_bytes < room.held_bytes + _RESERVE_BYTES:
        free, held, reserve = (f"{size / 2**30:.1f}" for size in (room.free_bytes, room.held_bytes, _RESERVE_BYTES))
        return f"memory is short: {free} GiB are free on the host, the server holds {held}, and {reserve} stay free"
    if room.tasks_a_core > _TASKS_A_CORE:
        return f"the processors are busy: {room.tasks_a_core:.0f} tasks run or wait to run for each"
    return None


def room_on_host(server: Iterable[ProcessId]) -> Room:
    """Read what room there is; memory that the server's processes share counts for each."""
    available, left = int(psutil.virtual_memory().available), memory_left()
    free = available if left is None else min(available, left)
    tasks_a_core = os.getloadavg()[0] / (os.cpu_count() or 1)
    return Room(free, sum(_resident_bytes(process.pid) for process in server), tasks_a_core)


def _resident_bytes(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:  # it has ended
        return 0
