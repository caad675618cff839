"""One reading of everything, and the window of readings of one generation. Unread is None, never 0."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vllmd.model.live import Heartbeat


@dataclass(frozen=True, slots=True)
class Histogram:
    """A cumulative histogram: `buckets` as (upper edge in base units, cumulative count), rising, +Inf last."""

    buckets: tuple[tuple[float, float], ...]
    count: float
    sum: float

    def minus(self, earlier: "Histogram") -> "Histogram":
        """Return what was observed since `earlier` (same edges, same process)."""
        before = dict(earlier.buckets)
        return Histogram(
            tuple((edge, max(0.0, n - before.get(edge, 0.0))) for edge, n in self.buckets),
            max(0.0, self.count - earlier.count),
            self.sum - earlier.sum,
        )


@dataclass(frozen=True, slots=True)
class Metrics:
    """What vLLM's /metrics page said, summed over engines and API servers.

    Names are vllmd's own (`observe.metric_names` maps vLLM's names of each version to them):
    gauges: requests_running, requests_waiting, kv_cache_usage (0..1), awake (0: an engine sleeps; vLLM 0.12 and later);
    counters: prompt_tokens, generation_tokens, requests_succeeded, requests_failed, preemptions, steps;
    histograms: itl, ttft (seconds); info: labels of vllm:cache_config_info.
    """

    gauges: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    info: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()  # names that vllmd reads and the page did not have


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds GPU memory; `used_bytes` is None where the driver does not say."""

    pid: int
    used_bytes: int | None
    name: str
    ours: bool


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU's memory as NVML reports it, in bytes."""

    index: int
    uuid: str
    name: str
    total_bytes: int
    used_bytes: int
    processes: tuple[GpuProcess, ...] = ()
    driver: str | None = None  # its version

    @property
    def free_bytes(self) -> int:
        """Memory that nothing holds."""
        return self.total_bytes - self.used_bytes

    @property
    def own_bytes(self) -> int:
        """Memory that the supervised server holds, as far as the driver says."""
        return sum(process.used_bytes or 0 for process in self.processes if process.ours)


@dataclass(frozen=True, slots=True)
class Activity:
    """What an engine and its workers do: CPU time so far, and whether one of them is stopped, or reads a disk.

    `stopped`: by a signal (T in proc(5)); `disk`: it waits where no signal comes through (D), as for a page of a file.
    """

    cpu_s: float
    stopped: bool = False
    disk: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading: time in seconds (unix), the generation it belongs to, and what could be read.

    `monotonic_s` is the same moment by a clock that nobody sets, None where it was not read; `paused` whether somebody
    had vLLM itself keep its requests waiting, None where that was not asked, or not answered; `compiling` whether a
    compiler computes among its processes, None where nobody looked; `answers` whether the
    server answered anything, None where it was not asked, and `asked_s` when it was, by the monotonic clock;
    `leader_cpu_s` is the CPU time of its main process so far; `activity` what its engine does, None where nobody
    looked; `beat` the heartbeat of an engine of this launch, None where it has none; `in_flight` the requests
    that its API server has, None where they are not counted.
    """

    at_s: float
    generation: int
    metrics: Metrics | None  # None: /metrics did not answer
    gpus: tuple[Gpu, ...] | None  # None: no NVML
    host_free_bytes: int | None = None
    host_total_bytes: int | None = None
    monotonic_s: float | None = None
    paused: bool | None = None
    compiling: bool | None = None
    answers: bool | None = None
    asked_s: float | None = None
    leader_cpu_s: float | None = None
    activity: Activity | None = None
    beat: Heartbeat | None = None
    in_flight: int | None = None

    @property
    def free_bytes(self) -> float | None:
        """What a launch would find free on the fullest GPU: what is free now, and what our own server holds."""
        return min((float(gpu.free_bytes + gpu.own_bytes) for gpu in self.gpus or ()), default=None)


@dataclass(frozen=True, slots=True)
class Window:
    """Snapshots of one generation, oldest first; only those with metrics, no older than `span_s`."""

    span_s: float
    snapshots: tuple[Snapshot, ...] = ()

    def with_snapshot(self, snapshot: Snapshot) -> "Window":
        """Return the window with this reading; another generation or a counter that fell starts anew."""
        if snapshot.metrics is None:
            return self
        kept = self.snapshots
        if kept and (kept[-1].generation != snapshot.generation or _restarted(kept[-1], snapshot)):
            kept = ()
        oldest = snapshot.at_s - self.span_s
        first = max((i for i, s in enumerate(kept) if s.at_s <= oldest), default=0)
        return Window(self.span_s, (*kept[first:], snapshot))

    def since(self, at_s: float) -> "Window":
        """Return the part of the window from this time on."""
        return Window(self.span_s, tuple(s for s in self.snapshots if s.at_s >= at_s))


def _restarted(earlier: Snapshot, later: Snapshot) -> bool:
    """Whether a counter fell (another process answered under the same generation), or the clock did."""
    if later.at_s <= earlier.at_s:
        return True  # the clock was set back: spans across that moment mean nothing
    if earlier.metrics is None or later.metrics is None:
        return False
    before, after = earlier.metrics.counters, later.metrics.counters
    return any(after[name] < value for name, value in before.items() if name in after)
