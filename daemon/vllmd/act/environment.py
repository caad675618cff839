"""The environment of the server: the operator's own, less what belongs to vllmd. The same for every launch, but one.

vLLM's compile cache hashes most VLLM_* variables: one that differed from launch to launch would make each start cold.
"""

from collections.abc import Mapping

import structlog

from vllmd.model.flags import UTILIZATION, Flags

# What a service manager hands to vllmd and to nobody else: a child that inherits NOTIFY_SOCKET can end its parent.
_OURS = (
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "INVOCATION_ID",
)
# vLLM makes a fresh folder itself; an inherited one holds the counters of another run.
_STALE = ("PROMETHEUS_MULTIPROC_DIR",)
# "1" keeps an API server alive whose engine is dead: it would answer and serve nothing.
_FORCED = {"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "0"}
# "1" has the KV pool's size of an earlier start applied (vLLM 0.26 and later). The compile cache does not hash it.
_PLAN = "VLLM_ENABLE_STARTUP_PLAN"
# A client that keeps an idle connection for as long as the server does sends a request into its end now and then. vLLM
# keeps 5 s (envs.py), httpx and with it OpenAI's client 5 s (httpx/_config.py). Not hashed (compile_factors, 0.32).
_DEFAULTS = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "7"}

log = structlog.get_logger()


def child_environment(inherited: Mapping[str, str], env_file: Mapping[str, str]) -> dict[str, str]:
    """Return the server's environment: inherited, then the operator's env_file, less what is vllmd's own."""
    merged = {**_DEFAULTS, **inherited, **env_file}
    for name in (*_OURS, *_STALE):
        merged.pop(name, None)
    merged.update({name: value for name, value in _FORCED.items() if name in merged})
    return merged


def launch_environment(environment: Mapping[str, str], flags: Flags, baseline: Flags) -> Mapping[str, str]:
    """Return the environment of one launch: without vLLM's start-up plan where the utilization is not the operator's.

    A plan is looked up by everything but the utilization (compute_plan_fingerprint in v1/worker/startup_plan.py): the
    pool that was measured at the operator's would come back although vllmd lowered it after an out-of-memory, and one
    that was measured at vllmd's would stay when the operator's is in force again. Such a launch neither reads nor
    writes one.
    """
    if environment.get(_PLAN, "0") == "0" or flags.number(UTILIZATION) == baseline.number(UTILIZATION):
        return environment
    log.info("launched without vLLM's start-up plan, which does not know the utilization", variable=f"{_PLAN}=0")
    return {**environment, _PLAN: "0"}
