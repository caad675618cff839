"""Faults of the daemon: killed at any moment and started again at once or later, stopped, asked to reload."""

import signal
import time
from random import Random

from chaos.processes import Role
from chaos.scene import Scene
from chaos.violation import Violation

_STATE_LIMIT_S = 5.0
_LATE_S = (0.1, 1.0)  # a service manager's delay


def kill(scene: Scene, chance: Random) -> str:
    """Kill the daemon, wherever it is, and start the next at once or after a while."""
    delay_s = chance.choice((0.0, chance.uniform(*_LATE_S)))
    scene.service.kill()
    time.sleep(delay_s)  # what is drawn: how long no daemon is there
    scene.service.start()
    return f"next one after {delay_s:.1f} s"


def kill_in_a_start(scene: Scene, chance: Random) -> str:
    """Let the server start anew, and kill the daemon somewhere in that start."""
    scene.service.order("restart")
    seen = _until(scene, {"starting"})
    after_s = chance.uniform(0.0, 1.0)
    time.sleep(after_s)  # what is drawn: how far the start came
    return f"state {seen}, {after_s:.1f} s later, {kill(scene, chance)}"


def kill_in_backoff(scene: Scene, chance: Random) -> str:
    """Kill the server until its next launch has to wait, and the daemon in that wait."""
    for _ in range(3):
        if (leader := scene.victim(Role.LEADER)) is not None:
            leader.send(signal.SIGKILL)
        if (seen := _until(scene, {"backoff", "serving", "held"})) != "serving":
            break
    return f"state {seen}, {kill(scene, chance)}"


def term(scene: Scene, chance: Random) -> str:
    """Stop the daemon in good order: it ends well, and nothing of the server is left. Then start it again."""
    after_s = chance.choice((0.0, chance.uniform(0.0, 1.0)))
    if not scene.service.pid:
        return "no daemon to stop"
    if chance.random() < 0.5:
        scene.service.order("restart")
        time.sleep(after_s)  # what is drawn: how far the start came
    state = scene.service.instance()["state"]
    code = scene.service.stop()
    if code == -signal.SIGTERM and state == "unknown":
        scene.service.start()
        return "it had not begun yet"
    if code != 0:
        raise Violation(f"vllmd ended with code {code} after SIGTERM in state {state}")
    if left := scene.processes():
        raise Violation(f"left over after SIGTERM in state {state}: {'; '.join(map(str, left))}")
    scene.service.start()
    return f"state {state}"


def hup(scene: Scene, chance: Random) -> str:
    """Send SIGHUP, which changes nothing; before the daemon listens to signals it ends it."""
    del chance
    state = scene.service.instance()["state"]
    if state == "unknown":
        return "no daemon to send it to"
    scene.service.signal(signal.SIGHUP)
    return f"state {state}"


def stop_for_a_while(scene: Scene, chance: Random) -> str:
    """Let the daemon stand still, while its server may end."""
    pause_s, role = chance.uniform(0.3, 1.5), chance.choice((None, Role.LEADER, Role.ENGINE))
    scene.service.signal(signal.SIGSTOP)
    if role is not None and (victim := scene.victim(role)) is not None:
        victim.send(signal.SIGKILL)
    time.sleep(pause_s)  # what is drawn: how long it stands still
    scene.service.signal(signal.SIGCONT)
    return f"for {pause_s:.1f} s, {role} killed meanwhile"


def _until(scene: Scene, states: set[str]) -> str:
    """Return the first of these states that the daemon tells; the last one seen if none comes in time."""
    deadline_s = time.monotonic() + _STATE_LIMIT_S
    while True:
        state = str(scene.service.instance()["state"])
        if state in states or time.monotonic() > deadline_s:
            return state
        scene.service.tend()
        time.sleep(0.02)  # asked over a socket, which sends no event
