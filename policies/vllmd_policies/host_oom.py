"""The host's memory ran out: fewer compilers at once, a smaller tier in host memory, else the operator's limit.

No flag of the GPU's memory helps here, and none is touched, except where the GPU's memory is the host's.
"""

import json
from typing import Any

from vllmd.decide.numbers import GIB, show_bytes
from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.flags import UTILIZATION, parse_number
from vllmd.model.server import Phase
from vllmd_policies.memory_arithmetic import CPU_SPACE, lowered_utilization, may_move, on_cpu, proposal, show

_JOBS = "MAX_JOBS"
_TRANSFER = "kv-transfer-config"
_EXTRA = "kv_connector_extra_config"
_TIER = "cpu_bytes_to_use"
# Flags whose value is memory of the host, in the order of what they cost to halve.
_LARGEST_BYTES = 2**60
_HOST_MEMORY = ("kv-offloading-size", "swap-space", "cpu-offload-gb", "mm-processor-cache-gb")


def host_oom(situation: Situation) -> Proposal | None:
    """Wish for what takes less of the host's memory; where nothing of it is a flag's, for the operator."""
    failure = situation.failure
    if failure is None or failure.kind is not FailureClass.HOST_OOM:
        return None
    if failure.cause == "compiling":
        return _fewer_jobs(situation, failure)
    return (
        _smaller_tier(situation, failure)
        or _halved(situation, failure)
        or _smaller_pool(situation, failure)
        or _once_more(situation, failure)
        or _stop(situation, failure)
    )


def _fewer_jobs(situation: Situation, failure: Failure) -> Proposal:
    """Compile with as many jobs as fit beside what is loaded: on unified memory the weights take the host's."""
    host, known = situation.host, situation.thresholds
    jobs = known.compile_jobs
    total = host.memory_limit_gib or host.host_total_gib
    if total is not None:
        weights = failure.numbers.get("weights_bytes", 0.0) / GIB if host.shares_memory else 0.0
        fitting = int((total - weights - known.host_kept_gib) / known.compile_job_gib)
        jobs = max(1, min(jobs, fitting))
    before = parse_number(host.environ.get(_JOBS, ""))
    if before is not None and jobs >= before:
        jobs = max(1, int(before) // 2)
    reason = f"{failure.summary}; {_JOBS}={jobs}, then the same again: what is compiled is kept"
    return proposal("host_oom", failure, Wish.SET_ENV, reason, env={_JOBS: str(jobs)})


def _smaller_tier(situation: Situation, failure: Failure) -> Proposal | None:
    """Halve the host's part of the KV cache in a connector's configuration."""
    written = situation.flags.get(_TRANSFER)
    if not isinstance(written, str) or not may_move(situation, _TRANSFER):
        return None
    try:
        config: Any = json.loads(written)
    except ValueError:
        return None
    extra: Any = config.get(_EXTRA) if isinstance(config, dict) else None
    size: Any = extra.get(_TIER) if isinstance(extra, dict) else None
    if not isinstance(size, int) or not 1 < size < _LARGEST_BYTES:
        return None
    halved = {**config, _EXTRA: {**extra, _TIER: int(size) // 2}}
    reason = f"{failure.summary}; {_TIER} {show_bytes(size)} -> {show_bytes(size // 2)}"
    return proposal("host_oom", failure, Wish.CHANGE_FLAGS, reason, {_TRANSFER: json.dumps(halved)})


def _halved(situation: Situation, failure: Failure) -> Proposal | None:
    """Halve the first flag that takes memory of the host."""
    for name in _HOST_MEMORY:
        size = situation.flags.number(name)
        if size is not None and size > 0 and may_move(situation, name):
            reason = f"{failure.summary}; {name} {size:g} -> {size / 2:g}"
            return proposal("host_oom", failure, Wish.CHANGE_FLAGS, reason, {name: f"{size / 2:g}"})
    return None


def _smaller_pool(situation: Situation, failure: Failure) -> Proposal | None:
    """Shrink the KV pool where it lies in the host's memory: on the CPU backend, and where the GPU shares it."""
    space = parse_number(situation.host.environ.get(CPU_SPACE, ""))
    if on_cpu(situation, failure) and space is not None and space > 1 and not situation.supervised:
        reason = f"{failure.summary}; {CPU_SPACE} {space:g} -> {space // 2:g}"
        return proposal("host_oom", failure, Wish.SET_ENV, reason, env={CPU_SPACE: f"{space // 2:g}"})
    if not situation.host.shares_memory and not on_cpu(situation, failure):
        return None
    target = lowered_utilization(situation, failure, None, situation.thresholds.shared_step)
    if target is None:
        return None
    reason = f"{failure.summary}; {UTILIZATION} -> {show(target)}, since the pool lies in the same memory"
    return proposal("host_oom", failure, Wish.CHANGE_FLAGS, reason, {UTILIZATION: show(target)})


def _once_more(situation: Situation, failure: Failure) -> Proposal | None:
    """Start a server again that had served: a peak of the host's memory may be over. A few times, then it is not."""
    served = failure.phase is Phase.SERVING and situation.supervised
    if not served or situation.repeats >= situation.thresholds.patience:
        return None
    reason = f"{failure.summary}; no flag helps, so it is started again as it was"
    return proposal("host_oom", failure, Wish.WAIT_THEN_RETRY, reason)


def _stop(situation: Situation, failure: Failure) -> Proposal:
    """Name the limit."""
    limit = situation.host.memory_limit_gib
    what = f"the limit of {limit:g} GiB" if limit else "its limit, or the host's memory"
    advice = f"give the server more memory of the host: raise {what}; no flag of the GPU's memory helps"
    return proposal("host_oom", failure, Wish.STOP, f"{failure.summary}; {advice}")
