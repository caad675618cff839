"""Memory failures of a real vLLM on a real GPU: how each is brought about, and what vllmd is to make of it."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_GIB = 2**30
_HOG_LIMIT_S = 60.0
# Holds so many GiB, or all but so many of what is free.
_HOG = """
import sys, torch
wanted = float(sys.argv[1]) * 2**30
size = wanted if wanted > 0 else torch.cuda.mem_get_info()[0] + wanted
held = torch.empty(int(size), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One failure: the server's options, a neighbour's memory in GiB, and the state that vllmd is to come to.

    A neighbour with `hog_gib` below zero leaves that much of what is free. It comes before the first launch, or once
    that serves, and then long prompts are sent.
    """

    name: str
    model: str  # folder below the models' folder
    options: tuple[str, ...]
    hog_gib: float = 0.0
    hog_leaves: bool = False  # while the first launch, which will fail, still starts
    hog_comes_late: bool = False  # once the first launch serves
    settings: dict[str, Any] = field(default_factory=dict)
    ends: str = "serving"


SCENARIOS = (
    Scenario(
        "KV pool too small for the length, 8B at 0.125",
        "8b",
        ("--max-model-len", "32768", "--gpu-memory-utilization", "0.125"),
    ),
    Scenario("a neighbour that stays holds 60 GiB, 8B", "8b", ("--max-model-len", "8192"), hog_gib=60.0),
    Scenario("a neighbour that leaves holds 60 GiB, 8B", "8b", ("--max-model-len", "8192"), 60.0, hog_leaves=True),
    Scenario("no memory for the cache blocks, 70B at the default", "70b", ("--max-model-len", "4096")),
    Scenario(
        "out of memory while serving beside a neighbour, 8B at 0.9",
        "8b",
        ("--max-model-len", "32768", "--gpu-memory-utilization", "0.9"),
        hog_gib=-0.125,
        hog_comes_late=True,
    ),
)


@contextmanager
def hog(gib: float) -> Iterator["subprocess.Popen[str] | None"]:
    """Hold GPU memory in a process of its own for as long as the block runs, or until its input is closed."""
    if not gib:
        yield None
        return
    command = [sys.executable, "-c", _HOG, str(gib)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.stdin.close()
            process.wait(_HOG_LIMIT_S)


def serve(folder: str, scenario: Scenario, port: int) -> Sequence[str]:
    """Return the server's command: random weights, no download."""
    program = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", f"{folder}/{scenario.model}")
    common = ("--load-format", "dummy", "--served-model-name", "m", "--enforce-eager")
    return (*program, *common, "--host", "127.0.0.1", "--port", str(port), *scenario.options)
