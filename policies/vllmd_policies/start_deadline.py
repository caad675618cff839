"""The engine had not come up when vLLM's own deadline passed: a longer one, by how fast the weights were loading."""

from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import Failure
from vllmd.model.flags import parse_number
from vllmd_policies.memory_arithmetic import proposal

_DEADLINE = "VLLM_ENGINE_READY_TIMEOUT_S"
_DEFAULT_S = 600  # vLLM's own (envs.py)
_AFTER_WEIGHTS_S = 300.0  # compilation and graphs
_SPARE = 1.5
_STEP_S = 600


def start_deadline(situation: Situation) -> Proposal | None:
    """Wish for a deadline that holds all shards at the speed seen, what follows them, and half as much again."""
    failure = situation.failure
    if failure is None or failure.cause != "deadline":
        return None
    seconds = _needed_s(situation, failure)
    reason = f"{failure.summary}; {_DEADLINE}={seconds}"
    return proposal("start_deadline", failure, Wish.SET_ENV, reason, env={_DEADLINE: str(seconds)})


def _needed_s(situation: Situation, failure: Failure) -> int:
    """Return the deadline in seconds, a multiple of ten minutes and at least twice the present one."""
    present = parse_number(situation.host.environ.get(_DEADLINE, "")) or _DEFAULT_S
    shards, each_s = failure.numbers.get("shards"), failure.numbers.get("shard_s")
    wanted = (shards * each_s + _AFTER_WEIGHTS_S) * _SPARE if shards and each_s else 3 * present
    steps = round(max(wanted, 2 * present) / _STEP_S)
    return max(steps, 1) * _STEP_S
