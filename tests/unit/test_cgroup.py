"""The kernel's kills for want of memory: read from either version of cgroups, and unknown where there is none."""

from pathlib import Path

import pytest

from vllmd.observe.cgroup import memory_left, oom_kills

EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"


def host(folder: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Lay a host's files; return the membership and the root of the cgroups."""
    (folder / "cgroup").write_text(membership)
    for name, text in files.items():
        (folder / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "root" / name).write_text(text)
    return folder / "cgroup", folder / "root"


@pytest.mark.parametrize(
    ("membership", "files", "count"),
    [
        ("0::/system.slice/vllmd@qwen.service\n", {"system.slice/vllmd@qwen.service/memory.events": EVENTS}, 2),
        ("0::/\n", {"memory.events": EVENTS}, 2),
        ("0::/not/mounted/here\n", {"memory.events": EVENTS}, 2),
        (
            "9:name=systemd:/\n4:cpu,memory:/docker/af01\n0::/\n",
            {"memory/docker/af01/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"},
            7,
        ),
        ("4:memory:/a\n0::/\n", {"memory/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"}, None),
        ("0::/a\n", {"a/memory.events": "oom_kill many\n"}, None),
        ("0::/a\n", {}, None),
        ("nonsense\n", {}, None),
    ],
)
def test_the_count_of_our_own_cgroup(tmp_path: Path, membership: str, files: dict[str, str], count: int | None) -> None:
    """Of our cgroup, or of the root where a container shows its own cgroup there."""
    assert oom_kills(*host(tmp_path, membership, files)) == count


def test_without_cgroups_nothing_is_known(tmp_path: Path) -> None:
    """Unread is not none."""
    assert oom_kills(tmp_path / "absent", tmp_path) is None


@pytest.mark.parametrize(
    ("limit", "stat", "left"),
    [
        ("8000", "anon 10\ninactive_file 500\n", 3500),
        ("8000", "anon 10\n", 3000),
        ("max", "inactive_file 500\n", None),
    ],
)
def test_what_our_own_cgroup_may_still_take(tmp_path: Path, limit: str, stat: str, left: int | None) -> None:
    """Its limit less what it has, but for what the kernel can drop; nothing is known where there is no limit."""
    files = {"a/memory.max": limit, "a/memory.current": "5000\n", "a/memory.stat": stat}
    assert memory_left(*host(tmp_path, "0::/a\n", files)) == left


def test_without_a_cgroup_of_version_2_no_limit_is_known(tmp_path: Path) -> None:
    """Unread is not none left."""
    assert memory_left(*host(tmp_path, "4:memory:/a\n0::/\n", {})) is None
