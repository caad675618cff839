"""Where an instance's files lie: its state folder and its control socket. Pure, but for what lists folders."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllmd.errors import VllmdError

SYSTEM_STATE = Path("/var/lib/vllmd")
SYSTEM_RUNTIME = Path("/run/vllmd")
SOCKET_NAME = "control.sock"
STATUS_NAME = "status.json"

# sun_path of Linux's struct sockaddr_un holds 108 bytes, the last of them a zero (unix(7)).
SOCKET_PATH_LIMIT = 107

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose files are meant: the effective user id and the environment."""

    uid: int
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Places:
    """The files of one instance."""

    name: str
    state: Path  # folder
    control: Path  # socket

    @property
    def status_file(self) -> Path:
        """What the daemon told last, for when it is dead."""
        return self.state / STATUS_NAME


def checked_name(name: str) -> str:
    """Return the instance's name; VllmdError if it cannot be part of a path."""
    if not _NAME.fullmatch(name):
        raise VllmdError(f"{name!r} is not an instance name: use letters, digits, dots, dashes, underscores")
    return name


def places(name: str, caller: Caller, *, state_dir: str | None = None, control: str | None = None) -> Places:
    """Return where the caller's own instance lies; VllmdError for a bad name or a socket path that is too long.

    `state_dir` is the folder above the instance's own ([state] dir or --state-dir), `control` a socket path in
    which NAME stands for the instance ([listen] control).
    """
    state = _state_root(caller, state_dir) / checked_name(name)
    return Places(name, state, checked_socket(_socket(name, caller, state, state_dir, control)))


def candidates(name: str, caller: Caller) -> tuple[Places, ...]:
    """Return where an instance of this name may lie when nobody says: the caller's own, then the system's.

    A service that runs as its own user with its state in /var/lib/vllmd may keep its socket there too.
    """
    own = places(name, caller)
    system = places(name, Caller(0, {}))
    beside_state = Places(name, system.state, system.state / SOCKET_NAME)
    return tuple(dict.fromkeys((own, system, beside_state)))


def find(name: str, caller: Caller) -> Places:
    """Return the first candidate whose socket exists, else the first with a state folder, else the caller's own."""
    options = candidates(name, caller)
    alive = (p for p in options if _exists(p.control))
    known = (p for p in options if _exists(p.status_file))
    return next(alive, None) or next(known, None) or options[0]


def instances(caller: Caller, state_dir: str | None = None) -> tuple[str, ...]:
    """Return the names of all instances that left a trace in the state or runtime folders, sorted."""
    if state_dir is not None:
        roots: Iterable[Path] = (_state_root(caller, state_dir),)
    else:
        roots = (_state_root(caller, None), SYSTEM_STATE, SYSTEM_RUNTIME)
    return tuple(sorted({name for root in roots for name in _names_in(root)}))


def checked_socket(path: Path) -> Path:
    """Return the path of a UNIX socket; VllmdError if the kernel could not bind it."""
    length = len(str(path).encode())
    if length > SOCKET_PATH_LIMIT:
        raise VllmdError(
            f"the control socket's path is {length} bytes long, Linux takes {SOCKET_PATH_LIMIT}: {path}; "
            "set [listen] control to a shorter one"
        )
    return path


def _state_root(caller: Caller, state_dir: str | None) -> Path:
    """Return the folder above the instances' state folders."""
    if state_dir is not None:
        return Path(state_dir).absolute()
    if caller.uid == 0:
        return SYSTEM_STATE
    base = caller.env.get("XDG_STATE_HOME", "")
    # The XDG base directory specification says that a relative path is to be ignored.
    if not base.startswith("/"):
        base = caller.env.get("HOME", "/") + "/.local/state"
    return Path(base) / "vllmd"


def _socket(name: str, caller: Caller, state: Path, state_dir: str | None, control: str | None) -> Path:
    """Return the control socket: as configured, beside a chosen state folder, or in the runtime folder."""
    if control is not None:
        return Path(control.replace("NAME", name)).absolute()
    if state_dir is not None:
        return state / SOCKET_NAME
    if caller.uid == 0:
        return SYSTEM_RUNTIME / name / SOCKET_NAME
    runtime = caller.env.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return Path(runtime) / "vllmd" / name / SOCKET_NAME
    return state / SOCKET_NAME


def _names_in(root: Path) -> tuple[str, ...]:
    """Return the instances of one folder; none if it cannot be read."""
    try:
        folders = [entry for entry in root.iterdir() if _NAME.fullmatch(entry.name)]
    except OSError:
        return ()
    traces = (STATUS_NAME, SOCKET_NAME)  # a ledger alone is left by a start that failed at once
    return tuple(f.name for f in folders if any(_exists(f / trace) for trace in traces))


def _exists(path: Path) -> bool:
    """Whether a file is there, or may be where the caller may not look: asking it then says "no permission"."""
    try:
        return path.exists()
    except PermissionError:
        return True
    except OSError:
        return False
