"""The `live` of a status document: which flags can be set live, what is set, and the engine's last step. Pure."""

from typing import Any

from vllmd.model.live import Heartbeat, Knob
from vllmd.model.orders import SetLive
from vllmd.model.status import LiveStatus
from vllmd.report.wording import rfc3339

Document = dict[str, Any]


def live_document(status: LiveStatus) -> Document:
    """Return it. `off` says why a flag is not live, `plain_restart` why connections would not wait; else null."""
    orders = {order.flag: order for order in status.orders}
    beat = status.live.heartbeat
    return {
        "flags": [_knob(flag, knob, orders.get(flag)) for flag, knob in status.live.knobs.items()],
        "heartbeat": None if beat is None else _heartbeat(beat, status.silent_s),
        "plain_restart": status.plain_restart,
        "requests_in_flight": None if status.live.traffic is None else status.live.traffic.in_flight,
    }


def _knob(flag: str, knob: Knob, order: SetLive | None) -> Document:
    return {
        "flag": flag,
        "off": knob.off or None,
        "launched": knob.launched,
        "asked": knob.asked,
        "in_force": knob.in_force,
        "settled": knob.settled,
        "until": None if order is None or order.until_s is None else rfc3339(order.until_s),
        "by": None if order is None else order.by,
    }


def _heartbeat(beat: Heartbeat, silent_s: float | None) -> Document:
    return {
        "steps": beat.steps,
        "silent_seconds": None if silent_s is None else round(silent_s, 3),
        "longest_step_seconds": round(beat.longest_s, 6),
        "running": beat.running,
        "waiting": beat.waiting,
        "tokens": beat.tokens,
        "overhead_seconds_per_step": round(beat.own_s / beat.steps, 9),
    }
