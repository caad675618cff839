"""A restart that loses no request: what comes meanwhile waits in the kernel, on the server's own port.

    open ─announce─▶ open ─park─▶ draining ─no request in flight─▶ holding ─the next server is proved ready─▶ open
                                     └──────────────┴──────────────── hold_timeout ─▶ refusing ─▶ open

While it is announced the server serves as ever, but ends each connection with its answer: those that are kept, and
could bring a request at the wrong moment, are gone when the outage begins.
Each step has its limit: announcing the time for which the server keeps an idle connection, draining drain_timeout (what
is still in flight then is cut), the server's end and the start of the next one those of every launch, all from the
parking on hold_timeout (then 503). The way back is always the same: `release` closes the parked port, and what waits
goes to the server that listens; it gets 503 first where none does. A next server that fails changes nothing here: the
one after it gets what waits.
"""

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import structlog

from vllmd.act.live_block import LiveBlock
from vllmd.act.parked_port import (
    BACKLOG,
    ParkedPort,
    PortFacts,
    connections_migrate,
    longest_queue,
    parking_refused,
)
from vllmd.act.refusal import AT_ONCE, hang_up, refuse
from vllmd.act.tally import Tally
from vllmd.model.flags import Flags, api_servers
from vllmd.model.handover import Handover
from vllmd.observe.processes import connections, listeners
from vllmd.ports import Clock

_POLL_S = 0.05  # between looks at words in memory and at the length of a queue, which send no event
_ROOM = 0.75  # of the kernel's queue: a connection for which there is none is not told so, it tries for minutes
# From the parking on: a connection that was being made with the old listener is made by then.
_CALM_S = 0.5
# Beyond the time for which one is kept, for a connection that is still open: a busy server reads and closes late.
_LINGERING_S = 5.0
_TURN_AWAY_S = 5.0  # for the answers to what waits where no server follows: read, written and heard in refusal.py's 4 s

log = structlog.get_logger()


class Step(StrEnum):
    """How far a planned restart is."""

    OPEN = "open"  # none is under way
    DRAINING = "draining"  # new connections wait, the old server finishes what it has
    HOLDING = "holding"  # no server is there for them
    REFUSING = "refusing"  # they waited for too long


# Options with which an engine hands on at its end what others use, or moves it out of the device.
_CONNECTORS = frozenset({"kv-transfer-config", "kv-offloading-size", "kv-events-config", "ec-transfer-config"})


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a planned restart, in seconds; `keep_alive_s` is how long the server keeps an idle connection."""

    drain_s: float
    hold_s: float
    keep_alive_s: float

    @property
    def announce_s(self) -> float:
        """How long the server is given to end connections that are kept: no longer than for its requests."""
        return min(self.keep_alive_s, self.drain_s)


class PlannedRestart:
    """The port of one server through its planned restarts."""

    def __init__(self, live: LiveBlock, clock: Clock, followed: Callable[[], bool] = lambda: True) -> None:
        self._live = live
        self._clock = clock
        self._followed = followed  # whether the next server will share the port
        self._parked: ParkedPort | None = None
        self._parked_s = 0.0
        self._port = 0
        self._tls = self._hands_on = False  # what is parked: speaks TLS; has a KV connector, which ends in its own time
        self._watching: asyncio.Task[None] | None = None
        self._answers: set[asyncio.Task[None]] = set()  # 503s that are being sent
        self._tally: Tally | None = None  # of a restart that is under way
        self._closing_s: float | None = None  # nobody follows: what waits is told so until then
        self.step = Step.OPEN

    @property
    def parked(self) -> bool:
        """Whether new connections wait for the next server."""
        return self._parked is not None

    @property
    def turns_away(self) -> bool:
        """Whether what waits is being told that no server comes: the port is not free before that is over."""
        return self._closing_s is not None

    @property
    def has_nothing_left(self) -> bool:
        """Whether the parked server has no request, and nothing to hand on at its end."""
        if not self.parked or self.turns_away or self._hands_on:
            return False
        traffic = self._live.traffic()
        return traffic is not None and not traffic.in_flight

    def other_listeners(self, port: int) -> tuple[int, ...]:
        """Return the inodes of the sockets that listen on a port, but for the parked one."""
        own = self._parked.inode if self._parked is not None else None
        return tuple(inode for inode in listeners(port) if inode != own)

    async def announce(self, flags: Flags, limits: Limits, ends: AbstractSet["asyncio.Future[Any]"]) -> None:
        """Let the server end its connections, and wait until none is kept; at once where the restart is a plain one.

        Over, too, when one of the futures is done.
        """
        if self.plain(flags) is not None:
            return
        self._live.drain(on=True)
        deadline = self._clock.monotonic_s() + limits.announce_s
        while (now_s := self._clock.monotonic_s()) < deadline:
            traffic = self._live.traffic()
            if traffic is None or now_s - traffic.kept_s >= limits.keep_alive_s:
                break
            done, _ = await asyncio.wait(ends, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
            if done:
                break

    def park(self, host: str, port: int, flags: Flags, limits: Limits, *, gated: bool) -> bool:
        """Let new connections wait; return whether they do. Where they cannot, the restart is a plain one.

        `gated`: the next server waits at its gate.
        """
        if self._parked is not None and self._tally is not None:
            self._close(self._parked, self._tally)  # of a restart whose last answers are still under way
        parked, refused = None, self.plain(flags)
        if refused is None:
            try:
                parked = ParkedPort(host, port)
            except OSError as error:
                refused = f"the port cannot be bound a second time: {error.strerror}"
        if parked is None:
            log.warning("the restart is a plain one: connections are refused until it is over", reason=refused)
            self._tally = Tally(refused or "unknown")
            return False
        if (longest := longest_queue()) < BACKLOG:
            log.warning("few connections can wait: net.core.somaxconn is low", connections=longest)
        self._parked, self._parked_s = parked, self._clock.monotonic_s()
        self.step, self._tally, self._closing_s = Step.DRAINING, Tally(gated=gated), None
        self._port, self._tls, self._hands_on = port, "ssl-certfile" in flags, not _CONNECTORS.isdisjoint(flags)
        self._watching = asyncio.ensure_future(self._watch(parked, limits.hold_s))
        return True

    def plain(self, flags: Flags) -> str | None:
        """Return why the port of the server with these flags cannot be parked; None where it can, as far as seen."""
        traffic = self._live.traffic()
        return parking_refused(
            PortFacts(
                api_servers=api_servers(flags),
                unix_socket="uds" in flags,
                counted=traffic is not None,
                shared=traffic is not None and traffic.shared_port,
                migrates=connections_migrate(),
                followed=self._followed(),
            )
        )

    async def drain(self, limits: Limits, ends: AbstractSet["asyncio.Future[Any]"]) -> None:
        """Wait until the parked server has no request and no connection that could bring one, within the limit.

        One that never brought a request is waited for little longer than one that is kept: nobody else would end it.
        Over, too, when one of the futures is done (the server ended, an operator hurries), or the port is released.
        """
        self._live.drain(on=True)
        deadline = self._clock.monotonic_s() + limits.drain_s
        calm_since_s = self._clock.monotonic_s()
        while (parked := self._parked) is not None and self._closing_s is None:
            now_s, traffic = self._clock.monotonic_s(), self._live.traffic()
            if traffic is None or traffic.in_flight:
                calm_since_s = now_s
            elif now_s - self._parked_s >= _CALM_S and (
                not connections(self._port, parked.inode) or now_s - calm_since_s >= limits.keep_alive_s + _LINGERING_S
            ):
                break
            if now_s > deadline:
                if traffic is None or traffic.in_flight:
                    cut = traffic.in_flight if traffic is not None else None
                    log.warning("requests are cut: they did not end within engine.drain_timeout", requests=cut)
                break
            done, _ = await asyncio.wait(ends, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
            if done:
                break
        self._note_cut()
        if self.step is Step.DRAINING:
            self.step = Step.HOLDING

    def server_ended(self) -> None:
        """Count what a server that could not be parked had in flight at its end, while its block can be read."""
        if self._tally is not None and not self._tally.parked:
            self._note_cut()

    def _note_cut(self) -> None:
        traffic = self._live.traffic()
        if self._tally is not None and traffic is not None:
            self._tally.cut = traffic.in_flight

    def release(self, *, served: bool = True) -> Handover | None:
        """Give what waits to the server that listens now; return how it went, None where no restart is under way.

        Where none does, or it will not be `served`, it is answered with 503, and then the port is no longer parked.
        """
        parked, tally, now_s = self._parked, self._tally, self._clock.monotonic_s()
        if tally is None or self._closing_s is not None:
            return None
        if parked is None:
            self._tally = None
            return tally.end(0, now_s)
        waiting = parked.queued()
        handover = tally.end(waiting, now_s)
        if (served and self.other_listeners(self._port)) or not waiting:
            self._close(parked, tally)
            return handover
        self.step, self._closing_s = Step.REFUSING, now_s + _TURN_AWAY_S
        return replace(handover, refused=tally.refused + waiting)

    async def released(self) -> None:
        """Wait until all that was turned away has its answer, within the limit."""
        watching = self._watching if self._closing_s is not None else None
        if tasks := {*self._answers, *filter(None, (watching,))}:
            await asyncio.wait(tasks, timeout=_TURN_AWAY_S)
        if self._answers:
            await asyncio.wait(self._answers, timeout=_TURN_AWAY_S)

    def _close(self, parked: ParkedPort, tally: Tally) -> None:
        log.info(
            "the port is no longer parked",
            connections=parked.queued(),
            refused=tally.refused,
            parked_s=round(self._clock.monotonic_s() - self._parked_s, 1),
            was=self.step,
        )
        if self._watching is not None:
            self._watching.cancel()
        parked.close()
        self._live.drain(on=False)
        self._parked, self._watching, self._tally, self._closing_s, self.step = None, None, None, None, Step.OPEN

    async def _watch(self, parked: ParkedPort, hold_s: float) -> None:
        """Answer with 503 what the kernel has no room for, and past the limit all of it.

        The kernel's queue is one: the first that came are the first that are taken out of it.
        """
        room = int(longest_queue() * _ROOM)
        while (tally := self._tally) is not None:
            tally.look(parked.queued(), self._clock.monotonic_s())
            if self.step is not Step.REFUSING and self._clock.monotonic_s() - self._parked_s >= hold_s:
                log.warning("connections waited for engine.hold_timeout and get 503", connections=parked.queued())
                self.step = Step.REFUSING
            self._refuse(parked, AT_ONCE if self.step is Step.REFUSING else parked.queued() - room, tally)
            if self._closing_s is not None and (not parked.queued() or self._clock.monotonic_s() > self._closing_s):
                self._close(parked, tally)
                return
            await asyncio.sleep(_POLL_S)

    def _refuse(self, parked: ParkedPort, count: int, tally: Tally) -> None:
        """Begin to answer so many of those that wait, as far as they can be answered at once."""
        for _ in range(min(count, AT_ONCE - len(self._answers))):
            try:
                connection, _ = parked.listener.accept()
            except OSError:  # none waits, or no descriptor is left
                return
            connection.setblocking(False)  # noqa: FBT003 - socket's signature
            answer = asyncio.ensure_future(hang_up(connection) if self._tls else refuse(connection))
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)
            tally.refused += 1
