"""Processes seen through /proc: identities, the members of a session, who listens on a port."""

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from vllmd.model.server import ProcessId

_PROC = Path("/proc")
_LISTEN = "0A"  # TCP_LISTEN in include/net/tcp_states.h
_OPEN = frozenset({"01", "08"})  # TCP_ESTABLISHED, TCP_CLOSE_WAIT: the process has not closed it


def boot_id() -> str:
    """Return the id of this boot of the machine; pids of another boot mean nothing."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def identity(pid: int) -> ProcessId | None:
    """Return the identity of a process, also of one that has ended and was not collected yet; None if there is none."""
    fields = _stat(pid)
    return None if fields is None else ProcessId(pid, int(fields[19]))


def identify(pid: int) -> ProcessId | None:
    """Return the identity of a live process, None if there is none (a zombie has ended)."""
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return ProcessId(pid, int(fields[19]))


def alive(process: ProcessId) -> bool:
    """Return whether this very process still runs."""
    return identify(process.pid) == process


def exists(process: ProcessId) -> bool:
    """Return whether this very process runs, or has ended and was not collected yet."""
    return identity(process.pid) == process


def command_of(pid: int) -> tuple[str, ...] | None:
    """Return the words of a process's command line as it shows them now (it may rename itself).

    None if it cannot be read, and of a process that is ending: its memory goes first.
    """
    try:
        data = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None
    return tuple(os.fsdecode(word) for word in data.removesuffix(b"\0").split(b"\0")) if data else None


def variable_of(pid: int, name: str) -> str:
    """Return a variable of the environment that a process was started with; empty where it cannot be known."""
    try:
        data = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return ""
    pairs = (os.fsdecode(entry).partition("=") for entry in data.split(b"\0"))
    return next((value for key, _, value in pairs if key == name), "")


def cgroup_of(pid: int) -> str | None:
    """Return the control group that the service manager put a process in (cgroups(7)); None if unreadable.

    Version 1 has one for each controller; those come and go with the settings of accounting.
    """
    try:
        lines = (_PROC / str(pid) / "cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return None
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    return paths.get("name=systemd", paths.get(""))


def owner_of(pid: int) -> int | None:
    """Return the user id of a process; None if it has ended."""
    try:
        return (_PROC / str(pid)).stat().st_uid
    except OSError:
        return None


def own_zombies() -> tuple[int, ...]:
    """Return the children of this process that have ended and were not collected yet."""
    pids = [int(pid) for task in (_PROC / "self/task").iterdir() for pid in _children_of(task).split()]
    return tuple(pid for pid in pids if (fields := _stat(pid)) is not None and fields[0] == "Z")


def _children_of(task: Path) -> str:
    """Return the children of one of our threads; none of one that has just ended, whose children others have now."""
    try:
        return (task / "children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def output_of(pid: int) -> Path | None:
    """Return the file that is a process's standard output; None if it is none, or must not be seen."""
    path = Path(_link(str(_PROC / str(pid) / "fd/1")))
    return path if path.is_absolute() else None


def session_members(session: int) -> tuple[ProcessId, ...]:
    """Return the live processes of a session, in pid order."""
    found = []
    for pid in psutil.pids():
        try:
            same = os.getsid(pid) == session
        except (ProcessLookupError, PermissionError):
            continue
        if same and (process := identify(pid)) is not None:
            found.append(process)
    return tuple(found)


def busy_ticks_and_bytes(processes: Iterable[ProcessId]) -> tuple[int, int]:
    """Return the CPU ticks and the bytes read and written by these processes so far (fields 14-17, /proc/PID/io)."""
    ticks = size = 0
    for process in processes:
        fields = _stat(process.pid)
        if fields is not None:
            ticks += int(fields[11]) + int(fields[12])
        size += _io_bytes(process.pid)
    return ticks, size


def cpu_s(process: ProcessId) -> float | None:
    """Return the CPU time that a process has used, in seconds (fields 14 and 15); None if it has ended."""
    fields = _stat(process.pid) if exists(process) else None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields is not None else None


def signal_process(process: ProcessId, number: signal.Signals) -> bool:
    """Send a signal to this very process; False if it has ended. A pid that was given away is never hit."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(process):  # checked after the pidfd was opened: from here on the pid cannot be another's
            return False
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def listeners(port: int) -> tuple[int, ...]:
    """Return the socket inodes that listen on this TCP port of the host's own network namespace."""
    return tuple(int(fields[9]) for fields in _sockets(port) if fields[3] == _LISTEN)


def connections(port: int, parked: int) -> int:
    """Return how many connections to this port a process has, or waits to be given; not those of the parked listener.

    The kernel shows the length of a listener's queue as what it has received (tcp_ipv4.c, get_tcp4_sock). What is in
    a queue, or was closed by its process, has no inode.
    """
    count = 0
    for fields in _sockets(port):
        if fields[3] == _LISTEN and int(fields[9]) != parked:
            count += int(fields[4].partition(":")[2], 16)
        elif fields[3] in _OPEN and int(fields[9]) != 0:
            count += 1
    return count


def _sockets(port: int) -> Iterator[list[str]]:
    """Yield the fields of /proc/net/tcp (proc_pid_net(5)) of each socket whose own port this is."""
    wanted = f":{port:04X}"
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[1].endswith(wanted):
                yield fields


def socket_owners(inodes: Iterable[int], pids: Iterable[int]) -> frozenset[int]:
    """Return those of the pids that hold one of these sockets; processes that we may not look into hold none."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    return frozenset(pid for pid in pids if wanted and _holds(pid, wanted))


def _holds(pid: int, wanted: set[str]) -> bool:
    try:
        with os.scandir(_PROC / str(pid) / "fd") as descriptors:
            return any(_link(entry.path) in wanted for entry in descriptors)
    except OSError:
        return False


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the third one (the state) on: the name may hold anything."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _io_bytes(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "io").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))
