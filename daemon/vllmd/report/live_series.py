"""The series of live values, of the engine's steps and of the requests in flight, as vllmd_shim tells them. Pure."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from vllmd.model.live import Heartbeat, Knob
from vllmd.model.status import LiveStatus
from vllmd.report.samples import Sample, counter, gauge


def live_series(name: str, status: LiveStatus | None) -> Iterator[Metric]:
    """Yield what the running server offers to be changed at once, and what it tells; nothing where none serves."""
    if status is None:
        return
    live = status.live
    flags: list[Sample] = [({"flag": flag}, int(not knob.off)) for flag, knob in live.knobs.items()]
    yield gauge("flag_live", "Whether a flag of the running server can be changed at once.", name, flags)
    values = [sample for flag, knob in live.knobs.items() for sample in _values(flag, knob)]
    yield gauge("live_value", "A live flag as launched, as asked for, and in force in the last step.", name, values)
    plain = "Whether a restart now would refuse connections."
    yield gauge("restart_plain", plain, name, [({}, int(status.plain_restart is not None))])
    in_flight = None if live.traffic is None else live.traffic.in_flight
    yield gauge("requests_in_flight", "Requests that the API server is answering.", name, [({}, in_flight)])
    if live.heartbeat is not None:
        yield from _steps(name, live.heartbeat, status.silent_s)


def _values(flag: str, knob: Knob) -> Iterator[Sample]:
    """Yield a flag's values; what is asked for is what was launched where nothing else is."""
    if not knob.off:
        found = {"launched": knob.launched, "asked": knob.asked or knob.launched, "in_force": knob.in_force}
        yield from (({"flag": flag, "kind": kind}, value) for kind, value in found.items())


def _steps(name: str, beat: Heartbeat, silent_s: float | None) -> Iterator[Metric]:
    """Yield the engine's steps, and what vllmd_shim takes of them."""
    yield counter("engine_steps", "Steps of the engine of this launch.", name, [({}, beat.steps)])
    longest = "Longest time from one step to the next with requests running."
    yield gauge("engine_longest_step_seconds", longest, name, [({}, beat.longest_s)])
    yield gauge("engine_silent_seconds", "Time since the engine's last step began.", name, [({}, silent_s)])
    yield counter("shim_overhead_seconds", "Time that the steps spent in vllmd_shim.", name, [({}, beat.own_s)])
