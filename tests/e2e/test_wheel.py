"""The distribution: built, installed into a fresh environment, and run from another folder."""

import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest

from e2e.vllmd_process import free_port, running

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0  # pip fetches the dependencies


@pytest.fixture(scope="module")
def bin_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an environment that has nothing else; return the folder of its commands."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", str(wheel)], check=True, timeout=LIMIT_S)
    return environment / "bin"


@pytest.mark.parametrize("folder", ["daemon/vllmd", "daemon/vllmd_shim", "daemon/vllmd_sim", "policies/vllmd_policies"])
def test_the_wheel_holds_every_module(wheel: Path, folder: str) -> None:
    """A path that is wrong would leave a package out in silence."""
    wanted = {str(file.relative_to((ROOT / folder).parent)) for file in (ROOT / folder).rglob("*.py")}
    assert wanted
    assert wanted <= set(ZipFile(wheel).namelist())


def test_the_wheel_holds_the_profiles(wheel: Path) -> None:
    """They lie beside the policies, and the installed configuration names them."""
    wanted = {str(file.relative_to(ROOT / "policies")) for file in (ROOT / "policies").rglob("*.toml")}
    assert wanted
    assert wanted <= set(ZipFile(wheel).namelist())


@pytest.mark.parametrize("folder", ["grafana", "systemd"])
def test_the_wheel_holds_what_operators_install(wheel: Path, folder: str) -> None:
    """The dashboard and the unit come along, under share/vllmd."""
    names = ZipFile(wheel).namelist()
    assert [name for name in names if f"/data/share/vllmd/{folder}/" in name]


def test_the_installed_command_says_what_it_is(bin_folder: Path, tmp_path: Path) -> None:
    """From any folder, with nothing of the repository in sight."""
    version = called(bin_folder, tmp_path, ["--version"])
    assert version.returncode == 0
    assert version.stdout.startswith("vllmd")
    usage = called(bin_folder, tmp_path, ["--help"])
    assert usage.returncode == 0
    assert "vllmd run -- vllm serve" in usage.stdout


def test_the_installed_command_installs_its_units(bin_folder: Path, tmp_path: Path) -> None:
    """It finds them where the distribution put them."""
    done = called(bin_folder, tmp_path, ["install-service", "qwen", "--root", str(tmp_path)])
    assert done.returncode == 0, done.stderr
    unit = tmp_path / "etc/systemd/system/vllmd@.service"
    assert unit.read_text(encoding="utf-8") == (ROOT / "systemd/vllmd@.service").read_text(encoding="utf-8")


def test_the_installed_command_finds_fault_with_a_configuration(bin_folder: Path, tmp_path: Path) -> None:
    """The exit code is the one that service managers know: 78."""
    config = tmp_path / "bad.toml"
    config.write_text('[engine]\nargvv = ["vllm", "serve", "m"]\n', encoding="utf-8")
    checked = called(bin_folder, tmp_path, ["check", "--config", str(config)])
    assert checked.returncode == 78
    assert f"{config}:2" in checked.stdout + checked.stderr
    assert "argv" in checked.stdout + checked.stderr


def test_the_installed_daemon_serves_and_stops(bin_folder: Path, tmp_path: Path) -> None:
    """With the simulated server that comes along."""
    argv = [str(bin_folder / "python"), "-m", "vllmd_sim", "serve", "simulated/llama-8b", "--port", str(free_port())]
    with running(tmp_path, argv, vllmd=(str(bin_folder / "vllmd"),)) as daemon:
        instance = daemon.wait_serving(1, 60)
        assert instance["simulated"] is True
        daemon.stop()
        assert daemon.process.returncode == 0


def called(bin_folder: Path, folder: Path, arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run the installed vllmd in a folder."""
    command = [str(bin_folder / "vllmd"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
