"""A restart that loses no request: what comes meanwhile waits in the kernel, on the server's own port.

    open ─park─▶ draining ─no request in flight─▶ holding ─the next server is proved ready─▶ open
                    └──────────────┴──────────────── hold_timeout ─▶ refusing ─▶ open

Each step has its limit: draining drain_timeout (what is still in flight then is cut), the server's end and the start of
the next one those of every launch, all of it hold_timeout (then 503). The way back is always the same: `release` closes
the parked port, and what waits goes to the server that listens; it gets 503 where none does. A next server that fails
changes nothing here: the one after it gets what waits.
"""

import asyncio
import socket
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
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
from vllmd.model.flags import Flags, api_servers
from vllmd.observe.processes import listeners
from vllmd.ports import Clock

_POLL_S = 0.05  # between looks at words in memory, which send no event
_CALM_S = 0.5  # without a request in flight: one that was accepted before the port was parked has been read by then

log = structlog.get_logger()


class Step(StrEnum):
    """How far a planned restart is."""

    OPEN = "open"  # none is under way
    DRAINING = "draining"  # new connections wait, the old server finishes what it has
    HOLDING = "holding"  # no server is there for them
    REFUSING = "refusing"  # they waited for too long


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a planned restart, in seconds; `keep_alive_s` is how long the server keeps an idle connection."""

    drain_s: float
    hold_s: float
    keep_alive_s: float


class PlannedRestart:
    """The port of one server through its planned restarts."""

    def __init__(self, live: LiveBlock, clock: Clock) -> None:
        self._live = live
        self._clock = clock
        self._parked: ParkedPort | None = None
        self._parked_s = 0.0
        self._port = 0
        self._tls = False
        self._too_long: asyncio.TimerHandle | None = None
        self._refusing: asyncio.Task[None] | None = None
        self._answers: set[asyncio.Task[None]] = set()  # 503s that are being sent
        self.step = Step.OPEN

    @property
    def parked(self) -> bool:
        """Whether new connections wait for the next server."""
        return self._parked is not None

    def other_listeners(self, port: int) -> tuple[int, ...]:
        """Return the inodes of the sockets that listen on a port, but for the parked one."""
        own = self._parked.inode if self._parked is not None else None
        return tuple(inode for inode in listeners(port) if inode != own)

    def park(self, host: str, port: int, flags: Flags, limits: Limits) -> bool:
        """Let new connections wait; return whether they do. Where they cannot, the restart is a plain one."""
        refused = self.plain(flags)
        try:
            self._parked = None if refused else ParkedPort(host, port)
        except OSError as error:
            refused = f"the port cannot be bound a second time: {error.strerror}"
        if refused is not None:
            log.warning("the restart is a plain one: connections are refused until it is over", reason=refused)
            return False
        if (longest := longest_queue()) < BACKLOG:
            log.warning("few connections can wait: net.core.somaxconn is low", connections=longest)
        self.step, self._parked_s = Step.DRAINING, self._clock.monotonic_s()
        self._port, self._tls = port, "ssl-certfile" in flags
        self._too_long = asyncio.get_running_loop().call_later(limits.hold_s, self._held_for_too_long)
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
            )
        )

    async def drain(self, limits: Limits, ends: AbstractSet["asyncio.Future[Any]"]) -> None:
        """Wait until the parked server has no request and no connection that could bring one, within the limit.

        Over, too, when one of the futures is done (the server ended, an operator hurries), or the port is released.
        """
        self._live.drain(on=True)
        deadline = self._clock.monotonic_s() + limits.drain_s
        calm_since_s = self._clock.monotonic_s()
        while self.parked:
            now_s, traffic = self._clock.monotonic_s(), self._live.traffic()
            if traffic is None or traffic.in_flight:
                calm_since_s = now_s
            elif now_s - calm_since_s >= _CALM_S and now_s - traffic.kept_s >= limits.keep_alive_s:
                break
            if now_s > deadline:
                cut = traffic.in_flight if traffic is not None else None
                log.warning("requests are cut: they did not end within engine.drain_timeout", requests=cut)
                break
            done, _ = await asyncio.wait(ends, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
            if done:
                break
        if self.step is Step.DRAINING:
            self.step = Step.HOLDING

    def release(self) -> None:
        """Give what waits to the server that listens now, or answer it with 503 where none does."""
        parked = self._parked
        if parked is None:
            return
        held, waited_s = parked.queued(), self._clock.monotonic_s() - self._parked_s
        log.info("the port is no longer parked", connections=held, parked_s=round(waited_s, 1), was=self.step)
        if self._too_long is not None:
            self._too_long.cancel()
        if not self.other_listeners(self._port):
            self._refuse_waiting(parked)
        if self._refusing is None:
            parked.close()
        else:
            self._refusing.cancel()  # it closes the port, which it is waiting for
        self._live.drain(on=False)
        self._parked, self._too_long, self._refusing, self.step = None, None, None, Step.OPEN

    def _held_for_too_long(self) -> None:
        parked = self._parked
        if parked is not None:
            log.warning("connections waited for engine.hold_timeout and get 503", connections=parked.queued())
            self.step = Step.REFUSING
            self._refusing = asyncio.ensure_future(self._refuse_all(parked))

    async def _refuse_all(self, parked: ParkedPort) -> None:
        """Answer what waits and what comes, until the port is released."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    self._answer((await loop.sock_accept(parked.listener))[0])
                except OSError:  # no descriptor is left
                    await asyncio.sleep(_POLL_S)
                if len(self._answers) >= AT_ONCE:
                    await asyncio.wait(self._answers, return_when=asyncio.FIRST_COMPLETED)
        finally:
            parked.close()

    def _refuse_waiting(self, parked: ParkedPort) -> None:
        """Answer what waits now; beyond what is answered at once it is reset."""
        for _ in range(AT_ONCE):
            try:
                connection, _ = parked.listener.accept()
            except OSError:  # none waits, or no descriptor is left
                return
            connection.setblocking(False)  # noqa: FBT003 - socket's signature
            self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        answer = asyncio.ensure_future(hang_up(connection) if self._tls else refuse(connection))
        self._answers.add(answer)
        answer.add_done_callback(self._answers.discard)
