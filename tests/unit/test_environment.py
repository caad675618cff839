"""The server's environment: the operator's own, with what is vllmd's left out and what is missing filled in."""

from vllmd.act.environment import child_environment

KEEP_ALIVE = "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"


def test_idle_connections_are_kept_for_longer_than_clients_keep_them() -> None:
    """OpenAI's client keeps them for 5 s, as vLLM does of itself: the server must not be the first to close."""
    assert int(child_environment({}, {})[KEEP_ALIVE]) > 5


def test_the_operators_own_values_stay() -> None:
    """Those of vllmd's own environment, and before them those of env_file."""
    assert child_environment({KEEP_ALIVE: "2"}, {})[KEEP_ALIVE] == "2"
    assert child_environment({KEEP_ALIVE: "2"}, {KEEP_ALIVE: "3"})[KEEP_ALIVE] == "3"


def test_what_the_service_manager_says_to_vllmd_is_not_the_servers() -> None:
    """A child that could write to the manager's socket could end its parent."""
    assert "NOTIFY_SOCKET" not in child_environment({"NOTIFY_SOCKET": "/run/systemd/notify"}, {})
