"""Faults of the state folder: full, read-only, and files that are damaged while no daemon runs."""

import os
import signal
import time
from collections.abc import Callable
from random import Random

from chaos.processes import Role
from chaos.scene import Scene
from chaos.violation import Violation

_SPAN_S = (0.3, 1.5)
_SETTLE_S = 0.3  # what was being written when the folder came back is told by then
_HELD_LIMIT_S = 30.0  # a new daemon, and ten seconds that it waits for the port


def full(scene: Scene, chance: Random) -> str:
    """Leave no free block for a while, while something else may happen."""
    return _for_a_while(scene, chance, scene.storage.fill, scene.storage.free)


def read_only(scene: Scene, chance: Random) -> str:
    """Let nothing new be written in the state folder for a while, while something else may happen."""
    return _for_a_while(scene, chance, scene.storage.lock, scene.storage.unlock)


def _for_a_while(scene: Scene, chance: Random, begin: Callable[[], None], end: Callable[[], None]) -> str:
    span_s = chance.uniform(*_SPAN_S)
    scene.told.read()
    scene.service.unwritable = True
    begin()
    try:
        done = harm(scene, chance)
        deadline_s = time.monotonic() + span_s
        while time.monotonic() < deadline_s:
            scene.service.tend()
            time.sleep(0.05)  # what is drawn: how long nothing can be written
    finally:
        end()
        scene.service.tend()  # who died of it is excused
        scene.service.unwritable = False
    time.sleep(_SETTLE_S)
    scene.told.read(excused=True)
    return f"for {span_s:.1f} s, {done}"


def harm(scene: Scene, chance: Random) -> str:
    """Do something, or nothing, while a longer fault lasts; return it in words."""
    what = chance.choice(("nothing", "leader killed", "engine killed", "daemon killed", "restart asked for"))
    match what:
        case "leader killed" | "engine killed":
            role = Role.LEADER if what.startswith("leader") else Role.ENGINE
            if (victim := scene.victim(role)) is not None:
                victim.send(signal.SIGKILL)
        case "daemon killed":
            scene.service.kill()
        case "restart asked for":
            scene.service.order("restart")
    return what


def corrupt(name: str) -> Callable[[Scene, Random], str]:
    """Return the fault that damages a file after the daemon and its server died together, as by a loss of power."""

    def inject(scene: Scene, chance: Random) -> str:
        scene.service.kill()
        for process in scene.processes():
            process.send(signal.SIGKILL)
        done = _damage(scene, name, chance)
        scene.service.start()
        return done

    return inject


def corrupt_beside_a_server(scene: Scene, chance: Random) -> str:
    """Damage server.json alone: the next daemon cannot know whose the server is, and says so; the operator ends it.

    Where the next daemon still knows, or there was no server that listens, there is nothing for the operator to do.
    """
    scene.service.kill()
    before = {p.identity for p in scene.processes()}
    done = _damage(scene, "server.json", chance)
    scene.service.start()
    deadline_s = time.monotonic() + _HELD_LIMIT_S
    while (state := scene.service.instance()["state"]) not in {"held", "serving"} and time.monotonic() < deadline_s:
        scene.service.tend()
        time.sleep(0.05)  # asked over a socket, which sends no event
    left = [p for p in scene.processes() if p.identity in before]
    if state == "held":
        message = str(scene.service.instance().get("message"))
        if not any(f"pid {p.pid} " in message for p in left):
            raise Violation(f"held beside a server of before, which the message does not name: {message}")
        _end_sessions({p.session for p in left}, scene)
    return f"{done}, then {state}, {len(left)} processes of before"


def _end_sessions(sessions: set[int], scene: Scene) -> None:
    """End whole servers, also what a leader in the middle of its start has begun since they were looked at."""
    deadline_s = time.monotonic() + _HELD_LIMIT_S
    while (left := [p for p in scene.processes() if p.session in sessions]) and time.monotonic() < deadline_s:
        for process in left:
            process.send(signal.SIGKILL)
        time.sleep(0.05)  # of processes that are no children, which send no event


def _damage(scene: Scene, name: str, chance: Random) -> str:
    """Damage a file of the state folder as a crashed file system may: garbage, the first half, nothing at all."""
    path, manner = scene.storage.state / name, chance.choice(("garbage", "half", "emptied"))
    if not path.exists():
        return f"no {name}"
    scene.told.read()
    size = path.stat().st_size
    match manner:
        case "garbage":
            with path.open("r+b") as file:
                file.write(chance.randbytes(min(size, 4096)))
        case "half":
            os.truncate(path, size // 2)
        case "emptied":
            os.truncate(path, 0)
    if name == "ledger.db":
        scene.told.ledger_lost()
    elif name == "status.json":
        scene.told.status_lost()
    return f"{name} {manner}"
