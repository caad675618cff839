"""How far a live value may go in one step. Pure.

vLLM asserts after each step that no more was scheduled than the budget allows, and that no more run than the cap
(vllm/v1/core/sched/scheduler.py, every version from 0.8.5 to 0.33): a value is never set below what must be scheduled.
"""


def budget_in_force(asked: int, launched: int, running: int, tokens_each: int) -> int:
    """Return the token budget of a step; `asked` 0 is what was launched.

    At most what was launched, for which buffers and memory were sized; enough for every running request, which takes
    `tokens_each`: one and its speculative ones. Where none runs, enough for one: vLLM 0.32 pads a prefill of one token
    to that, and where it does not fit admits nobody, for ever (v1/core/sched/scheduler.py, 1130-1150).
    """
    if asked <= 0:
        return launched
    return min(launched, max(asked, max(running, 1) * tokens_each))


def seqs_in_force(asked: int, launched: int, running: int, *, separate: bool) -> int:
    """Return the cap of active sequences of a step; `asked` 0 is what was launched.

    `separate`: this vLLM (0.31 and later) has a cap on admission apart from its runner's slots, which may lie below
    what runs. Before, the one cap is asserted, and up to 0.24 compared by "==": it sinks with what runs.
    """
    if asked <= 0:
        return launched
    return min(launched, max(asked, 1 if separate else running, 1))
