"""The kinds of faults: how often each is drawn, where it can be had, and how it is done."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from chaos import daemon_faults, device_faults, host_faults, process_faults, restart_faults, storage_faults
from chaos.processes import Role
from chaos.restart_faults import Step
from chaos.scene import Scene

Inject = Callable[[Scene, Random], str]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind: its name, its weight among the others, and what does it and returns in words what was done.

    A kind without weight is drawn only where it is named.
    """

    name: str
    weight: int
    inject: Inject
    needs: str = ""  # "clock", "mount", "network", "nvml", "worker": where that is not there, the kind is left out


KINDS = (
    Kind("daemon-kill", 14, daemon_faults.kill),
    Kind("daemon-kill-in-start", 8, daemon_faults.kill_in_a_start),
    Kind("daemon-kill-in-backoff", 6, daemon_faults.kill_in_backoff),
    Kind("daemon-term", 8, daemon_faults.term),
    Kind("daemon-hup", 3, daemon_faults.hup),
    Kind("daemon-stop", 4, daemon_faults.stop_for_a_while),
    Kind("restart-draining", 5, restart_faults.at(Step.DRAINING), "network"),
    Kind("restart-holding", 4, restart_faults.at(Step.HOLDING), "network"),
    Kind("restart-starting", 5, restart_faults.at(Step.STARTING), "network"),
    Kind("restart-listening", 5, restart_faults.at(Step.LISTENING), "network"),
    Kind("engine-kill", 8, process_faults.kill(Role.ENGINE)),
    Kind("leader-kill", 8, process_faults.kill(Role.LEADER)),
    Kind("worker-kill", 6, process_faults.kill(Role.WORKER), "worker"),
    Kind("engine-stop", 4, process_faults.stop(Role.ENGINE)),
    Kind("leader-stop", 3, process_faults.stop(Role.LEADER)),
    Kind("worker-stop", 3, process_faults.stop(Role.WORKER), "worker"),
    Kind("disk-full", 6, storage_faults.full, "mount"),
    Kind("read-only", 5, storage_faults.read_only, "mount"),
    Kind("corrupt-server-json", 4, storage_faults.corrupt("server.json")),
    Kind("corrupt-server-json-alive", 2, storage_faults.corrupt_beside_a_server),
    Kind("corrupt-status-json", 3, storage_faults.corrupt("status.json")),
    Kind("corrupt-ledger", 4, storage_faults.corrupt("ledger.db")),
    Kind("nvml-lost", 3, device_faults.driver_in_trouble, "nvml"),
    Kind("nvml-hang", 3, device_faults.driver_hangs, "nvml"),
    Kind("clock-set", 5, host_faults.set_clock, "clock"),
    Kind("no-descriptors", 4, host_faults.no_descriptors),
)


def available(there: Sequence[str], named: Sequence[str] = ()) -> list[Kind]:
    """Return the kinds that can be had where these needs are met: those that are named, else all that have a weight."""
    kinds = [kind for kind in KINDS if not kind.needs or kind.needs in there]
    if not named:
        return [kind for kind in kinds if kind.weight]
    return [replace(kind, weight=kind.weight or 1) for kind in kinds if kind.name in named]
