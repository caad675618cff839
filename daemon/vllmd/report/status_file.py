"""status.json: the last status document on disk, for when the daemon is dead."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = "vllmd.status/v1"
_READ_LIMIT = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Stored:
    """What was read back: the document, or the problem in words."""

    document: Mapping[str, Any] | None
    problem: str = ""


def write_status(path: Path, document: Mapping[str, Any]) -> None:
    """Replace the file atomically, mode 0640. Without fsync: the next change writes it anew. Raises OSError."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o640)  # whatever the umask was
        json.dump(document, file)
    fresh.replace(path)


def read_status(path: Path) -> Stored:
    """Return the stored document, or why there is none: a broken file is named, never fatal."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_READ_LIMIT)
    except FileNotFoundError:
        return Stored(None, f"{path} does not exist")
    except OSError as error:
        return Stored(None, f"{path} cannot be read: {error.strerror or error}")
    except UnicodeDecodeError:
        return Stored(None, f"{path} is not a status file")
    return _parsed(text, path)


def _parsed(text: str, path: Path) -> Stored:
    """Return the document of the file's text."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return Stored(None, f"{path} is not a status file")
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        return Stored(None, f"{path} is not a status file of a version that this vllmd reads ({SCHEMA})")
    return Stored(document)
