"""The state machine of the server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllmd.model.flags import Flags
from vllmd.model.life import ALIVE, Life, LifeError
from vllmd.model.server import Launch, ServerState

LAUNCH = Launch(1, ("vllm", "serve", "m"), Flags(), 0.0, "/log")


def test_service_lost_is_remembered_until_it_is_back() -> None:
    """The outage begins when serving ends and is over when it begins again."""
    life = Life().moved(ServerState.STARTING, 1.0, "", LAUNCH)
    assert life.down_since_s is None
    life = life.moved(ServerState.SERVING, 5.0, "").moved(ServerState.BACKOFF, 9.0, "")
    life = life.moved(ServerState.STARTING, 12.0, "")
    assert life.down_since_s == 9.0
    assert life.moved(ServerState.SERVING, 20.0, "").down_since_s is None


def test_a_move_that_does_not_exist_is_refused() -> None:
    """Serving is reached by a start only."""
    with pytest.raises(LifeError, match="no move from stopped to serving"):
        Life().moved(ServerState.SERVING, 1.0, "")


@given(st.lists(st.sampled_from(list(ServerState)), max_size=30))
def test_no_start_begins_while_a_server_lives(moves: list[ServerState]) -> None:
    """From no state in which a process lives does a start begin, but from draining, whose process has ended."""
    life = Life()
    for state in moves:
        try:
            following = life.moved(state, 1.0, "")
        except LifeError:
            continue
        if state is ServerState.STARTING:
            assert life.state not in ALIVE - {ServerState.DRAINING}
        life = following
