"""One course of planned restarts of the simulated server under a steady load, at one form of its address."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from e2e.vllmd_process import VllmdProcess, free_port, running
from own_network import network
from simulated import NAME, host, serve
from steady_load import Outcomes, steady

ADDRESSES = ("127.0.0.1", "::1", "0.0.0.0")
LIMIT_S = 120.0  # from the order to a load that is no longer behind, on a busy host
# Without the gate: the whole start is what the requests have to wait for.
_SETTINGS = {"engine": {"drain_timeout": "30s", "hold_timeout": "2m", "gate": False}}
_UNPARKED = "the port is no longer parked"


@dataclass(frozen=True, slots=True)
class Course:
    """What is done: so many requests at least, so many a second, through so many restarts of so many seconds each."""

    address: str
    requests: int
    rate: float
    restarts: int
    start_s: float
    kept_s: float = 5.0  # for which the clients keep an idle connection, as httpx does
    environ: Mapping[str, str] = field(default_factory=dict)

    def run(self, folder: Path) -> Outcomes:
        """Run, in a network of its own; return what the clients saw. NoNetworkError where there is none to be had."""
        command = serve(free_port())
        command[command.index("--host") + 1] = self.address
        environ = {**host(start_s=self.start_s), **self.environ}
        with network(), running(folder, command, _SETTINGS, environ) as daemon:
            url = daemon.wait_serving(1, LIMIT_S)["url"]
            with steady(url, NAME, self.rate, self.kept_s) as seen:
                for number in range(1, self.restarts + 1):
                    self._restart(daemon, seen, number)
            assert daemon.log().count(_UNPARKED) == self.restarts, daemon.story("not every restart was planned", {})
        return seen

    def _restart(self, daemon: VllmdProcess, seen: Outcomes, number: int) -> None:
        """Restart the server, wait until nobody waits any more, and until this restart's share of the load is over."""
        asked = daemon.ask("restart")
        assert asked.returncode == 0, asked.stderr
        daemon.wait_serving(number + 1, LIMIT_S)
        share = self.requests * number / self.restarts
        daemon.wait(lambda _: seen.begun - seen.ended < self.rate and seen.ended >= share, "the load goes on", LIMIT_S)
