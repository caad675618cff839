"""What a version of vLLM has: comparisons, and which of its two engines runs."""

TITLES_SINCE = (0, 10)  # its processes have names of their own
SCHEDULER_HOOK_SINCE = (0, 12)  # SchedulerConfig.get_scheduler_cls, which vllmd_shim needs
SHUTDOWN_LINES_SINCE = (0, 18)  # it tells of its shutdown step by step, and can drain
_V1_BY_DEFAULT = (0, 8)  # VLLM_USE_V1 is off before, on since (envs.py)
_V0_GONE = (0, 11)  # vllm/core/ is there up to 0.10.2


def at_least(version: str, wanted: tuple[int, int]) -> bool:
    """Whether a version (`0.7.3`) is this one or a later one."""
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) >= wanted


def runs_v0(version: str, use_v1: str | None) -> bool:
    """Whether this version runs its old engine, where the environment says `use_v1` (VLLM_USE_V1, None if unset)."""
    if at_least(version, _V0_GONE):
        return False
    return use_v1 == "0" if at_least(version, _V1_BY_DEFAULT) else use_v1 != "1"
