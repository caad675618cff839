"""The folder that brings vllmd_shim into vLLM: the package and its entry point, on PYTHONPATH, and nothing else."""

import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

PLUGIN = "vllmd_shim"  # the entry point's name, which VLLM_PLUGINS may name
_MODULES = ("__init__.py", "block.py", "clamp.py", "drain.py", "gate.py", "governor.py", "plugin.py", "port.py")
_METADATA = f"{PLUGIN}-1.dist-info"
_TEXTS = {
    f"{_METADATA}/METADATA": "Metadata-Version: 2.1\nName: vllmd_shim\nVersion: 1\n",
    f"{_METADATA}/entry_points.txt": f"[vllm.general_plugins]\n{PLUGIN} = vllmd_shim.plugin:register\n",
}


def write_shim(folder: Path) -> None:
    """Write the folder; a file that is as it should be is left alone. OSError where it cannot be written."""
    package = files(PLUGIN)
    wanted = {f"{PLUGIN}/{name}": package.joinpath(name).read_text(encoding="utf-8") for name in _MODULES}
    for name, text in {**wanted, **_TEXTS}.items():
        path = folder / name
        with suppress(FileNotFoundError, UnicodeDecodeError):
            if path.read_text(encoding="utf-8") == text:
                continue
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.new")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)


def kept_out(environment: Mapping[str, str]) -> str | None:
    """Return why vLLM will not load the plugin, None if it will: VLLM_PLUGINS names all that it may load."""
    allowed = environment.get("VLLM_PLUGINS")
    if allowed is None or PLUGIN in allowed.split(","):
        return None
    return f"VLLM_PLUGINS of the server's environment does not name {PLUGIN}"


def with_shim(environment: Mapping[str, str], folder: Path, told: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the folder in front of the operator's own PYTHONPATH, and what the shim is told."""
    found = environment.get("PYTHONPATH")
    python_path = f"{folder}{os.pathsep}{found}" if found else str(folder)
    return {**environment, "PYTHONPATH": python_path, **told}
