"""A latency target that slips on a real vLLM: one decision, one drained restart, and what it brought."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from dashboard_queries import queries
from e2e.cpu_vllm import FIXED_POOL, SERVED_NAME, START_LIMIT_S, serve
from e2e.load import Clients, traffic
from e2e.prometheus_server import PrometheusServer, lint, prometheus
from e2e.vllmd_process import Instance, Settings, VllmdProcess, free_port, running

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_vllm", "real_prometheus")]

FLAG, BEFORE, AFTER = "max-num-batched-tokens", "1024", "512"
# Long prompts one after the other, so that every step is a full one, beside streams that wait for each step. On two
# cores, with the model "mid": of the gaps between tokens 79-90 % exceed 50 ms at 1024 tokens a step, 8-17 % at 512.
MIX = (Clients(8, prompt_tokens=32, output_tokens=64), Clients(2, prompt_tokens=4000, output_tokens=1))
SLO = {"itl_p99": "50ms", "judge_window": "10s", "min_requests": 200}
# The target slips at 512, too: the budget keeps it to one restart.
BUDGET = {"soak": "20s", "restarts_per_hour": 1}
DECISION_LIMIT_S = 120.0
VERIFICATION_LIMIT_S = 240.0  # the drain, the start, and up to three soaks


@contextmanager
def serving_mid(folder: Path, mode: str) -> Iterator[tuple[VllmdProcess, str]]:
    """Run vllmd with a target and this mode of latency over the model "mid"; yield it and the server's address."""
    argv = serve("mid", free_port(), "--max-model-len", "8192", "--max-num-seqs", "64", f"--{FLAG}", BEFORE)
    settings: Settings = {"mode": {"latency": mode}, "slo": SLO, "budget": BUDGET}
    with running(folder, argv, settings, FIXED_POOL) as daemon:
        yield daemon, daemon.wait_serving(1, START_LIMIT_S)["url"]


def silent_queries(metrics: PrometheusServer) -> list[str]:
    """Return the dashboard's queries that had no answer at any time of the run."""
    return [query.expr for query in queries(name="default", job="vllm") if not metrics.range(query.expr)]


def test_a_slipping_target_is_mended_by_one_restart_that_is_told_everywhere(tmp_path: Path) -> None:
    """Fewer batched tokens, with the decision, its reason and its effect in status, metrics, log and dashboard."""
    with (
        serving_mid(tmp_path, "active") as (daemon, url),
        prometheus(tmp_path, {"vllmd": daemon.metrics_url, "vllm": f"{url}/metrics"}) as metrics,
        traffic(url, SERVED_NAME, MIX),
    ):
        instance = daemon.wait(
            lambda i: i["decisions"] and i["decisions"][-1]["verification"], "verified", VERIFICATION_LIMIT_S
        )
        (series,) = metrics.wait_for('vllmd_decision_verification{effect="better"}', 30)
        assert silent_queries(metrics) == []
        assert lint(httpx.get(daemon.metrics_url, timeout=5).text) == ""

    (decision,) = instance["decisions"]
    assert_decided(decision, "restart")
    assert decision["verification"]["effect"] == "better", decision
    assert decision["verification"]["after"] > decision["verification"]["before"]
    assert instance["launches"] == {"first": 1, "change": 1}
    assert AFTER in instance["argv"] or f"--{FLAG}={AFTER}" in instance["argv"]
    assert series["metric"]["id"] == decision["id"]
    assert [line for line in daemon.log().splitlines() if "event=verification" in line and decision["id"] in line]


def test_in_advisory_mode_the_same_is_decided_and_nothing_done(tmp_path: Path) -> None:
    """The operator reads what would be done; the server is not touched."""
    with serving_mid(tmp_path, "advisory") as (daemon, url), traffic(url, SERVED_NAME, MIX):
        # Judged again after the decision, and nothing more came of it.
        instance = daemon.wait(lambda i: i["holds"].get("already_advised"), "advised", DECISION_LIMIT_S)

    (decision,) = instance["decisions"]
    assert_decided(decision, "advise")
    assert instance["launches"] == {"first": 1}
    assert instance["state"] == "serving"
    assert [line for line in daemon.log().splitlines() if "event=decision" in line and decision["id"] in line]


def assert_decided(decision: Instance, action: str) -> None:
    """Assert that the decision is the one step down, for the reason that it has."""
    assert decision["action"] == action
    assert decision["trigger"] == "itl_p99"
    assert "itl_p99" in decision["message"]
    assert decision["changes"] == [{"flag": FLAG, "from": BEFORE, "to": AFTER}]
