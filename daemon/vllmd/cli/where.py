"""Which instances a command means, and where each answers: command line, then configuration, then what is found."""

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllmd.cli.places import Caller, Places, find, instances, places
from vllmd.config.files import config_files, etc_folder
from vllmd.errors import VllmdError
from vllmd.report.reading import part

DEFAULT_NAME = "default"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says of where to look."""

    name: str | None = None
    socket: Path | None = None
    config: Path | None = None
    state_dir: str | None = None


@dataclass(frozen=True, slots=True)
class Configured:
    """What the configuration says of where to look; None: nothing."""

    state_dir: str | None = None
    control: str | None = None


def this_caller() -> Caller:
    """Return who runs this process."""
    return Caller(os.geteuid(), os.environ)


def all_places(asked: Asked, caller: Caller) -> tuple[Places, ...]:
    """Return the places of the instance that is named, else of all that are found, else of the default one.

    Raises VllmdError for a name that is none, and for a configuration file that was named and cannot be read.
    """
    if asked.name is not None or asked.socket is not None:
        return (one_place(asked, caller),)
    state_dir = asked.state_dir or configured(DEFAULT_NAME, asked.config, caller.env).state_dir
    names = instances(caller, state_dir) or (DEFAULT_NAME,)
    return tuple(one_place(Asked(name, None, asked.config, asked.state_dir), caller) for name in names)


def one_place(asked: Asked, caller: Caller) -> Places:
    """Return the place of one instance. Raises VllmdError as `all_places` does."""
    name = asked.name or DEFAULT_NAME
    said = configured(name, asked.config, caller.env)
    state_dir = asked.state_dir or said.state_dir
    # A state folder on the command line moves the socket too: it is for a second daemon beside the configured one.
    control = None if asked.state_dir else said.control
    known = places(name, caller, state_dir=state_dir, control=control) if state_dir or control else find(name, caller)
    return known if asked.socket is None else Places(name, known.state, asked.socket)


def configured(name: str, config: Path | None, environ: Mapping[str, str]) -> Configured:
    """Return what the instance's configuration says; without `config`, files that cannot be read say nothing."""
    said: dict[str, Any] = {}
    for file in _files(name, config, environ):
        try:
            said = _laid_over(said, tomllib.loads(file.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            if config is not None:
                raise VllmdError(f"{file}: {error}") from error
    values = (part(said, "state").get("dir"), part(said, "listen").get("control"))
    from_environ = (environ.get("VLLMD__STATE__DIR"), environ.get("VLLMD__LISTEN__CONTROL"))
    state_dir, control = (text or value for value, text in zip(values, from_environ, strict=True))
    return Configured(*(value if isinstance(value, str) else None for value in (state_dir, control)))


def _files(name: str, config: Path | None, environ: Mapping[str, str]) -> Sequence[Path]:
    """Return the configuration files of an instance."""
    return config_files(name, config, etc_folder(environ))


def _laid_over(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Return two documents merged, tables key by key."""
    tables = {name: {**part(lower, name), **table} for name, table in upper.items() if isinstance(table, dict)}
    return lower | tables
