"""Secrets that the operator keeps in a file stay in one: a command line can be read by everybody on the host."""

import os
from collections.abc import Mapping
from pathlib import Path

from vllmd.model.flags import FlagValue

NAME = "secrets.yaml"


def write_secrets(folder: Path, options: Mapping[str, FlagValue]) -> Path:
    """Write options for vLLM's --config into a file that only its owner reads; return its path. OSError if it fails."""
    import yaml  # noqa: PLC0415 - most instances have no such options

    path = folder / NAME
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        yaml.safe_dump(
            {n: list(v) if isinstance(v, tuple) else v for n, v in options.items()}, file, default_flow_style=None
        )
    return path
