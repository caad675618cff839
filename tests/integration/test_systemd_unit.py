"""The files in systemd/ before systemd's own tools: they parse in silence, and the service is exposed to little."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "systemd"
UNITS = ("vllmd@.service", "vllmd-gpu.service")
# What the units start, and the targets that every service wants: a root that holds nothing else is the same everywhere.
PROGRAMS = ("vllmd", "nvidia-modprobe", "sh", "kill")
TARGETS = ("sysinit.target", "basic.target", "shutdown.target", "network-online.target")
# In tenths. A service without any of these lines has 9.2 to 9.6; the README names what is left open, and why.
EXPOSURE = 25
LIMIT_S = 60.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make a root folder with the units, stubs of what they start, and the targets they want."""
    units, programs = tmp_path / "etc/systemd/system", tmp_path / "usr/bin"
    units.mkdir(parents=True)
    programs.mkdir(parents=True)
    (tmp_path / "bin").symlink_to("usr/bin")
    for name in UNITS:
        shutil.copy(FOLDER / name, units)
    for name in TARGETS:
        (units / name).write_text(f"[Unit]\nDescription={name}\n")
    for name in PROGRAMS:
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    return tmp_path


def asked(tool: str, *arguments: str | Path) -> tuple[int, str]:
    """Return a tool's exit code and all it prints; skip where systemd is not installed."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    done = subprocess.run(
        [tool, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout


def analyzed(*arguments: str | Path) -> tuple[int, str]:
    """Return what systemd-analyze answers; skip where it does not know `security --offline` yet."""
    _, version = asked("systemd-analyze", "--version")  # "systemd 252 (252.38-1~deb12u1)"
    if int(version.split()[1]) < 250:
        pytest.skip("needs systemd-analyze 250 or newer")
    return asked("systemd-analyze", *arguments)


def verified(root: Path) -> tuple[int, str]:
    """Return what `systemd-analyze verify` says of the units."""
    return analyzed("verify", f"--root={root}", "vllmd@qwen.service", "vllmd-gpu.service")


def test_the_units_verify_in_silence(root: Path) -> None:
    """No unknown key, no missing program, no value that systemd would ignore."""
    assert verified(root) == (0, "")


def test_verification_would_speak(root: Path) -> None:
    """A line that systemd does not know is told: the silence above means something."""
    with (root / "etc/systemd/system" / UNITS[0]).open("a") as unit:
        unit.write("[Service]\nProtectEverything=yes\n")
    assert "ProtectEverything" in verified(root)[1]


def test_the_exposure_is_low(root: Path) -> None:
    """The service stays below the limit that the project set itself."""
    code, text = analyzed(
        "security",
        "--offline=true",
        f"--threshold={EXPOSURE}",
        "--no-pager",
        f"--root={root}",
        "vllmd@qwen.service",
    )
    assert code == 0, text


def test_the_user_and_its_groups(tmp_path: Path) -> None:
    """The service's user is made, and the groups of the GPU's device files and of the control socket's readers."""
    code, text = asked("systemd-sysusers", "--dry-run", f"--root={tmp_path}", FOLDER / "sysusers.d/vllmd.conf")
    assert code == 0, text
    assert "Creating user 'vllmd'" in text
    for group in ("vllmd", "vllmd-admin", "video", "render"):
        assert f"Creating group '{group}'" in text
    assert list(tmp_path.iterdir()) == []


def test_the_membership_that_lets_the_socket_be_given_away() -> None:
    """Only a member may give a file to a group: the service has no right beyond that."""
    lines = [line.split() for line in (FOLDER / "sysusers.d/vllmd.conf").read_text().splitlines()]
    assert ["m", "vllmd", "vllmd-admin"] in lines


def test_the_folders_of_the_configuration(tmp_path: Path) -> None:
    """The folders that vllmd reads are made, and are root's."""
    if os.geteuid() != 0:
        pytest.skip("needs root: folders are given to their owner")
    code, text = asked("systemd-tmpfiles", "--create", f"--root={tmp_path}", FOLDER / "tmpfiles.d/vllmd.conf")
    assert (code, text) == (0, "")
    made = [tmp_path / "etc/vllmd", tmp_path / "etc/vllmd/vllmd.d"]
    assert [(p.stat().st_mode & 0o777, p.stat().st_uid) for p in made] == [(0o755, 0), (0o755, 0)]


def settings_of_the_kernel() -> Sequence[tuple[str, str]]:
    """Return the names and values in the file for sysctl."""
    lines = (FOLDER / "sysctl.d/20-vllmd.conf").read_text().splitlines()
    return [(n.strip(), v.strip()) for n, v in (x.split("=") for x in lines if x and not x.startswith("#"))]


@pytest.mark.parametrize(("name", "value"), settings_of_the_kernel())
def test_the_kernel_has_these_settings(name: str, value: str) -> None:
    """Each names a number of this kernel; only one with a minus may be missing from an older one."""
    file = Path("/proc/sys") / name.removeprefix("-").replace(".", "/")
    if name.startswith("-") and not file.exists():
        pytest.skip(f"{file} is not in this kernel")
    assert file.read_text().strip().isdecimal()
    assert value.isdecimal()
