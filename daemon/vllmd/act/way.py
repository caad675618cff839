"""The way of a launch: its port is free, and the GPU's memory is back, each within a limit."""

import asyncio
from dataclasses import dataclass

import structlog

from vllmd.act.launcher import Launcher
from vllmd.act.planned_restart import PlannedRestart
from vllmd.act.port import holders, is_free
from vllmd.act.session import Session
from vllmd.model.server import LaunchRefused
from vllmd.ports import Clock, GpuReader

log = structlog.get_logger()

_POLL_S = 0.2  # between looks at ports and devices, which send no event
_PORT_WAIT_S = 10.0  # for our own former listener to close
_GPU_WAIT_S = 60.0  # for the driver to give the memory of dead processes back


@dataclass(frozen=True, slots=True)
class Way:
    """What a launch needs of the host. `bound`: it holds the port already, not listening; `over` ends every wait."""

    launcher: Launcher
    session: Session
    planned: PlannedRestart
    gpu: GpuReader
    clock: Clock
    over: asyncio.Event
    bound: bool

    async def refused(self, generation: int) -> LaunchRefused | None:
        """Wait until a launch may begin; return why it may not.

        A driver that still shows memory of dead processes after the limit is left to vLLM's own check.
        """
        if not await self._port_is_decided() or not self._port_is_free():
            return LaunchRefused(generation, "port-taken", *self._who_has_the_port())
        deadline = self.clock.monotonic_s() + _GPU_WAIT_S
        while await self._holds_gpu() and not self.over.is_set():
            if self.clock.monotonic_s() > deadline:
                log.warning("NVML still shows memory of processes that have ended", waited_s=_GPU_WAIT_S)
                break
            await asyncio.sleep(_POLL_S)
        return None

    async def _port_is_decided(self) -> bool:
        """Wait until the port is free, or a process has it that is seen and is not ours: no use in waiting for that."""
        deadline = self.clock.monotonic_s() + _PORT_WAIT_S
        while not self._port_is_free() and all(self.session.is_ours(pid) for pid in self._holders_of_the_port()):
            if self.clock.monotonic_s() > deadline or self.over.is_set():
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def _port_is_free(self) -> bool:
        if self.planned.turns_away:
            return False
        if self.planned.parked or self.bound:
            return not self.planned.other_listeners(self.launcher.port)
        return is_free(self.launcher.host, self.launcher.port)

    def _holders_of_the_port(self) -> dict[int, str]:
        return holders(self.planned.other_listeners(self.launcher.port))

    def _who_has_the_port(self) -> tuple[str, str]:
        """Return the reason in words, and the holder."""
        found = self._holders_of_the_port()
        who = ", ".join(f"pid {pid} {name}" for pid, name in found.items()) or "a process that cannot be seen"
        return f"port {self.launcher.port} is taken by {who}, which is not ours", who

    async def _holds_gpu(self) -> bool:
        """Whether NVML still shows memory of our former processes, dead as they are."""
        if self.session.record is None:
            return False
        gpus = await self.gpu.read()
        return any(p.ours for gpu in gpus or () for p in gpu.processes)
