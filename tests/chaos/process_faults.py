"""Faults of the server's own processes: killed, or stopped under load."""

import signal
from collections.abc import Callable
from random import Random

from chaos.load import keep_busy
from chaos.processes import Role
from chaos.scene import Scene


def kill(role: Role) -> Callable[[Scene, Random], str]:
    """Return the fault that kills a process of this role."""

    def inject(scene: Scene, _: Random) -> str:
        victim = scene.victim(role)
        if victim is None:
            return f"no {role} to kill"
        victim.send(signal.SIGKILL)
        return f"pid {victim.pid}"

    return inject


def stop(role: Role) -> Callable[[Scene, Random], str]:
    """Return the fault that stops a process of this role while requests run: it must be found as a hang."""

    def inject(scene: Scene, _: Random) -> str:
        victim = scene.victim(role)
        busy = victim is not None and keep_busy(scene.url)
        if victim is None or not busy:
            return f"no {role} with requests to stop"
        victim.send(signal.SIGSTOP)
        return f"pid {victim.pid}"

    return inject
