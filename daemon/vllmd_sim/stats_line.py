"""The line of statistics that vLLM prints every ten seconds while it works, by engine and version."""

from dataclasses import dataclass

from vllmd_sim.lines import Console
from vllmd_sim.versions import at_least

_TELLS_PREEMPTIONS = (0, 12)


@dataclass(frozen=True, slots=True)
class Statistics:
    """What one interval brought, and how it is now; rates in tokens a second, `usage` a part of the KV cache."""

    prompt_rate: float
    generation_rate: float
    running: int
    waiting: int
    preemptions: int
    usage: float


def say(seen: Statistics, version: str, console: Console, *, v0: bool) -> None:
    """Print the line."""
    rates = (
        f"Avg prompt throughput: {seen.prompt_rate:.1f} tokens/s, Avg generation throughput: "
        f"{seen.generation_rate:.1f} tokens/s, Running: {seen.running} reqs"
    )
    usage = f"GPU KV cache usage: {seen.usage * 100:.1f}%"
    if v0:
        queues = f"Swapped: 0 reqs, Pending: {seen.waiting} reqs"
        console.info("metrics.py:455", f"{rates}, {queues}, {usage}, CPU KV cache usage: 0.0%.")
        return
    told = seen.preemptions and at_least(version, _TELLS_PREEMPTIONS)
    preempted = f", Preemptions: {seen.preemptions}" if told else ""
    console.info(
        "loggers.py:310",
        f"Engine 000: {rates}, Waiting: {seen.waiting} reqs{preempted}, {usage}, Prefix cache hit rate: 0.0%",
    )
