"""The daemon itself is killed: its server goes on, and the next daemon takes it over as it is."""

import os
import signal
from pathlib import Path

import pytest

from e2e.cpu_vllm import FIXED_POOL, RECOVERY_LIMIT_S, START_LIMIT_S, completes, serve
from e2e.vllmd_process import alive, free_port, running

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_vllm")]


def test_the_next_daemon_takes_over_the_server_of_a_killed_one(tmp_path: Path) -> None:
    """The same process serves on, and its end is answered by the daemon that took it over."""
    argv = serve("tiny", free_port(), "--max-model-len", "4096")
    with running(tmp_path, argv, environ=FIXED_POOL) as first:
        instance = first.wait_serving(1, START_LIMIT_S)
        url, old = instance["url"], first.server_processes()
        first.process.kill()
        first.process.wait()
        assert completes(url)

        with running(tmp_path, argv, environ=FIXED_POOL) as second:
            taken_over = second.wait_serving(1, START_LIMIT_S)
            assert (taken_over["pid"], taken_over["launches"]) == (instance["pid"], {})
            assert completes(url)
            os.kill(taken_over["pid"], signal.SIGKILL)
            second.wait_serving(2, RECOVERY_LIMIT_S)
            assert not [process for process in old if alive(process)]
            assert completes(url)
