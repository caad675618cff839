"""What commands about one instance share: which one is meant, the question to its daemon, a refusal's exit code."""

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click

from vllmd.cli.exits import Exit
from vllmd.cli.places import Places
from vllmd.cli.terminal import is_utf8, wants_colour
from vllmd.cli.where import Asked, all_places, this_caller
from vllmd.errors import ControlError, VllmdError
from vllmd.model.plain import plain
from vllmd.report.ask import DeniedError, UnreachableError, ask
from vllmd.report.drawing import Look

_ANSWER_LIMIT_S = 5.0  # the daemon answers at once, but may be busy with a write to a slow disk


def place_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say where an instance is; the command gets them as one `Asked`, its first argument."""

    @click.option("--socket", type=click.Path(path_type=Path), help="Ask on this control socket.")
    @click.option("--config", type=click.Path(path_type=Path), help="Read this file alone to learn where it answers.")
    @click.option("--state-dir", metavar="DIR", help="Folder above the instance's state folder.")
    @functools.wraps(command)
    def with_asked(
        *, name: str | None, socket: Path | None, config: Path | None, state_dir: str | None, **others: object
    ) -> None:
        command(Asked(name, socket, config, state_dir), **others)

    return with_asked


def instance_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the instance's name and the options that say where it is."""
    named: Callable[..., None] = click.argument("name", required=False, envvar="VLLMD_INSTANCE")(place_options(command))
    return named


def json_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add --json."""
    return click.option("--json", "wants_json", is_flag=True, help="Print one JSON object.")(command)


def the_place(asked: Asked) -> Places:
    """Return the place of the instance that is meant: the named one, or the only one there is.

    Raises click.UsageError where several are found and none is named, and for a bad name or configuration.
    """
    try:
        found = all_places(asked, this_caller())
    except VllmdError as error:
        raise click.UsageError(str(error)) from error
    if len(found) > 1:
        names = ", ".join(place.name for place in found)
        raise click.UsageError(f"say which instance: {names}")
    return found[0]


def order(place: Places, command: str, **arguments: object) -> dict[str, Any]:
    """Return the daemon's answer to a command that changes something; end with the refusal's exit code otherwise."""
    try:
        answer = ask(place.control, command, _ANSWER_LIMIT_S, **arguments)
    except DeniedError as error:
        fail(str(error), f"sudo vllmd {command} {place.name}", Exit.NO_PERMISSION)
    except UnreachableError as error:
        fail(str(error), f"vllmd status {place.name}", Exit.UNREACHABLE)
    except ControlError as error:
        fail(str(error), f"vllmd status {place.name}", Exit.REFUSED)
    if "not_stored" in answer:
        click.echo(f"vllmd: done, until vllmd is restarted: {plain(str(answer['not_stored']))}", err=True)
    return answer


def fail(problem: str, next_command: str, code: Exit) -> NoReturn:
    """Say on stderr what is wrong and what to type, and end."""
    click.echo(f"vllmd: {plain(problem)}\n`{next_command}`", err=True)
    sys.exit(code)


def this_look() -> Look:
    """Return how pages are drawn on this process's terminal."""
    return Look(
        ascii=not is_utf8(os.environ, sys.stdout.encoding),
        colour=wants_colour("auto", os.environ, is_terminal=sys.stdout.isatty()),
    )


def print_json(command: str, place: Places, answer: dict[str, Any]) -> None:
    """Print an answer as one JSON object."""
    print(json.dumps({"schema": f"vllmd.{command}/v1", "name": place.name, **answer}))
