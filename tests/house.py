"""A loop with fakes at every port: what the daemon builds, without a process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fakes import FakeClock, FakeServer, MemoryLedger
from vllmd.loop import Loop
from vllmd.model.argv import parse_command
from vllmd.model.flags import Flags
from vllmd.model.instance import Instance
from vllmd.model.masking import Masker
from vllmd.model.options import Arity, Catalogue, Option
from vllmd.model.server import AtGate, Exited, GateMissed, Ready
from vllmd.model.settings import Bounds, Budget, Guard, Mode, Modes, Settings, Slo
from vllmd.model.snapshot import Snapshot
from vllmd.model.status import Status
from vllmd.report.journal import Journal
from vllmd.supervisor import Logs, Supervisor
from vllmd_policies import BUILT_IN

OPTIONS: Mapping[str, Arity] = {
    "gpu-memory-utilization": Arity.ONE,
    "max-model-len": Arity.ONE,
    "max-num-batched-tokens": Arity.ONE,
    "max-num-seqs": Arity.ONE,
    "enforce-eager": Arity.BOOLEAN,
    "enable-chunked-prefill": Arity.BOOLEAN,
    "shutdown-timeout": Arity.ONE,
    "enable-sleep-mode": Arity.BOOLEAN,
    "api-key": Arity.MANY,
    "port": Arity.ONE,
    "distributed-executor-backend": Arity.ONE,
}
CATALOGUE = Catalogue({n: Option(n, (f"--{n}",), arity) for n, arity in OPTIONS.items()}, "0.33.0")
ARGV = ("vllm", "serve", "model", "--gpu-memory-utilization=0.9", "--max-num-batched-tokens=2048")


def settings(slo: Slo, latency: Mode = Mode.ACTIVE, budget: Budget | None = None) -> Settings:
    """Return settings that let every flag of the tests move."""
    guard = Guard(
        {
            "gpu-memory-utilization": Bounds(0.1, 0.95),
            "max-num-batched-tokens": Bounds(256, None),
            "enforce-eager": Bounds(),
        }
    )
    return Settings(modes=Modes(Mode.ACTIVE, latency), slo=slo, guard=guard, budget=budget or Budget(soak_s=60.0))


@dataclass
class House:
    """The loop, and what its parts can be asked afterwards."""

    loop: Loop
    clock: FakeClock
    server: FakeServer
    ledger: MemoryLedger
    told: list[Status]
    log: list[str]

    @property
    def state(self) -> str:
        """The state of the server."""
        return self.loop.supervisor.life.state.value

    @property
    def flags(self) -> Flags:
        """The flags in force."""
        return self.loop.supervisor.flags

    def ready(self) -> None:
        """Let the launch serve."""
        assert self.server.living is not None
        self.loop.on_event(Ready(self.server.living.generation, self.server.release()))

    def dies(self, code: int | None, *log: str) -> None:
        """Let the server end by itself, having printed these lines."""
        self.log[:] = log
        self.loop.on_event(Exited(self.server.ended(), code, asked=False))

    def at_gate(self) -> None:
        """Let what is prepared beside the server wait at its gate."""
        assert self.server.prepared is not None
        self.loop.on_event(AtGate(self.server.prepared.generation))

    def misses_gate(self, reason: str) -> None:
        """Let what is prepared beside the server be ended, because it does not come to its gate."""
        assert self.server.prepared is not None
        generation, self.server.prepared = self.server.prepared.generation, None
        self.loop.on_event(GateMissed(generation, reason))

    def dies_beside(self, code: int | None, *log: str) -> None:
        """Let what is prepared beside the server end by itself, having printed these lines."""
        assert self.server.prepared is not None
        self.log[:] = log
        generation, self.server.prepared = self.server.prepared.generation, None
        self.loop.on_event(Exited(generation, code, asked=False))

    def hung(self) -> None:
        """Let the end of a server that hangs come about."""
        assert self.server.hung is not None
        self.server.ended()
        self.loop.on_event(self.server.hung)

    def drained(self) -> None:
        """Let a stop that was asked for come to its end."""
        assert self.server.stopping
        self.loop.on_event(Exited(self.server.ended(), 0, asked=True))

    def tick(self, snapshot: Snapshot | None = None, after_s: float = 5.0) -> None:
        """Let time pass, then hand in a reading (one without metrics by default)."""
        self.clock.at_s += after_s
        launch = self.loop.supervisor.life.launch
        generation = launch.generation if launch else 0
        empty = Snapshot(self.clock.at_s, generation, None, None)
        self.loop.tick(empty if snapshot is None else replace(snapshot, generation=generation))


def house(chosen: Settings, argv: Sequence[str] = ARGV, ledger: MemoryLedger | None = None) -> House:
    """Build a house that has not begun; with the ledger of an earlier one, its next daemon."""
    clock, server, ledger = FakeClock(), FakeServer(), ledger or MemoryLedger()
    told: list[Status] = []
    log: list[str] = []
    masker = Masker.from_launch(argv, {})
    instance = Instance(
        chosen, parse_command(argv, 2, CATALOGUE), CATALOGUE, masker, "http://127.0.0.1:8000", simulated=False
    )
    journal = Journal(ledger, masker)
    logs = Logs(lambda n: Path(f"/logs/{n}"), lambda _: log, lambda _: ())
    supervisor = Supervisor(instance, server, clock, journal, logs)
    loop = Loop(supervisor, journal, clock, BUILT_IN, told.append)
    return House(loop, clock, server, ledger, told, log)
