"""What a policy may read, gathered from what the loop knows."""

from collections.abc import Mapping
from dataclasses import replace

from vllmd.decide.numbers import GIB
from vllmd.decide.vllm_defaults import batch_defaults, chunked_prefill_default
from vllmd.model.decision import Assessment, Situation
from vllmd.model.failure import Failure
from vllmd.model.flags import UTILIZATION, Flags
from vllmd.model.host_facts import HostFacts
from vllmd.model.instance import Instance
from vllmd.model.launch_end import LaunchEnd, ProcessState
from vllmd.model.server import Exited, Phase, StartStalled
from vllmd.model.snapshot import Snapshot
from vllmd.model.status import StartFacts

_JUST_ABOVE = 0.001  # of utilization: the finest step that is ever computed


def end_of(
    event: Exited | StartStalled, phase: Phase, flags: Flags, instance: Instance, snapshot: Snapshot | None
) -> LaunchEnd:
    """Return what is known of a launch's end, which nobody asked for, or of a start that stands still."""
    return LaunchEnd(
        generation=event.generation,
        exit_code=event.exit_code if isinstance(event, Exited) else None,
        state=ProcessState.EXITED if isinstance(event, Exited) else ProcessState.STARTING,
        phase=phase,
        flags=flags,
        version=instance.catalogue.version,
        host=replace(
            host_facts_of(snapshot),
            stop_requested=False,
            cgroup_oom_kill=event.oom_kills if isinstance(event, Exited) else None,
        ),
    )


def host_facts_of(snapshot: Snapshot | None) -> HostFacts:
    """Return what the last reading says of the host."""
    gpus = snapshot.gpus if snapshot else None
    if not gpus:
        return HostFacts()
    smallest = min(gpus, key=lambda g: g.total_bytes)
    return HostFacts(hardware=smallest.name, gpu_total_gib=smallest.total_bytes / GIB, gpu_count=len(gpus))


def situation_of(
    instance: Instance,
    flags: Flags,
    start: StartFacts,
    snapshot: Snapshot | None,
    *,
    failure: Failure | None = None,
    assessment: Assessment | None = None,
    repeats: int = 0,
    too_low: float | None = None,
    quiet: bool = False,
    recovered: Mapping[str, str] | None = None,
) -> Situation:
    """Return the situation: effective values come from the start log where it tells them, else from vLLM's defaults.

    `too_low` is a utilization at which this host's pool was too small: nothing lowers it as far again.
    """
    gpus = snapshot.gpus if snapshot else None
    batched_tokens, sequences = batch_defaults(gpus, flags, instance.catalogue.version)
    smallest = min(gpus, key=lambda g: g.free_bytes) if gpus else None
    guard = instance.settings.guard
    bounds = {n: (b.low, b.high) for n, b in guard.bounds.items() if n not in guard.frozen}
    if too_low is not None and UTILIZATION in bounds:
        low, high = bounds[UTILIZATION]
        bounds[UTILIZATION] = (max(low or 0.0, too_low + _JUST_ABOVE), high)
    return Situation(
        baseline=instance.baseline,
        flags=flags,
        failure=failure,
        assessment=assessment,
        repeats=repeats,
        chunked_prefill_default=chunked_prefill_default(instance.catalogue.version),
        batched_tokens=start.batched_tokens or batched_tokens,
        max_num_seqs=sequences,
        bounds=bounds,
        gpu_free_bytes=smallest.free_bytes if smallest else None,
        gpu_total_bytes=smallest.total_bytes if smallest else None,
        version=instance.catalogue.version,
        host=host_facts_of(snapshot),
        quiet=quiet,
        recovered=recovered or {},
        thresholds=instance.thresholds,
    )
