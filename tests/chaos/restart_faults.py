"""Faults in the middle of a planned restart: at each of its steps the daemon, the old or the next server is hit.

A request comes just before the blow. It may be lost, and must not wait for ever.
"""

import json
import signal
import time
from collections.abc import Callable
from enum import StrEnum
from random import Random

from chaos.load import begin_asking
from chaos.processes import Process, Role
from chaos.scene import Scene
from chaos.violation import Violation
from vllmd.observe.processes import listeners

_STEP_LIMIT_S = 10.0  # from the order to the step; a start on a busy host
_LOOK_S = 0.002  # the shortest step takes some 20 ms
_WITHIN_S = {"draining": 1.2, "holding": 0.05, "starting": 0.6, "listening": 0.1}  # about as long as each takes
_SHORT_S = (0.3, 1.5)
_LONG_S = (2.5, 7.0)  # around hold_timeout


class Step(StrEnum):
    """The steps of a planned restart, as they are seen from outside."""

    DRAINING = "draining"  # the port is parked
    HOLDING = "holding"  # the old server has been told to end
    STARTING = "starting"  # the next one has a process
    LISTENING = "listening"  # it listens beside the parked port, and is not proved ready


class Blow(StrEnum):
    """What hits the restart. A long stop of a server ends when vllmd ends it."""

    DAEMON_KILLED = "vllmd killed"
    DAEMON_STOPPED = "vllmd stopped"
    DAEMON_STOPPED_LONG = "vllmd stopped for long"
    DAEMON_TERM = "SIGTERM to vllmd"
    DAEMON_LEAVES = "SIGUSR1 to vllmd"
    SERVER_KILLED = "killed"
    SERVER_STOPPED = "stopped"
    SERVER_STOPPED_LONG = "stopped for good"


def at(step: Step) -> Callable[[Scene, Random], str]:
    """Return the fault that asks for a restart and hits it somewhere in this step."""

    def inject(scene: Scene, chance: Random) -> str:
        blow, role = chance.choice(tuple(Blow)), chance.choice((Role.LEADER, Role.LEADER, Role.ENGINE))
        after_s = chance.uniform(0.0, _WITHIN_S[step])
        old = scene.victim(Role.LEADER)
        if old is None or not scene.service.order("restart"):
            return "no restart to hit"
        if not _reached(scene, step, old):
            return f"{blow} did not come to it: the restart did not"
        scene.waiting.append(begin_asking(scene.url))
        time.sleep(after_s)  # what is drawn: how far the step came
        return f"{after_s:.2f} s later {_strike(scene, chance, blow, role)}"

    return inject


def _reached(scene: Scene, step: Step, old: Process) -> bool:
    """Wait for a step; return whether it came in time."""
    deadline_s = time.monotonic() + _STEP_LIMIT_S
    while not _is_at(scene, step, old):
        scene.service.tend()
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_LOOK_S)  # /proc and files send no event
    return True


def _is_at(scene: Scene, step: Step, old: Process) -> bool:
    match step:
        case Step.DRAINING:
            return len(listeners(scene.port)) == 2
        case Step.HOLDING:
            return _end_is_asked_for(scene) or not old.lives
        case Step.STARTING:
            return not old.lives and scene.leader() is not None
        case Step.LISTENING:
            return not old.lives and len(listeners(scene.port)) == 2


def _end_is_asked_for(scene: Scene) -> bool:
    try:
        return bool(json.loads((scene.storage.state / "server.json").read_text())["ending"])
    except (OSError, ValueError, KeyError):
        return False


def _strike(scene: Scene, chance: Random, blow: Blow, role: Role) -> str:
    """Hit the restart; return in words what was done."""
    match blow:
        case Blow.DAEMON_KILLED:
            scene.service.kill()
            scene.service.start()
        case Blow.DAEMON_STOPPED:
            return f"{blow} for {_pause_daemon(scene, chance.uniform(*_SHORT_S)):.1f} s"
        case Blow.DAEMON_STOPPED_LONG:
            return f"{blow}: {_pause_daemon(scene, chance.uniform(*_LONG_S)):.1f} s"
        case Blow.DAEMON_TERM | Blow.DAEMON_LEAVES:
            _end_daemon(scene, signal.SIGTERM if blow is Blow.DAEMON_TERM else signal.SIGUSR1)
        case Blow.SERVER_KILLED | Blow.SERVER_STOPPED | Blow.SERVER_STOPPED_LONG:
            return _strike_server(scene, chance, blow, role)
    return str(blow)


def _strike_server(scene: Scene, chance: Random, blow: Blow, role: Role) -> str:
    """Hit the old server in the first two steps, the next one in the others: there is only one.

    An engine is not stopped for good: one that has no request yet would be found by a canary alone.
    """
    role = Role.LEADER if blow is Blow.SERVER_STOPPED_LONG else role
    found = [p for p in scene.processes() if p.role is role]
    if not found:
        return f"no {role} that could be {blow}"
    found[-1].send(signal.SIGKILL if blow is Blow.SERVER_KILLED else signal.SIGSTOP)
    if blow is Blow.SERVER_STOPPED:
        time.sleep(chance.uniform(*_SHORT_S))  # what is drawn: how long it stands still
        found[-1].send(signal.SIGCONT)
    return f"{role} {blow}: pid {found[-1].pid}"


def _pause_daemon(scene: Scene, pause_s: float) -> float:
    scene.service.signal(signal.SIGSTOP)
    time.sleep(pause_s)  # what is drawn: how long it stands still
    scene.service.signal(signal.SIGCONT)
    return pause_s


def _end_daemon(scene: Scene, number: signal.Signals) -> None:
    """Let the daemon end in good order, and look at what it leaves; then start the next."""
    code = scene.service.stop(number)
    if code != 0:
        raise Violation(f"vllmd ended with code {code} after {number.name}")
    left = scene.processes()
    if number is signal.SIGTERM and left:
        raise Violation(f"left over after SIGTERM: {'; '.join(map(str, left))}")
    if not left and listeners(scene.port):
        raise Violation(f"something listens on the server's port after {number.name}, and no server is there")
    scene.service.start()
