"""vllmd as a service: started, started again when it died, told to stop, asked; by a service manager of a few lines."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaos.violation import Violation
from e2e.vllmd_process import VLLMD
from vllmd.errors import ControlError
from vllmd.report.ask import ask

_ASK_LIMIT_S = 10.0
_STOP_LIMIT_S = 60.0  # a server under load, whose engine is stopped: drain 2 s, grace 20 s, SIGKILL
_AGAIN_S = 0.3  # from a death to the next start: RestartSec of the unit would be 2 s


class Service:
    """One daemon at a time over one configuration; its output goes to a file, as to a journal."""

    def __init__(self, config: Path, control: Path, log: Path, environ: Mapping[str, str]) -> None:
        self._config = config
        self._control = control
        self._log = log
        self._environ = {**os.environ, **environ}
        self._process: subprocess.Popen[bytes] | None = None
        self._died_s = 0.0
        self.unwritable = False  # its files cannot be written now
        self._may_end = False  # they could not be at some time in this life
        self.starts = 0

    @property
    def pid(self) -> int:
        """The daemon's number, 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start a daemon. The one before it is dead."""
        self.starts += 1
        self._may_end = self.unwritable
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*VLLMD, "run", "--config", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environ,
                start_new_session=True,
            )

    def tend(self) -> None:
        """Start the daemon again a moment after it died; Violation if it had no reason to die by itself."""
        self._may_end |= self.unwritable
        if self._process is not None and (code := self._process.poll()) is not None:
            if not self._may_end:
                raise Violation(f"vllmd ended by itself with code {code}")
            self._process, self._died_s = None, time.monotonic()
        if self._process is None and time.monotonic() - self._died_s >= _AGAIN_S:
            self.start()

    def kill(self) -> None:
        """Kill the daemon."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_STOP_LIMIT_S)
            self._process = None

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask the daemon to stop, as a service manager does; return its exit code. Violation if it does not end."""
        if self._process is None:
            return 0
        self._process.send_signal(number)
        try:
            code = self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Violation(f"vllmd did not end {_STOP_LIMIT_S:.0f} s after {number.name}") from None
        self._process = None
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send the daemon a signal that does not end it."""
        if self._process is not None:
            self._process.send_signal(number)

    def instance(self) -> dict[str, Any]:
        """Return what the daemon says of its instance; state "unknown" where none answers."""
        try:
            (instance,) = ask(self._control, "status", _ASK_LIMIT_S)["instances"]
        except ControlError as error:
            return {"state": "unknown", "message": str(error)}
        assert isinstance(instance, dict)
        return instance

    def order(self, command: str) -> bool:
        """Give an operator's order over the control socket, which is what the commands do; return whether it was taken.

        The commands themselves are not used: most of a fault's time would go into their interpreters.
        """
        try:
            ask(self._control, command, _ASK_LIMIT_S)
        except ControlError:
            return False
        return True

    def status(self) -> dict[str, Any]:
        """Return the instance by `vllmd status --json`, or why that says nothing."""
        done = subprocess.run(
            [*VLLMD, "status", "--json", "--config", str(self._config)],
            capture_output=True,
            text=True,
            env=self._environ,
            timeout=_STOP_LIMIT_S,
            check=False,
        )
        try:
            (instance,) = json.loads(done.stdout)["instances"]
        except ValueError:
            return {"state": "unknown", "message": done.stderr}
        assert isinstance(instance, dict)
        return instance
