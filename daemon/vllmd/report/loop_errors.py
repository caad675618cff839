"""What the event loop has to say of itself, in vllmd's log."""

import asyncio
from typing import Any

import structlog

from vllmd.errors import used_up

_TOLD_EVERY_S = 60.0  # asyncio tells it for every connection that it wanted to take, a hundred a second

log = structlog.get_logger()


class LoopErrors:
    """An exception handler for an event loop: a host that has no more to give is told once a minute, in one line."""

    def __init__(self) -> None:
        self._told_s: float | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Tell of one error; one of another kind as asyncio does, with its traceback."""
        error = context.get("exception")
        if isinstance(error, ValueError) and "_start_serving" in context["message"]:
            return  # a listener was closed that asyncio wanted to hear again in a second, and does not call off
        if not used_up(error):
            loop.default_exception_handler(context)
        elif self._told_s is None or loop.time() - self._told_s >= _TOLD_EVERY_S:
            self._told_s = loop.time()
            log.warning("connections cannot be taken now", reason=str(error))
