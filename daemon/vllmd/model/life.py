"""Life: the state of the supervised server as a value, and the moves that are allowed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from vllmd.errors import VllmdError
from vllmd.model.server import Launch, ServerState

_MOVES: Mapping[ServerState, frozenset[ServerState]] = {
    ServerState.STOPPED: frozenset({ServerState.STARTING}),
    ServerState.STARTING: frozenset({ServerState.SERVING, ServerState.DRAINING, ServerState.BACKOFF, ServerState.HELD}),
    ServerState.SERVING: frozenset({ServerState.DRAINING, ServerState.BACKOFF, ServerState.HELD}),
    ServerState.DRAINING: frozenset({ServerState.STARTING, ServerState.STOPPED}),
    ServerState.BACKOFF: frozenset({ServerState.STARTING, ServerState.STOPPED, ServerState.HELD}),
    # A pause that ends lets the recovery go on: it may be held again, or wait.
    ServerState.HELD: frozenset(
        {ServerState.STARTING, ServerState.STOPPED, ServerState.BACKOFF, ServerState.HELD},
    ),
}
# States in which a process of the server lives: no launch may begin from there.
ALIVE = frozenset({ServerState.STARTING, ServerState.SERVING, ServerState.DRAINING})


class LifeError(VllmdError):
    """A move that the state machine does not have: a bug."""


@dataclass(frozen=True, slots=True)
class Life:
    """The state, since when (unix seconds), why in one line, and the launch that it is about.

    `down_since_s` is when service was lost, None while serving or before the first launch.
    """

    state: ServerState = ServerState.STOPPED
    since_s: float = 0.0
    message: str = "not started"
    launch: Launch | None = None
    down_since_s: float | None = None

    def moved(self, state: ServerState, now_s: float, message: str, launch: Launch | None = None) -> "Life":
        """Return the life after a move; LifeError for one that does not exist."""
        if state not in _MOVES[self.state]:
            raise LifeError(f"no move from {self.state} to {state}")
        down_s = None if state is ServerState.SERVING else self.down_since_s
        if self.state is ServerState.SERVING:
            down_s = now_s
        return replace(
            self, state=state, since_s=now_s, message=message, launch=launch or self.launch, down_since_s=down_s
        )

    def saying(self, message: str) -> "Life":
        """Return the same life with another message."""
        return replace(self, message=message)
