"""The operator's commands over the control socket: what each may be asked with, and what it does to the loop."""

import pwd
from collections.abc import Mapping
from typing import Any

from vllmd.errors import ControlError
from vllmd.loop import Loop
from vllmd.model.masking import plain
from vllmd.model.orders import Pause
from vllmd.ports import Clock
from vllmd.report.control import Command, Peer

PAUSE_LIMIT_S = 30 * 86400.0  # a longer pause is a decision against vllmd: stop it, or pause it without an end
_REASON_CHARS = 200

Request = Mapping[str, Any]
Answer = Mapping[str, Any]


def operator_commands(loop: Loop, clock: Clock) -> dict[str, Command]:
    """Return the commands that change something, by name."""

    def restart(_request: Request, _peer: Peer) -> Answer:
        change = loop.restart()
        if change is None:
            raise ControlError(f"nothing to do: the server is {loop.supervisor.life.state}")
        return {"id": change.id, "message": loop.supervisor.life.message}

    def pause(request: Request, peer: Peer) -> Answer:
        order = read_pause(request, clock.now_s(), _name_of(peer))
        loop.pause(order)
        return {"until_s": order.until_s, "by": order.by, "state": loop.supervisor.life.state.value}

    def resume(_request: Request, peer: Peer) -> Answer:
        if not loop.resume(_name_of(peer)):
            raise ControlError("it is not paused")
        return {"state": loop.supervisor.life.state.value, "message": loop.supervisor.life.message}

    def forget(_request: Request, peer: Peer) -> Answer:
        loop.forget(_name_of(peer))
        return {"message": "bans and last good flags are forgotten; the flags in force stay"}

    commands = {"restart": restart, "pause": pause, "resume": resume, "forget": forget}
    return {name: Command(answer, changing=True) for name, answer in commands.items()}


def read_pause(request: Request, now_s: float, by: str) -> Pause:
    """Return the pause that is asked for: `for_s` seconds, or null for one without an end. ControlError if wrong."""
    for_s, reason = request.get("for_s"), request.get("reason", "")
    number = isinstance(for_s, int | float) and not isinstance(for_s, bool) and 0 < for_s <= PAUSE_LIMIT_S
    if "for_s" not in request or not (for_s is None or number):
        raise ControlError(f"for_s: found {for_s!r}, wanted seconds above 0 and up to {PAUSE_LIMIT_S:.0f}, or null")
    if not isinstance(reason, str):
        raise ControlError(f"reason: found {reason!r}, wanted a text")
    until_s = None if for_s is None else now_s + float(for_s)
    return Pause(now_s, until_s, by, plain(reason, _REASON_CHARS), keeps_recovery=request.get("keep_recovery") is True)


def _name_of(peer: Peer) -> str:
    """Return the name of the user who asks."""
    try:
        return pwd.getpwuid(peer.uid).pw_name
    except KeyError:
        return f"uid {peer.uid}"
