"""Whether an engine that has work makes no step, by its heartbeat: one step is shorter than the prefill of a prompt.

Its words are memory, so that they are looked at every second and cost nothing. In order: no heartbeat of ours, or no
request that ran in its last step → nothing is known (with some that only wait an engine makes steps, or waits for what
their clients still send) · another launch, or nobody looked for too long → the silence begins with this look · a step
was made → it begins with that step · else it goes on. A reading adds what no word tells: a page that did not answer, or
a server without any request → no verdict · a sleeping or paused engine, or a compiler at work → the silence begins anew
· one of its processes computes, or reads a disk → it may be at a step of a kind that was never made before (a kernel
built inside the process, an adapter's weights), and nothing tells that from a hang but the operator's limit · one of
them is stopped → it hangs, once the silence is longer than any step · all stand still → likewise, but they may sleep
until a device has done a step (vLLM 0.32 waits so), of a length that was never seen before: it has longer.
"""

from dataclasses import dataclass, replace

from vllmd.decide.hang import asleep
from vllmd.model.flags import Flags
from vllmd.model.live import Heartbeat
from vllmd.model.snapshot import Snapshot

# Measured with vLLM 0.32 on CPU: 0.96 s was the longest step of an 8,000-token prompt, the engine's first ones took 2.3
# to 3.2 s; five times the longest leaves room for a prompt whose last chunk looks back at ten times as much.
_FLOOR_S = 5.0
_LONGEST_FACTOR = 5.0
# Where nobody is stopped: a single step of 128,000 tokens, or one through offloaded weights, takes some ten seconds.
_STILL_FLOOR_S = 30.0
_STILL_LONGEST_FACTOR = 10.0
# Of a core: a stopped engine uses none, the threads beside a deadlocked one wake up for a tick now and then.
_STANDS_STILL = 0.05
_WATCHED_PART = 0.5  # of the limit, in which the processes were seen to stand still: from then on they are looked at
_EXECUTOR = "distributed-executor-backend"
_OWN_EXECUTORS = frozenset({"mp", "uni", "external_launcher"})


@dataclass(frozen=True, slots=True)
class Pulse:
    """The silence of one engine's heartbeat. Times in seconds by the monotonic clock.

    `beat` is what it told at the last look, None where nothing is known; `since_s` when its silence began, `last_s`
    the last look. `still_from_s` is the first reading since which its processes stand still, with their `cpu_s` then;
    `stopped`: one of them by a signal.
    """

    generation: int = 0
    beat: Heartbeat | None = None
    since_s: float = 0.0
    last_s: float = 0.0
    still_from_s: float | None = None
    cpu_s: float = 0.0
    stopped: bool = False

    @property
    def silent_s(self) -> float:
        """From the last step, or the look that began the row, to the last look, in seconds."""
        return self.last_s - self.since_s if self.beat is not None else 0.0


def felt(before: Pulse, beat: Heartbeat | None, generation: int, now_s: float, gap_s: float) -> Pulse:
    """Return the pulse with one more look; looks further apart than `gap_s` seconds are no row."""
    if beat is None or beat.running == 0:
        return Pulse(generation, last_s=now_s)
    if before.generation != generation or now_s - before.last_s > gap_s:
        return Pulse(generation, beat, now_s, now_s)
    if before.beat is None or (before.beat.steps, before.beat.step_s) != (beat.steps, beat.step_s):
        return Pulse(generation, beat, min(now_s, max(beat.step_s, before.last_s)), now_s)
    return replace(before, beat=beat, last_s=max(now_s, before.last_s))


def explained(pulse: Pulse, snapshot: Snapshot) -> Pulse:
    """Return the pulse with what a reading tells of its silence."""
    activity, now_s = snapshot.activity, pulse.last_s
    asleep_now = snapshot.metrics is not None and asleep(snapshot.metrics)
    if snapshot.paused or snapshot.compiling or asleep_now:
        return replace(pulse, since_s=now_s, still_from_s=None)
    if activity is None:
        return replace(pulse, still_from_s=None)
    still = pulse.still_from_s is not None and not activity.disk
    if still and not activity.stopped:
        watched_s = now_s - (pulse.still_from_s or 0.0)
        still = abs(activity.cpu_s - pulse.cpu_s) <= _STANDS_STILL * watched_s
    if not still:
        pulse = replace(pulse, still_from_s=now_s, cpu_s=activity.cpu_s)
    return replace(pulse, stopped=activity.stopped)


def limit_s(pulse: Pulse, stall_timeout_s: float, *, stopped: bool) -> float:
    """Return how long a silence may last, in seconds: longer than any step, and no longer than the operator's limit.

    `stopped`: of an engine one of whose processes is; else of one that stands still.
    """
    longest_s = pulse.beat.longest_s if pulse.beat is not None else 0.0
    floor_s, factor = (_FLOOR_S, _LONGEST_FACTOR) if stopped else (_STILL_FLOOR_S, _STILL_LONGEST_FACTOR)
    return min(stall_timeout_s, max(floor_s, factor * longest_s))


def hangs(pulse: Pulse, snapshot: Snapshot, stall_timeout_s: float) -> bool:
    """Whether the engine hangs, by its pulse as this reading explained it."""
    if not _asked_for_something(snapshot) or pulse.still_from_s is None:
        return False
    longest_s, watched_s = limit_s(pulse, stall_timeout_s, stopped=pulse.stopped), pulse.last_s - pulse.still_from_s
    return pulse.silent_s > longest_s and watched_s >= _WATCHED_PART * longest_s


def _asked_for_something(snapshot: Snapshot) -> bool:
    """Whether the API server shows requests, too: an engine's words would tell of old ones, if its last step did.

    The page tells of none in the first step of the first one, and of none that an engine did not answer since.
    """
    if snapshot.metrics is None:
        return False
    gauges = snapshot.metrics.gauges
    on_page = gauges.get("requests_running", 0.0) + gauges.get("requests_waiting", 0.0)
    return on_page + (snapshot.in_flight or 0) > 0


def told(pulse: Pulse) -> str:
    """Return what shows that the engine hangs, as a sentence of the operator's."""
    silent = f"no heartbeat of its engine for {pulse.silent_s:.1f} s"
    if pulse.beat is None:
        return silent
    requests = f"{pulse.beat.running} requests running and {pulse.beat.waiting} waiting"
    return f"{silent} with {requests}; its longest step took {pulse.beat.longest_s:.1f} s"


def is_seen(flags: Flags) -> bool:
    """Whether all that an engine with these flags waits for shows in its server's own processes.

    Under Ray, and on other nodes, the workers are none of them; and an adapter that a worker fetches from a hub between
    two steps (lora/utils.py, get_adapter_absolute_path) shows as no work of anybody's.
    """
    return flags.get(_EXECUTOR, "mp") in _OWN_EXECUTORS and not {"enable-lora", "nnodes"} & set(flags)
