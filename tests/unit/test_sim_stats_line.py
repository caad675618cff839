"""The simulated line of statistics: what stands in it by engine and version."""

from dataclasses import replace

import pytest

from vllmd_sim.lines import API_SERVER, Console
from vllmd_sim.stats_line import Statistics, say

SEEN = Statistics(10.0, 20.0, running=3, waiting=2, preemptions=7, usage=0.995)


@pytest.mark.parametrize(
    ("version", "v0", "preemptions", "part"),
    [
        ("0.26.0", False, 7, "Waiting: 2 reqs, Preemptions: 7, GPU KV cache usage: 99.5%, Prefix"),
        ("0.26.0", False, 0, "Waiting: 2 reqs, GPU KV cache usage: 99.5%, Prefix"),
        ("0.11.0", False, 7, "Waiting: 2 reqs, GPU KV cache usage: 99.5%, Prefix"),
        ("0.7.3", True, 7, "Swapped: 0 reqs, Pending: 2 reqs, GPU KV cache usage: 99.5%, CPU KV cache usage: 0.0%."),
    ],
)
def test_the_line_is_that_of_its_version(
    version: str, preemptions: int, part: str, capsys: pytest.CaptureFixture[str], *, v0: bool
) -> None:
    """Preemptions are counted in it since 0.12 where there were some; V0 tells of a CPU cache instead."""
    say(replace(SEEN, preemptions=preemptions), version, Console(API_SERVER, version), v0=v0)
    line = capsys.readouterr().out
    assert "Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 20.0 tokens/s, Running: 3 reqs" in line
    assert part in line
