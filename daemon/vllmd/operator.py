"""The operator's commands over the control socket: what each may be asked with, and what it tells or does."""

import pwd
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from vllmd.errors import ControlError
from vllmd.loop import Loop
from vllmd.model.orders import PAUSE_LIMIT_S, Pause, SetLive
from vllmd.model.plain import plain
from vllmd.model.status import Status
from vllmd.ports import Clock
from vllmd.report.control import Command, Peer
from vllmd.report.history_json import explanation, history
from vllmd.report.ledger_file import LedgerError
from vllmd.report.ledger_history import LIMIT, Asked
from vllmd.report.live_json import live_document
from vllmd.report.status_json import pause_document, status_document

_REASON_CHARS = 200
_FLAG_CHARS = 60

Request = Mapping[str, Any]
Answer = Mapping[str, Any]


def operator_commands(loop: Loop, clock: Clock, told: Callable[[], Status | None]) -> dict[str, Command]:
    """Return the commands that change something, by name; `told` returns the last status."""

    def restart(_request: Request, _peer: Peer) -> Answer:
        change = loop.restart()
        if change is None:
            raise ControlError(f"nothing to do: the server is {loop.supervisor.life.state}")
        return {"id": change.id, "message": loop.supervisor.life.message}

    def pause(request: Request, peer: Peer) -> Answer:
        order = read_pause(request, clock.now_s(), _name_of(peer), loop.supervisor.instance.masker.mask)
        loop.pause(order)
        return {"paused": pause_document(order), "state": loop.supervisor.life.state.value, **_not_stored(told())}

    def resume(_request: Request, peer: Peer) -> Answer:
        before = told()
        if not loop.resume(_name_of(peer)):
            raise ControlError("it is not paused")
        pause, life = before.pause if before else None, loop.supervisor.life
        paused_s = None if pause is None else clock.now_s() - pause.at_s
        return {"state": life.state.value, "message": life.message, "paused_seconds": paused_s, **_not_stored(told())}

    def forget(_request: Request, peer: Peer) -> Answer:
        loop.forget(_name_of(peer))
        return {"message": "bans and last good flags are forgotten; the flags in force stay", **_not_stored(told())}

    commands = {"restart": restart, "pause": pause, "resume": resume, "forget": forget}
    return {name: Command(answer, changing=True) for name, answer in commands.items()}


def live_commands(loop: Loop, clock: Clock, told: Callable[[], Status | None]) -> dict[str, Command]:
    """Return the commands about live values, by name: `set` one, and read what is in `live` force at this moment."""

    def set_live(request: Request, peer: Peer) -> Answer:
        launch = loop.supervisor.life.launch
        order = read_set(request, clock.now_s(), _name_of(peer), launch.generation if launch else 0)
        if (refusal := loop.knobs.refusal(order.flag, order.value)) is not None:
            raise ControlError(refusal)
        change = loop.knobs.set(order)
        loop.tell()
        return {"id": change.id, **live({}, peer), **_not_stored(told())}

    def live(_request: Request, _peer: Peer) -> Answer:
        present = loop.knobs.status
        return {"live": None if present is None else live_document(present)}

    return {"set": Command(set_live, changing=True), "live": Command(live)}


def _not_stored(status: Status | None) -> Answer:
    """Return why the ledger did not take an order: it holds for this daemon, and the next will not know of it."""
    return {"not_stored": status.problem} if status is not None and status.problem is not None else {}


def reading_commands(folder: Path, name: str, told: Callable[[], Status | None]) -> dict[str, Command]:
    """Return the commands that only read the past, by name: from the ledger of this state folder."""

    def read_history(request: Request, _peer: Peer) -> Answer:
        return _from_ledger(lambda: history(folder, name, read_asked(request)))

    def read_explanation(request: Request, _peer: Peer) -> Answer:
        status, decision_id = told(), request.get("id")
        if not (decision_id is None or isinstance(decision_id, str)):
            raise ControlError(f"id: found {decision_id!r}, wanted a decision's id, or null")
        return _from_ledger(lambda: explanation(folder, name, decision_id, status_document(status) if status else {}))

    return {"history": Command(read_history), "explain": Command(read_explanation)}


def read_asked(request: Request) -> Asked:
    """Return which decisions are asked for. ControlError if it is wrong."""
    try:
        asked = msgspec.convert({key: value for key, value in request.items() if key != "command"}, Asked)
    except msgspec.ValidationError as error:
        raise ControlError(f"history: {error}") from error
    if not 1 <= asked.limit <= LIMIT:
        raise ControlError(f"limit: found {asked.limit}, wanted 1 to {LIMIT}")
    return asked


def _from_ledger(read: Callable[[], Answer]) -> Answer:
    """Return what the ledger says. ControlError if it cannot be read."""
    try:
        return read()
    except (LedgerError, PermissionError) as error:
        raise ControlError(str(error)) from error


def read_pause(request: Request, now_s: float, by: str, mask: Callable[[str], str]) -> Pause:
    """Return the pause that is asked for: `for_s` seconds, or null for one without an end. ControlError if wrong.

    The reason is masked before it is cut: a part of a secret is none that a masker knows.
    """
    reason = request.get("reason", "")
    until_s = _end_of(request, now_s)
    if not isinstance(reason, str):
        raise ControlError(f"reason: found {reason!r}, wanted a text")
    reason = plain(mask(reason), _REASON_CHARS)
    return Pause(now_s, until_s, by, reason, keeps_recovery=request.get("keep_recovery") is True)


def read_set(request: Request, now_s: float, by: str, generation: int) -> SetLive:
    """Return the live value that is asked for: a whole number, or null for what was launched. ControlError if wrong."""
    flag, value = request.get("flag"), request.get("value")
    if not isinstance(flag, str):
        raise ControlError(f"flag: found {flag!r}, wanted a flag's name")
    if "value" not in request or isinstance(value, bool) or not isinstance(value, int | None):
        raise ControlError(f"value: found {value!r}, wanted a whole number, or null")
    until_s = _end_of(request, now_s)
    return SetLive(now_s, by, plain(flag, _FLAG_CHARS), value, None if value is None else until_s, generation)


def _end_of(request: Request, now_s: float) -> float | None:
    """Return when an order ends: `for_s` seconds from now, or null for no end. ControlError if it is neither."""
    for_s = request.get("for_s")
    number = isinstance(for_s, int | float) and not isinstance(for_s, bool) and 0 < for_s <= PAUSE_LIMIT_S
    if "for_s" not in request or not (for_s is None or number):
        raise ControlError(f"for_s: found {for_s!r}, wanted seconds above 0 and up to {PAUSE_LIMIT_S:.0f}, or null")
    return None if for_s is None else now_s + float(for_s)


def _name_of(peer: Peer) -> str:
    """Return the name of the user who asks."""
    try:
        return pwd.getpwuid(peer.uid).pw_name
    except KeyError:
        return f"uid {peer.uid}"
