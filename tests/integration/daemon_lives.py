"""Many short lives of `vllmd run`, each of them killed: forked one after the other from a process that has its imports.

The imports are most of a start (0.8 s of 0.9 s). All else is what the command does: the file, the lock, the ledger.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from vllmd.cli.main import main
from vllmd.errors import ControlError
from vllmd.report.ask import UnreachableError, ask

_LIMIT_S = 20.0  # of any wait for a daemon; two cores may be busy
_LOOK_S = 0.002  # between looks at a socket that does not answer yet, which sends no event

Due = Callable[[], bool]  # whether the moment has come at which a daemon is to be killed


def never() -> bool:
    """Spare the daemon."""
    return False


class Life:
    """One daemon, from its fork to its SIGKILL."""

    def __init__(self, pid: int, control: Path) -> None:
        self.pid = pid
        self._control = control
        self._descriptor = os.pidfd_open(pid)
        self.killed = False

    def kill(self) -> None:
        """Kill it, and wait until it is dead. AssertionError if it had ended by itself."""
        assert not self._ended(0), "the daemon ended by itself"
        signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        assert self._ended(_LIMIT_S), "SIGKILL did not end the daemon"
        os.close(self._descriptor)
        self.killed = True

    def kill_when(self, due: Due) -> None:
        """Kill it as soon as it is due."""
        deadline_s = time.monotonic() + _LIMIT_S
        while not due():  # without a rest: the moment may be one of microseconds
            assert time.monotonic() < deadline_s, f"not due within {_LIMIT_S:.0f} s"
        self.kill()

    def until_it_answers(self, due: Due) -> dict[str, Any] | None:
        """Return its first status; None, and it is dead, if it was due before."""
        deadline_s = time.monotonic() + _LIMIT_S
        while not due():
            assert not self._ended(0), "the daemon ended by itself"
            assert time.monotonic() < deadline_s, f"no answer within {_LIMIT_S:.0f} s"
            try:
                (instance,) = ask(self._control, "status", _LIMIT_S)["instances"]
            except ControlError:  # it does not listen yet, or has no status yet
                time.sleep(_LOOK_S)  # a daemon that does not listen yet sends no event
                continue
            assert isinstance(instance, dict)
            return instance
        self.kill()
        return None

    def ask(self, due: Due, command: str, **arguments: object) -> dict[str, Any] | None:
        """Return the answer to a command; None, and it is dead, if it was due before one came.

        ControlError if it refuses.
        """
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask, self._control, command, _LIMIT_S, **arguments)
            while not answer.done():  # ends: `ask` has a limit
                if due():
                    self.kill()
                    break
            try:
                return answer.result()
            except UnreachableError:
                assert self.killed, "the daemon did not answer"
                return None

    def _ended(self, within_s: float) -> bool:
        return bool(select.select([self._descriptor], [], [], within_s)[0])


class Lives:
    """Forks one daemon after the other over one configuration. Use it in a `with`."""

    def __init__(self, config: Path, control: Path, log: Path, environ: Mapping[str, str]) -> None:
        self._control = control
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(config), str(log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environ},
            text=True,
        )

    def next(self) -> Life:
        """Begin a life. The one before it must have ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Life(int(self._process.stdout.readline()), self._control)

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the forking process."""
        self._process.communicate(timeout=_LIMIT_S)


def fork_on_demand(config: Path, log: Path) -> None:
    """Fork a daemon for each line that comes, and tell its pid; the one before has ended."""
    import httpcore  # noqa: F401, PLC0415 - what httpx imports for its first client

    import vllmd.cli.building  # noqa: PLC0415 - what `vllmd run` imports when it is called, paid for once
    import vllmd.cli.run  # noqa: F401, PLC0415 - ditto

    child = None
    while sys.stdin.readline():
        if child is not None:
            os.waitpid(child, 0)
        child = os.fork()
        if child == 0:
            _become_daemon(config, log)
        print(child, flush=True)  # noqa: T201 - this is how it tells


def _become_daemon(config: Path, log: Path) -> None:
    """Be `vllmd run`, with its output in a file, to the end of this process."""
    for number, path, flags in ((0, Path(os.devnull), os.O_RDONLY), (1, log, os.O_WRONLY | os.O_APPEND)):
        os.dup2(os.open(path, flags), number)
    os.dup2(1, 2)
    main(["run", "--config", str(config)])


if __name__ == "__main__":
    fork_on_demand(Path(sys.argv[1]), Path(sys.argv[2]))
