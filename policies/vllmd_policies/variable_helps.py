"""A variable of the server's environment is wrong, or another one gets round what failed; no flag would."""

from collections.abc import Mapping

from vllmd.model.decision import Proposal, Situation, Wish
from vllmd_policies.memory_arithmetic import proposal

# By cause: the variable, its value (None: unset), and what that does (vLLM 0.8 to 0.33, envs.py).
_VARIABLES: Mapping[str, tuple[str, str | None, str]] = {
    "service-variable": ("VLLM_PORT", None, "without it vLLM takes ports that are free"),
    "compile-cache": ("VLLM_DISABLE_COMPILE_CACHE", "1", "compiles anew; better remove the cache's folder"),
    "fork": ("VLLM_WORKER_MULTIPROC_METHOD", "spawn", "starts the workers anew instead of copying the process"),
}


def variable_helps(situation: Situation) -> Proposal | None:
    """Wish for the variable, unless the server had it so and failed all the same."""
    failure = situation.failure
    if failure is None or (known := _VARIABLES.get(failure.cause)) is None:
        return None
    name, value, effect = known
    if value is not None and situation.host.environ.get(name) == value:
        return proposal("variable_helps", failure, Wish.STOP, f"{failure.summary}; {name}={value} did not help")
    written = f"unset {name}" if value is None else f"{name}={value}"
    reason = f"{failure.summary}; {written}: {effect}"
    return proposal("variable_helps", failure, Wish.SET_ENV, reason, env={name: value})
