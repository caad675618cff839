"""The engine had not come up when vLLM's own deadline passed: a longer one, by how fast the weights were loading."""

from vllmd.model.decision import Proposal, Situation, Wish
from vllmd.model.failure import Failure
from vllmd.model.flags import parse_number
from vllmd_policies.memory_arithmetic import proposal

_DEADLINE = "VLLM_ENGINE_READY_TIMEOUT_S"
_DEFAULT_S = 600  # vLLM's own (envs.py)


def start_deadline(situation: Situation) -> Proposal | None:
    """Wish for a deadline that holds all shards at the speed seen, what follows them, and half as much again."""
    failure = situation.failure
    if failure is None or failure.cause != "deadline":
        return None
    seconds = _needed_s(situation, failure)
    reason = f"{failure.summary}; {_DEADLINE}={seconds}"
    return proposal("start_deadline", failure, Wish.SET_ENV, reason, env={_DEADLINE: str(seconds)})


def _needed_s(situation: Situation, failure: Failure) -> int:
    """Return the deadline in seconds, a multiple of the step and at least twice the present one."""
    present = parse_number(situation.host.environ.get(_DEADLINE, "")) or _DEFAULT_S
    known = situation.thresholds
    shards, each_s = failure.numbers.get("shards"), failure.numbers.get("shard_s")
    wanted = (shards * each_s + known.after_weights_s) * known.deadline_factor if shards and each_s else None
    longest = max(wanted or known.blind_deadline_factor * present, 2 * present)
    return round(max(round(longest / known.deadline_step_s), 1) * known.deadline_step_s)
