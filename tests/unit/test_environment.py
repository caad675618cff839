"""The server's environment: the operator's own, and what one launch leaves out of it or adds to it."""

import pytest

from vllmd.act.environment import child_environment, launch_environment
from vllmd.model.flags import UTILIZATION, Flags

KEEP_ALIVE = "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"
PLAN = "VLLM_ENABLE_STARTUP_PLAN"
BASELINE = Flags(((UTILIZATION, "0.92"), ("max-num-seqs", "64")))


def test_idle_connections_are_kept_for_longer_than_clients_keep_them() -> None:
    """OpenAI's client keeps them for 5 s, as vLLM does of itself: the server must not be the first to close."""
    assert int(child_environment({}, {})[KEEP_ALIVE]) > 5


def test_the_operators_own_values_stay() -> None:
    """Those of vllmd's own environment, and before them those of env_file."""
    assert child_environment({KEEP_ALIVE: "2"}, {})[KEEP_ALIVE] == "2"
    assert child_environment({KEEP_ALIVE: "2"}, {KEEP_ALIVE: "3"})[KEEP_ALIVE] == "3"


@pytest.mark.parametrize(
    ("changed", "plan"),
    [
        ({}, "1"),
        ({UTILIZATION: "0.920"}, "1"),
        ({"max-num-seqs": "32"}, "1"),
        ({UTILIZATION: "0.85"}, "0"),
        ({UTILIZATION: "0.95"}, "0"),
        ({UTILIZATION: None}, "0"),
    ],
)
def test_a_launch_with_another_utilization_takes_no_plan(changed: dict[str, str | None], plan: str) -> None:
    """A plan has the pool of the operator's utilization, and does not know it; other flags it knows."""
    environment = {PLAN: "1", "HOME": "/root"}
    assert launch_environment(environment, BASELINE.changed(changed), BASELINE) == {**environment, PLAN: plan}


@pytest.mark.parametrize("environment", [{}, {PLAN: "0"}])
def test_what_takes_no_plan_is_left_as_it_is(environment: dict[str, str]) -> None:
    """No variable appears that the operator did not set: the compile cache hashes some of them."""
    assert launch_environment(environment, BASELINE.changed({UTILIZATION: "0.85"}), BASELINE) is environment


def test_what_is_vllmds_own_does_not_reach_the_server() -> None:
    """A child that inherits NOTIFY_SOCKET could end its parent; the operator's env_file wins over what is inherited."""
    inherited = {"NOTIFY_SOCKET": "/run/x", "HOME": "/root", "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1"}
    made = child_environment(inherited, {"HOME": "/srv", KEEP_ALIVE: "9"})
    assert made == {"HOME": "/srv", "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "0", KEEP_ALIVE: "9"}
