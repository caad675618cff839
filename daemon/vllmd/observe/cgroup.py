"""Memory of our own cgroup, where the server lives, too: what is left, and what the kernel killed for want of it."""

from pathlib import Path

_SELF = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def oom_kills(membership: Path = _SELF, root: Path = _ROOT) -> int | None:
    """Return how many processes the kernel has killed in our cgroup for want of memory; None where it does not say.

    Version 2 counts in memory.events, version 1 in memory.oom_control (Linux, Documentation/admin-guide: cgroup-v2.rst,
    and cgroup-v1/memory.rst; version 1 from 4.13 on). Inside a container the files of its own cgroup lie at the root.
    """
    for file in _files(membership, root):
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # the other version's, or another place's
        for line in text.splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdecimal():
                return int(count)
    return None


def memory_left(membership: Path = _SELF, root: Path = _ROOT) -> int | None:
    """Return how many bytes our cgroup may still take; None where it has no limit, or is not one of version 2.

    What the kernel can drop at once (inactive_file of memory.stat) is not taken.
    """
    for file in _files(membership, root):
        folder = file.parent
        try:
            limit, current = (folder / "memory.max").read_text().strip(), (folder / "memory.current").read_text()
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue  # version 1, or another place's
        return None if limit == "max" else int(limit) - int(current) + int(stat.get("inactive_file", 0))
    return None


def _files(membership: Path, root: Path) -> tuple[Path, ...]:
    """Return where the count may be, the best place first."""
    try:
        lines = membership.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    paths = {tuple(controllers.split(",")): path.lstrip("/") for _, controllers, path in map(_parts, lines)}
    first = next((path for controllers, path in paths.items() if "memory" in controllers), None)
    second = paths.get(("",))
    found: list[Path] = []
    if first is not None:
        found += [root / "memory" / first / "memory.oom_control", root / "memory" / "memory.oom_control"]
    if second is not None:
        found += [root / second / "memory.events", root / "memory.events"]
    return tuple(found)


def _parts(line: str) -> tuple[str, str, str]:
    """Return hierarchy, controllers and path of a line of /proc/PID/cgroup (cgroups(7)); empty texts for none."""
    hierarchy, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    return hierarchy, controllers, path
