"""The simulated server under vllmd, for tests with real processes."""

import json
import sys
from typing import Any

# A start in a third of a second; an orphan that a failed test leaves ends soon.
QUICK: dict[str, Any] = {"start_s": 0.3, "orphan_s": 30}


NAME = "simulated/llama-8b"


def serve(port: int, *options: str, model: str = NAME) -> list[str]:
    """Return the command of a simulated server on loopback."""
    return [sys.executable, "-m", "vllmd_sim", "serve", model, "--host", "127.0.0.1", "--port", str(port), *options]


def host(**values: Any) -> dict[str, str]:
    """Return the environment that describes the simulated host."""
    return {"VLLMD_SIM": json.dumps({**QUICK, **values})}
