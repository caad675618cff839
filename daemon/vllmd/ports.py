"""The ports: what the loop needs of the world. Every I/O part implements one; tests bring their own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vllmd.model.decision import Change, Hold, Outcome, Verification
from vllmd.model.failure import Failure
from vllmd.model.flags import Flags
from vllmd.model.handover import Handover
from vllmd.model.live import Live
from vllmd.model.orders import Forget, Pause, Resume, SetLive
from vllmd.model.server import Launch, Left, ServerEvent
from vllmd.model.snapshot import Gpu, Metrics
from vllmd.model.start_times import Started
from vllmd.model.status import DecisionRecord
from vllmd.model.tried import Good, Tried

# What the ledger stores.
Entry = Launch | Failure | Change | Hold | Outcome | Verification | Good | Pause | Resume | Forget | SetLive | Started


class Clock(Protocol):
    """Time. `now_s` is unix time, `monotonic_s` never jumps."""

    def now_s(self) -> float:
        """Return unix time in seconds."""

    def monotonic_s(self) -> float:
        """Return seconds of a clock that only goes forward."""


class LiveValues(Protocol):
    """What can be changed in the running server at once, and what its engine tells of its steps."""

    def read(self) -> Live:
        """Return what is told now."""

    def ask(self, flag: str, value: int | None) -> None:
        """Ask for a value from the engine's next step on; None is what was launched."""


class Server(Protocol):
    """The supervised server. Slow work runs as its own task; its end comes back through `events`."""

    @property
    def live(self) -> LiveValues:
        """What can be changed at once."""

    async def events(self) -> ServerEvent:
        """Wait for the next event of the current launch."""

    def launch(self, launch: Launch) -> None:
        """Begin a launch; Spawned, then Ready, Exited or StartStalled follow, or LaunchRefused alone."""

    def no_gate(self, flags: Flags) -> str | None:
        """Return why a launch with these flags cannot be prepared beside the server; None where it can."""

    def prepare(self, launch: Launch) -> None:
        """Begin a launch beside the server, up to its gate: AtGate follows, or GateMissed, Exited or LaunchRefused.

        At its gate it waits until the server has ended and `launch` is called with it.
        """

    def give_up(self) -> None:
        """End the launch that is prepared beside the server, if there is one; nothing follows."""

    def left(self) -> Left:
        """Return what an earlier vllmd left."""

    def adopt(self, launch: Launch) -> None:
        """Take over the launch that was left, without a signal; Spawned follows, then Ready or its end."""

    def stop(self) -> None:
        """Drain and stop the current launch; Exited(asked=True) follows."""

    def restart(self) -> None:
        """Drain and stop the current launch, while connections wait for the next; Exited(asked=True) follows."""

    def plain_restart(self, flags: Flags) -> str | None:
        """Return why connections cannot wait through a restart of the server with these flags; None where they can."""

    @property
    def parked(self) -> bool:
        """Whether connections wait for the next launch."""

    def release(self) -> Handover | None:
        """Let no connection wait any longer for a next launch; return how the restart went, None without one."""

    def end(self, silent_s: float, reason: str) -> None:
        """End a serving launch that stands still, at once and without a drain; Hung follows, or Exited if it ended."""

    def kill(self) -> None:
        """End a launch that is being stopped without waiting for its drain."""


class Scraper(Protocol):
    """The server's metrics."""

    async def scrape(self) -> Metrics | None:
        """Return what /metrics says, None if it does not answer in time or is not a metrics page."""


class GpuReader(Protocol):
    """The GPUs' memory."""

    async def read(self) -> tuple[Gpu, ...] | None:
        """Return every GPU; None where there is no NVML, or when it does not answer in time."""


class Ledger(Protocol):
    """What was tried and how it ended, kept across restarts of the daemon. What it stored is not lost.

    `problem` says why it cannot store now, None while it can.
    """

    @property
    def problem(self) -> str | None:
        """Why nothing can be stored."""

    def next_decision_id(self) -> str:
        """Return an unused decision id ("D1", "D2", …)."""

    def next_generation(self) -> int:
        """Return an unused generation number, from 1."""

    def record(self, entry: Entry, at_s: float) -> None:
        """Store one entry."""

    def changes(self, since_s: float) -> Sequence[Change]:
        """Return the changes since a time, oldest first."""

    def failures_since(self, since_s: float) -> Sequence[tuple[float, Failure]]:
        """Return the failures since a time, each after its unix time, oldest first."""

    def recent(self, limit: int = 20) -> Sequence[DecisionRecord]:
        """Return the last changes with what became of them, oldest first."""

    def moves(self) -> Sequence[Change]:
        """Return the changes that were carried out and may have moved flags, oldest first."""

    def harmed(self) -> Sequence[Change]:
        """Return the changes that did harm or did not serve and are not to be forgotten, oldest first."""

    def tried(self, fingerprint: str) -> Sequence[Tried]:
        """Return the launches with this fingerprint that are not to be forgotten, newest first, secrets masked."""

    def launch_of(self, generation: int) -> Launch | None:
        """Return a launch, secrets masked; None if it is not known."""

    def starts(self, fingerprint: str, limit: int) -> Sequence[Started]:
        """Return the last starts with this fingerprint that came to serve, newest first."""

    def pause(self) -> Pause | None:
        """Return the last pause that was not ended; it may have run out."""

    def live_orders(self, generation: int) -> Sequence[SetLive]:
        """Return what was set live in a generation, and what decisions set in any and keep, oldest first."""


class Notifier(Protocol):
    """The service manager."""

    def ready(self) -> None:
        """Say that the daemon is up."""

    def reloading(self, now_us: int) -> None:
        """Say that the configuration is being read again, until the next `ready`."""

    def status(self, text: str) -> None:
        """Say in one line what goes on."""

    def alive(self) -> None:
        """Say that the loop still does its work."""

    def stopping(self) -> None:
        """Say that the daemon is going down."""


@dataclass(frozen=True, slots=True)
class Launched:
    """What became of a launch on a plant."""

    ready_after_s: float | None  # None: it never served
    exit_code: int | None  # None: still running
    log: str  # what the server printed until ready, or until its end


@dataclass(frozen=True, slots=True)
class Reading:
    """What can be seen of a plant at one moment."""

    metrics: str | None  # a /metrics page as vLLM prints it; None: not answering
    gpu_used_bytes: int
    gpu_total_bytes: int
    log: str  # printed since the last reading
    exit_code: int | None  # the server's, if it has ended


class Plant(Protocol):
    """One simulated host. Made as CLASS(scenario, seed); time starts at 0; advance() and launch() move it."""

    def launch(self, argv: Sequence[str]) -> Launched:
        """Stop what runs (draining as vLLM would), start this argv, advance to ready or to the failure."""

    def advance(self, seconds: float) -> Reading:
        """Serve for that long, then read. Readings every 5 s are usual."""

    def set_live(self, flag: str, value: int) -> bool:
        """Move a flag without a restart (max-num-scheduled-tokens, max-num-active-seqs). False: it cannot."""

    def now_s(self) -> float:
        """Return virtual time."""

    def truth(self) -> Mapping[str, Any]:
        """Return, at the end: requests, good_requests, lost_requests, down_s, launches, crashes, by_minute lists."""

    def best_static(self) -> Mapping[str, Any]:
        """Return the scenario's best fixed flags by exhaustive runs: {"flags": …, "good_requests": n}."""
