"""Which files an instance is configured by."""

import re
from collections.abc import Mapping
from pathlib import Path

from vllmd.errors import ConfigError, Finding

DEFAULT_ETC = Path("/etc/vllmd")
_INSTANCE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


def etc_folder(environ: Mapping[str, str]) -> Path:
    """Return the configuration's folder: what systemd passes on as ConfigurationDirectory=, else /etc/vllmd."""
    folders = environ.get("CONFIGURATION_DIRECTORY", "").split(":")
    return Path(folders[0]) if folders[0] else DEFAULT_ETC


def config_files(name: str, config: Path | None, etc: Path = DEFAULT_ETC) -> tuple[Path, ...]:
    """Return the files that an instance reads, the last one wins: vllmd.toml, vllmd.d/*.toml, NAME.toml.

    A named `config` replaces them all, and is returned whether it exists or not. Raises ConfigError for a name that
    is no file name, or a folder that cannot be listed.
    """
    if not _INSTANCE_NAME.fullmatch(name):
        wanted = "letters, digits, dots, dashes and underscores, at most 64"
        raise ConfigError([Finding("E108", f"{name!r} is not an instance's name", "", name, wanted)])
    if config is not None:
        return (config,)
    chain = (etc / "vllmd.toml", *_drop_ins(etc / "vllmd.d"), etc / f"{name}.toml")
    return tuple(path for path in dict.fromkeys(chain) if _may_exist(path))


def _drop_ins(folder: Path) -> list[Path]:
    """Return a folder's *.toml in the order of their names, without hidden ones: editors keep their locks there."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        message = f"the folder cannot be read: {why}"
        raise ConfigError([Finding("E102", message, "", why, "a readable folder", str(folder))]) from error
    return [folder / name for name in names if name.endswith(".toml") and not name.startswith(".")]


def _may_exist(path: Path) -> bool:
    """Whether a file is there, or may be there and cannot be seen: reading it then says why."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
