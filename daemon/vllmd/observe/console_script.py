"""Whether a file is Python's console script of vLLM, and which interpreter it runs."""

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from vllmd.errors import CommandError

_READ_BYTES = 16_384  # console scripts have a few hundred bytes
# pip, uv and pipx import main, develop installs of setuptools load the entry point.
_RUNS_VLLM = re.compile(r"^\s*from vllm(\.\w+)+ import main\b|entry_point\(\s*['\"]vllm\b", re.MULTILINE)
# The form for interpreter paths that are too long for a kernel's first line, or relative ones (uv): sh runs line 2,
# Python reads it as a string.
_EXEC_LINE = re.compile(r"^'''exec' (?P<command>.+?) \"\$0\" \"\$@\"$", re.MULTILINE)
_BESIDE = re.compile(r"\"?\$\(dirname.*\)\"?/(?P<name>.+)")  # "$(dirname -- "$(realpath -- "$0")")"/'python3'


def script_interpreter(script: Path, environment: Mapping[str, str]) -> str:
    """Return the interpreter that vLLM's console script runs; CommandError where the file is no such script."""
    text = _text(script)
    if not text.startswith("#!"):
        raise CommandError(f"{str(script)!r} is a binary, not Python's console script of vLLM")
    command = _EXEC_LINE.search(text)
    shebang = text.partition("\n")[0].removeprefix("#!").strip()
    runs_python = command is not None or "python" in Path(shebang.split()[0]).name or _by_env(shebang)
    if not runs_python:
        raise CommandError(
            f"{str(script)!r} is a wrapper script ({shebang}), not Python's console script of vLLM; "
            "give the command that it runs, and put variables into env_file"
        )
    if not _RUNS_VLLM.search(text):
        raise CommandError(f"{str(script)!r} is a Python script, but not the console script of vLLM")
    interpreter = _exec_interpreter(script, command["command"]) if command else _shebang_interpreter(shebang)
    return _absolute(interpreter, script, environment)


def _text(script: Path) -> str:
    try:
        with script.open("rb") as file:
            return file.read(_READ_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        raise CommandError(f"{str(script)!r} cannot be read: {error.strerror}") from error


def _by_env(shebang: str) -> bool:
    """Whether a first line is `/usr/bin/env python…`."""
    words = shebang.split()
    return Path(words[0]).name == "env" and any(word.startswith("python") for word in words[1:])


def _shebang_interpreter(shebang: str) -> str:
    """Return the interpreter of `#!/path/python3 -I` or `#!/usr/bin/env -S python3 -I`."""
    words = shebang.split()
    if Path(words[0]).name != "env":
        return words[0]
    return next(word for word in words[1:] if word.startswith("python"))


def _exec_interpreter(script: Path, command: str) -> str:
    """Return the interpreter of the exec line: a path in quotes, or one beside the script."""
    beside = _BESIDE.fullmatch(command)
    if beside:
        return str(script.resolve().parent / shlex.split(beside["name"])[0])
    return shlex.split(command)[0]


def _absolute(interpreter: str, script: Path, environment: Mapping[str, str]) -> str:
    found = shutil.which(interpreter, path=environment.get("PATH", os.defpath))
    if found is None:
        raise CommandError(f"{str(script)!r} runs {interpreter!r}, which does not exist or is not executable")
    return str(Path(found).absolute())
