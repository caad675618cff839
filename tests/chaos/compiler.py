"""Libraries in C that stand between vllmd and its host, compiled when a run begins."""

import shutil
import subprocess
from pathlib import Path

_COMPILE_LIMIT_S = 60.0  # half a second where nothing else runs


def compiled(source: str, target: Path) -> bool:
    """Make the shared library `target` of a source beside this file; return whether a C compiler is here and did it."""
    compiler = shutil.which("cc")
    if compiler is None:
        return False
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(target), str(Path(__file__).with_name(source))]
    return subprocess.run(command, timeout=_COMPILE_LIMIT_S, check=False).returncode == 0
