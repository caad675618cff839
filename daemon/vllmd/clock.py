"""The real clock."""

import time


class SystemClock:
    """Implements `ports.Clock`."""

    def now_s(self) -> float:
        """Return unix time in seconds."""
        return time.time()

    def monotonic_s(self) -> float:
        """Return seconds of a clock that only goes forward."""
        return time.monotonic()
