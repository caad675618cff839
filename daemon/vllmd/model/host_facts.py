"""What a supervisor knows about a launch besides its log: GPU, host, container, history. Every field may be unknown."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from vllmd.errors import VllmdError

_LARGEST = 1e9  # of any fact: GiB, counts, seconds
_ENVIRONMENT = "env_"
_GIB_IN_PROSE = re.compile(r"(\d+(?:\.\d+)?) GiB")
# Devices whose GPU shares the host's memory: NVIDIA's Jetson and GB10 (DGX Spark), AMD's APUs.
_UNIFIED = re.compile(r"unified|GB10|DGX Spark|Jetson|Orin|Tegra|Strix|APU\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """GPU, host, container and history of a launch. None: unknown.

    Sizes in GiB. `hardware` is prose ("1x NVIDIA H200 (139.8 GiB)"). `gpu_memory_utilization` is the one in force where
    the argv has none. `cgroup_oom_kill` counts the kernel's kills in the server's cgroup. `other_process` says in words
    whose the memory in `other_process_used_gib` is. `earlier_same_failures` are identical ones just before.
    `environ` holds the variables that the server had, as far as they are known.
    """

    hardware: str | None = None
    gpu_total_gib: float | None = None
    gpu_count: int | None = None
    weights_gib: float | None = None
    unified_memory: bool | None = None
    other_process_used_gib: float | None = None
    other_process: str | None = None
    other_engine_starting: bool | None = None
    gpu_memory_utilization: float | None = None
    host_total_gib: float | None = None
    cpu_cores: int | None = None
    memory_limit_gib: float | None = None
    cgroup_oom_kill: int | None = None
    docker_oom_killed: bool | None = None
    k8s_terminated_reason: str | None = None
    dmesg: str | None = None
    earlier_same_failures: int | None = None
    stop_requested: bool | None = None
    startup_probe_s: float | None = None
    recent_event: str | None = None
    flag_origin: str | None = None
    port_holder_pid: int | None = None
    port_holder_is_ours: bool | None = None
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def total_gib(self) -> float | None:
        """The GPU's memory, also where only the prose says it."""
        if self.gpu_total_gib is not None or self.hardware is None or "CPU" in self.hardware:
            return self.gpu_total_gib
        found = _GIB_IN_PROSE.search(self.hardware)
        return float(found[1]) if found else None

    @property
    def shares_memory(self) -> bool:
        """Whether the GPU's memory is the host's."""
        if self.unified_memory is not None:
            return self.unified_memory
        return bool(self.hardware and _UNIFIED.search(self.hardware))

    @property
    def oom_killed(self) -> bool | None:
        """Whether the kernel killed for want of host memory; None if nobody watched."""
        # The GPU's driver reports its own allocations in the same words, marked NVRM.
        kernel = [line for line in (self.dmesg or "").splitlines() if "NVRM" not in line]
        if any("Killed process" in line or "oom-kill" in line or "OOM killer" in line for line in kernel):
            return True
        reason = None if self.k8s_terminated_reason is None else self.k8s_terminated_reason == "OOMKilled"
        count = None if self.cgroup_oom_kill is None else self.cgroup_oom_kill > 0
        known = [word for word in (reason, count, self.docker_oom_killed) if word is not None]
        return any(known) if known else None


def read_host_facts(found: Mapping[str, Any]) -> HostFacts:
    """Return the facts of a flat mapping, `env_NAME` a variable, unknown keys ignored. VllmdError: a wrong type."""
    values: dict[str, Any] = {}
    for fact in fields(HostFacts):
        if fact.name != "environ" and (value := found.get(fact.name)) is not None:
            values[fact.name] = _read(fact.name, str(fact.type), value)
    environ = {
        key.removeprefix(_ENVIRONMENT): str(_read(key, "str", value))
        for key, value in found.items()
        if key.startswith(_ENVIRONMENT) and value is not None
    }
    return HostFacts(**values, environ=environ)


def _read(name: str, kind: str, value: Any) -> object:  # noqa: ANN401 - JSON of anybody
    """Return a value as its field's kind."""
    wanted = kind.partition(" ")[0].removeprefix("<class '").removesuffix("'>")
    try:
        match wanted:
            case "str" if isinstance(value, Sequence) and not isinstance(value, str):
                return "\n".join(str(part) for part in value)
            case "str" if not isinstance(value, Mapping):
                return str(value)
            case "bool" if isinstance(value, bool):
                return value
            case "int" | "float" if isinstance(value, int | str | float) and 0 <= float(value) <= _LARGEST:
                return int(value) if wanted == "int" else float(value)
            case _:
                pass
    except (ValueError, OverflowError):
        pass
    raise VllmdError(f"{name} must be {_WANTED[wanted]}, found {value!r}")


_WANTED = {"str": "a text", "bool": "true or false", "int": "a whole number", "float": "a number"}
