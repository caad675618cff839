"""The series of restarts: how many of each kind, what waited, what was cut or refused. Pure."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from vllmd.model.handover import Handovers, RestartKind
from vllmd.report.samples import counter, gauge


def restart_series(name: str, handovers: Handovers) -> Iterator[Metric]:
    """Yield the restarts since vllmd began; what is told of the last one is absent before there was one."""
    kinds = [({"kind": kind.value}, handovers.kinds.get(kind, 0)) for kind in RestartKind]
    yield counter("restarts", "Restarts that were asked for, by what connections met.", name, kinds)
    sums = (
        ("connections_held", "Connections that waited for the next server, given up or not.", handovers.held),
        ("requests_cut", "Requests in flight that a restart ended, as far as known.", handovers.cut),
        ("requests_refused", "Requests that waited through a restart and were answered with 503.", handovers.refused),
    )
    for family, text, value in sums:
        yield counter(family, text, name, [({}, value)])
    last = handovers.last
    held = "Most connections that waited at once in the last restart."
    yield gauge("restart_held_connections", held, name, [({}, last.most_held if last else None)])
    longest = "No connection waited longer in the last restart."
    yield gauge("restart_longest_wait_seconds", longest, name, [({}, last.longest_wait_s if last else None)])
