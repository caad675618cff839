"""The environment of the server: the operator's own, less what belongs to vllmd. The same for every launch.

vLLM's compile cache hashes most VLLM_* variables: one that differed from launch to launch would make each start cold.
"""

from collections.abc import Mapping

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

# A client that keeps an idle connection for as long as the server does sends a request into its end now and then. vLLM
# keeps 5 s (envs.py), httpx and with it OpenAI's client 5 s (httpx/_config.py). Not hashed (compile_factors, 0.32).
_DEFAULTS = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "7"}


def child_environment(inherited: Mapping[str, str], env_file: Mapping[str, str]) -> dict[str, str]:
    """Return the server's environment: inherited, then the operator's env_file, less what is vllmd's own."""
    merged = {**_DEFAULTS, **inherited, **env_file}
    for name in (*_OURS, *_STALE):
        merged.pop(name, None)
    merged.update({name: value for name, value in _FORCED.items() if name in merged})
    return merged
