"""The daemon itself is killed: its server goes on, and the next daemon never runs a second one beside it."""

from pathlib import Path

import pytest

from e2e.cpu_vllm import FIXED_POOL, RECOVERY_LIMIT_S, START_LIMIT_S, completes, serve
from e2e.vllmd_process import alive, free_port, running

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_vllm")]


def test_the_next_daemon_ends_the_server_of_a_killed_one(tmp_path: Path) -> None:
    """It knows it by the pid, the start time and the boot that the killed one wrote down."""
    argv = serve("tiny", free_port(), "--max-model-len", "4096")
    with running(tmp_path, argv, environ=FIXED_POOL) as first:
        url = first.wait_serving(1, START_LIMIT_S)["url"]
        old = first.server_processes()
        first.process.kill()
        first.process.wait()
        assert completes(url)

        with running(tmp_path, argv, environ=FIXED_POOL) as second:
            instance = second.wait_serving(2, RECOVERY_LIMIT_S)
            assert instance["generation"] == 2
            assert not [process for process in old if alive(process)]
            assert completes(url)
