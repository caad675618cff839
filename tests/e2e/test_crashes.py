"""Deaths of a serving vLLM: whatever died, a new server serves and no process of the old one is left."""

from collections.abc import Iterator

import psutil
import pytest

from e2e.cpu_vllm import FIXED_POOL, RECOVERY_LIMIT_S, START_LIMIT_S, completes, serve
from e2e.vllmd_process import Instance, VllmdProcess, alive, free_port, running
from vllmd.observe.cgroup import oom_kills

pytestmark = pytest.mark.usefixtures("real_vllm")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmdProcess]:
    """Return a daemon whose server serves; the tests of this module kill one server after the other."""
    argv = serve("tiny", free_port(), "--max-model-len", "4096")
    with running(tmp_path_factory.mktemp("crashes"), argv, environ=FIXED_POOL) as daemon:
        daemon.wait_serving(1, START_LIMIT_S)
        yield daemon


def test_a_killed_engine_is_a_crash_although_the_server_exits_with_0(daemon: VllmdProcess) -> None:
    """An end that nobody asked for is a crash, whatever its code."""
    before = daemon.wait_serving(1, START_LIMIT_S)
    old = daemon.server_processes()
    next(process for process in old if process.cmdline()[0].startswith("VLLM::EngineCore")).kill()
    after = recovered(daemon, before, old)
    assert after["last_failure"]["exit_code"] == 0
    assert after["last_failure"]["phase"] == "serving"


def test_a_killed_api_server_leaves_no_orphan(daemon: VllmdProcess) -> None:
    """The engine outlives its API server and holds the memory, so it is ended before the next launch."""
    before = daemon.wait_serving(1, START_LIMIT_S)
    old = daemon.server_processes()
    psutil.Process(before["pid"]).kill()
    after = recovered(daemon, before, old)
    # Where the kernel counts its own kills, it is known that this was none of them.
    assert after["last_failure"]["class"] == ("infra-fault" if oom_kills() is None else "external-stop")


def recovered(daemon: VllmdProcess, before: Instance, old: frozenset[psutil.Process]) -> Instance:
    """Wait for the next launch to serve, with the same flags; no process of the old one lives."""
    after = daemon.wait_serving(before["generation"] + 1, RECOVERY_LIMIT_S)
    assert after["generation"] == before["generation"] + 1
    assert after["argv"] == before["argv"]
    assert not [process for process in old if alive(process)]
    assert completes(after["url"])
    return after
