"""`vllmd install-service` below a folder of the test's own: what is written, what is kept, what is said."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vllmd.cli.main import main

SOURCES = Path(__file__).parents[2] / "systemd"
UNIT = Path("etc/systemd/system/vllmd@.service")


def asked(root: Path, *args: str) -> Result:
    """Return what the command does."""
    return CliRunner().invoke(main, ["install-service", "qwen", "--root", str(root), *args])


def files(root: Path) -> dict[str, str]:
    """Return the text of every file below a folder."""
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_every_file_of_the_folder_is_written(tmp_path: Path) -> None:
    """None is forgotten when one is added, all can be read by everybody, and the next commands are said."""
    result = asked(tmp_path)
    assert result.exit_code == 0, result.output
    ours = sorted(text for name, text in files(SOURCES).items() if name != "README.md")
    assert sorted(files(tmp_path).values()) == ours
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()} == {0o644}
    assert (tmp_path / UNIT).read_text() == (SOURCES / "vllmd@.service").read_text()
    assert "systemctl enable --now vllmd@qwen" in result.stdout
    assert "ln -s" in result.stdout


def test_the_second_time_nothing_changes(tmp_path: Path) -> None:
    """What is as it shall be is left alone, and a link at /usr/bin is not asked for again."""
    asked(tmp_path)
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/vllmd").touch()
    result = asked(tmp_path)
    assert result.exit_code == 0
    assert result.stdout.count("unchanged: ") == 6
    assert "written" not in result.stdout
    assert "ln -s" not in result.stdout


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    """It says what would be written."""
    result = asked(tmp_path, "--dry-run")
    assert result.exit_code == 0
    assert result.stdout.count("would write: ") == 6
    assert files(tmp_path) == {}


def test_a_changed_file_is_kept_and_shown(tmp_path: Path) -> None:
    """The difference is a unified diff, and the exit code says that something was not done."""
    asked(tmp_path)
    unit = tmp_path / UNIT
    changed = unit.read_text().replace("WatchdogSec=60s", "WatchdogSec=5min # \x1b[2J")
    unit.write_text(changed)
    result = asked(tmp_path)
    assert result.exit_code == 5
    assert unit.read_text() == changed
    assert f"kept, it differs (--replace takes ours): {unit}" in result.stdout
    assert "    -WatchdogSec=5min # \\x1b[2J\n    +WatchdogSec=60s\n" in result.stdout


def test_a_changed_file_is_replaced_on_demand(tmp_path: Path) -> None:
    """Only with --replace; a dry run of that says so and keeps it."""
    asked(tmp_path)
    unit = tmp_path / UNIT
    unit.write_text("[Service]\n")
    tried = asked(tmp_path, "--replace", "--dry-run")
    assert (tried.exit_code, unit.read_text()) == (0, "[Service]\n")
    assert f"would replace: {unit}" in tried.stdout
    done = asked(tmp_path, "--replace")
    assert (done.exit_code, unit.read_text()) == (0, (SOURCES / "vllmd@.service").read_text())
    assert f"replaced: {unit}\n    --- there\n    +++ ours\n" in done.stdout


def test_a_masked_unit_stays_masked(tmp_path: Path) -> None:
    """A link to /dev/null is an operator's word, and so is one that leads nowhere."""
    for target in ("/dev/null", "/nowhere/at/all"):
        root = tmp_path / target.strip("/").replace("/", "-")
        (root / UNIT).parent.mkdir(parents=True)
        (root / UNIT).symlink_to(target)
        assert asked(root).exit_code == 5
        assert str((root / UNIT).readlink()) == target


def test_drop_ins_are_named_and_not_touched(tmp_path: Path) -> None:
    """Those of the instance and of all instances, not those of another."""
    units = tmp_path / UNIT.parent
    for folder in ("vllmd@.service.d", "vllmd@qwen.service.d", "vllmd@other.service.d"):
        (units / folder).mkdir(parents=True)
        (units / folder / "override.conf").write_text("[Service]\n")
    result = asked(tmp_path, "--replace")
    assert result.stdout.count("in force, not touched: ") == 2
    assert "vllmd@other" not in result.stdout
    assert (units / "vllmd@qwen.service.d/override.conf").read_text() == "[Service]\n"


@pytest.mark.parametrize("name", ["../etc", "a b", ""])
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    """A name that cannot be an instance's leads to no file."""
    result = CliRunner().invoke(main, ["install-service", name, "--root", str(tmp_path)])
    assert result.exit_code == 2
    assert "is not an instance name" in result.output
    assert files(tmp_path) == {}


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where a folder should be: the path and the system's reason, and exit code 1."""
    (tmp_path / "etc").write_text("")
    result = asked(tmp_path)
    assert result.exit_code == 1
    assert f"{tmp_path}/etc" in result.output
    assert "directory" in result.output.lower()
