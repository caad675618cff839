"""`make run`, as the README tells it: one command makes everything and serves."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from e2e.cpu_vllm import START_LIMIT_S
from e2e.vllmd_process import VLLMD, free_port

ROOT = Path(__file__).parents[2]
PORT = 8000  # vLLM's default, which `make run` keeps


def port_is_free() -> bool:
    """Whether nobody listens where `make run` would."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", PORT)) != 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed"),
    pytest.mark.skipif(not port_is_free(), reason=f"port {PORT} is taken"),
]


@pytest.mark.parametrize(
    ("vllm", "simulated"),
    [pytest.param("", True, id="without a vLLM"), pytest.param("cpu", False, id="with a vLLM on the CPU")],
)
def test_make_run_serves_and_says_whether_it_is_simulated(tmp_path: Path, vllm: str, simulated: bool) -> None:  # noqa: FBT001 - a parameter of pytest's
    """In the foreground, until it is told to stop."""
    environ = {
        **os.environ,
        "VLLMD__STATE__DIR": str(tmp_path / "state"),
        "VLLMD__LISTEN__METRICS": f"127.0.0.1:{free_port()}",
    }
    command = ["make", "--no-print-directory", f"VENV={sys.prefix}", f"VLLM={vllm}", "run"]
    log = tmp_path / "make.log"
    with log.open("wb") as output:
        make = subprocess.Popen(command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        assert serving(make, environ, log)["simulated"] is simulated
        assert ("SIMULATED" in log.read_text(encoding="utf-8")) is simulated
    finally:
        make.send_signal(signal.SIGTERM)
        make.wait(60)
    assert port_is_free()


def serving(make: "subprocess.Popen[bytes]", environ: dict[str, str], log: Path) -> dict[str, Any]:
    """Wait until the instance serves; return its status."""
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        asked = subprocess.run([*VLLMD, "status", "--json"], env=environ, capture_output=True, check=False, timeout=30)
        if asked.returncode == 0:
            (instance,) = json.loads(asked.stdout)["instances"]
            assert isinstance(instance, dict)
            return instance
        assert make.poll() is None, log.read_text(encoding="utf-8")
        assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
        time.sleep(0.25)  # asked over the command line, as an operator does
