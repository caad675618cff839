"""Whether the operator's command is vLLM's own, and what refuses it if not. Nothing is started here.

The decision, in order: the executable is found on PATH; it is a Python interpreter with `-m` and one of vLLM's modules,
or it is named vllm, is Python's console script of vLLM, and `serve` follows. Everything else is refused.
"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllmd.errors import CommandError
from vllmd.observe.console_script import script_interpreter

WANTED = "wanted is `vllm serve MODEL …` or `python -m vllm.entrypoints.openai.api_server --model MODEL …`"

# Modules that take `serve` as the next word, and modules that are the server themselves (0.33 deprecates the first).
_WITH_SERVE = frozenset({"vllm", "vllm.entrypoints.cli.main", "vllmd_sim"})
_SERVERS = frozenset({"vllm.entrypoints.openai.api_server", "vllm.entrypoints.launchers.api_server.entry"})
_SIMULATOR = "vllmd_sim"

_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_OPTIONS_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")

_CONTAINERS = frozenset(
    {"docker", "podman", "nerdctl", "kubectl", "apptainer", "singularity", "enroot", "srun", "crictl"}
)
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "fish", "ksh", "env", "eval", "exec"})
_WRAPPERS = frozenset(
    {"sudo", "su", "doas", "runuser", "setpriv", "nohup", "nice", "ionice", "timeout", "stdbuf", "setsid", "chrt"}
    | {
        "numactl",
        "taskset",
        "systemd-run",
        "screen",
        "tmux",
        "tini",
        "dumb-init",
        "uv",
        "uvx",
        "pipx",
        "poetry",
        "conda",
    }
)
_DISTRIBUTED = frozenset({"torchrun", "ray", "mpirun", "accelerate", "deepspeed"})


@dataclass(frozen=True, slots=True)
class CommandForm:
    """An accepted command. `program` is its first words with the executable as an absolute path.

    `interpreter` is the Python that runs it, `module` the module that Python runs (None for a console script).
    """

    program: tuple[str, ...]
    interpreter: str
    module: str | None

    @property
    def simulated(self) -> bool:
        """Whether the server is the simulator."""
        return self.module == _SIMULATOR

    @property
    def package(self) -> str:
        """The package whose options the command takes."""
        return _SIMULATOR if self.simulated else "vllm"


def recognise(argv: Sequence[str], environment: Mapping[str, str]) -> CommandForm:
    """Return the form of a command; raises CommandError with what was found and what is wanted."""
    if not argv:
        raise CommandError(f"the command is empty; {WANTED}")
    _refuse_wrappers(argv[0])
    executable = _found(argv[0], environment)
    if _PYTHON.fullmatch(Path(argv[0]).name):
        return _python_form(executable, argv)
    if "vllm" in (Path(argv[0]).name, Path(executable).resolve().name):
        return _script_form(executable, argv, environment)
    raise CommandError(f"{argv[0]!r} is not vLLM's own executable; {WANTED}")


def _refuse_wrappers(executable: str) -> None:
    """Refuse what would stand between vllmd and the server, with what to do instead."""
    name = Path(executable).name
    if name in _CONTAINERS:
        raise CommandError(
            f"{name!r} starts the server in a container, where vllmd cannot see its processes; "
            "run vllmd inside the container, or install vLLM on the host and give its `vllm serve` command"
        )
    if name in _SHELLS:
        raise CommandError(
            f"{name!r} would stand between vllmd and the server; "
            "give the command itself, and put variables into env_file"
        )
    if name in _WRAPPERS:
        raise CommandError(
            f"{name!r} starts the server through another program; give the command itself, "
            "and put users, priorities and CPU sets into vllmd's own unit"
        )
    if name in _DISTRIBUTED:
        raise CommandError(
            f"{name!r} is a distributed launcher; vLLM starts its own workers (--tensor-parallel-size): {WANTED}"
        )


def _found(executable: str, environment: Mapping[str, str]) -> str:
    """Return the absolute path of an executable, links unresolved: a venv's python is a link and must stay one."""
    search = environment.get("PATH", os.defpath)
    path = shutil.which(executable, path=search)
    if path is not None:
        return str(Path(path).absolute())
    if "/" not in executable:
        raise CommandError(f"{executable!r} is not found on PATH ({search}); give its absolute path")
    state = "is not executable" if Path(executable).exists() else "does not exist"
    raise CommandError(f"{executable!r} {state}; {WANTED}")


def _python_form(executable: str, argv: Sequence[str]) -> CommandForm:
    """Accept `python [options] -m MODULE …` for vLLM's modules."""
    place, module = _module(argv)
    if module in _SERVERS:
        return CommandForm((executable, *argv[1:place]), executable, module)
    if module in _WITH_SERVE:
        _want_serve(f"{argv[0]} -m {module}", argv[place:])
        return CommandForm((executable, *argv[1:place], "serve"), executable, module)
    raise CommandError(f"`{argv[0]} -m {module}` is not vLLM's server; {WANTED}")


def _module(argv: Sequence[str]) -> tuple[int, str]:
    """Return the place after `-m MODULE` and the module; CommandError where Python is given anything else to run."""
    place = 1
    while place < len(argv):
        word = argv[place]
        if word == "-m" and place + 1 < len(argv):
            return place + 2, argv[place + 1]
        if word == "-c" or not word.startswith("-"):
            what = "code in the command line" if word == "-c" else f"the script {word!r}"
            raise CommandError(f"Python is given {what} to run; {WANTED}")
        place += 2 if word in _OPTIONS_WITH_VALUE else 1
    raise CommandError(f"Python is given no module to run; {WANTED}")


def _script_form(executable: str, argv: Sequence[str], environment: Mapping[str, str]) -> CommandForm:
    """Accept `vllm serve …` where vllm is Python's console script."""
    interpreter = script_interpreter(Path(executable), environment)
    _want_serve(argv[0], argv[1:])
    return CommandForm((executable, "serve"), interpreter, None)


def _want_serve(program: str, rest: Sequence[str]) -> None:
    """Refuse every subcommand but serve."""
    if not rest:
        raise CommandError(f"`{program}` says nothing to run; {WANTED}")
    if rest[0] != "serve":
        raise CommandError(f"`{program} {rest[0]}` does not start a server that vllmd keeps alive; {WANTED}")
