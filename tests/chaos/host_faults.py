"""Faults of the host itself: its clock is set, or a process may open no more files."""

import resource
import time
from random import Random

import psutil

from chaos.scene import Scene
from chaos.storage_faults import harm

_AHEAD_S = (-86_400, -3_600, -60, 0, 60, 3_600, 86_400)  # beside the host's own clock
_SPAN_S = (0.3, 2.5)  # around the second after which an event loop listens again


def set_clock(scene: Scene, chance: Random) -> str:
    """Set the clock to another time, where it stays; it may be done while something else happens."""
    ahead_s = chance.choice(_AHEAD_S)
    scene.clock.set(ahead_s)
    return f"{ahead_s:+d} s, {harm(scene, chance)}"


def no_descriptors(scene: Scene, chance: Random) -> str:
    """Let the daemon open nothing more for a while, while something else may happen.

    One that does not answer yet is left alone: what an interpreter says that cannot read its modules is not vllmd's.
    """
    pid, span_s = scene.service.pid, chance.uniform(*_SPAN_S)
    if scene.service.instance()["state"] == "unknown":
        return "no daemon that answers"
    scene.told.read()
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (psutil.Process(pid).num_fds(), before[1]))
    scene.service.unwritable = True
    try:
        done = harm(scene, chance)
        deadline_s = time.monotonic() + span_s
        while time.monotonic() < deadline_s:
            scene.service.tend()
            time.sleep(0.05)  # what is drawn: how long there are none
    finally:
        scene.service.tend()  # who died of it is excused
        scene.service.unwritable = False
    if scene.service.pid == pid:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    scene.told.read(excused=True)
    return f"for {span_s:.1f} s, {done}"
