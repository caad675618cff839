"""`vllmd restart`: a drained restart that the operator asks for."""

import json
import sys
from pathlib import Path
from typing import NoReturn

import click

from vllmd.cli.exits import Exit
from vllmd.cli.where import Asked, one_place, this_caller
from vllmd.errors import ControlError, VllmdError
from vllmd.model.masking import plain
from vllmd.report.ask import DeniedError, UnreachableError, ask


@click.command("restart")
@click.argument("name", required=False, envvar="VLLMD_INSTANCE")
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object.")
@click.option("--socket", type=click.Path(path_type=Path), help="Ask on this control socket.")
@click.option("--config", type=click.Path(path_type=Path), help="Read this file alone to learn where it answers.")
@click.option("--state-dir", metavar="DIR", help="Folder above the instance's state folder.")
def restart(
    name: str | None, socket: Path | None, config: Path | None, state_dir: str | None, *, wants_json: bool
) -> None:
    """Restart the server of an instance, draining it first; also out of held and backoff.

    Exit code 0: it was begun. 4: the daemon does not answer. 5: it refused. 77: no permission.
    """
    try:
        place = one_place(Asked(name, socket, config, state_dir), this_caller())
    except VllmdError as error:
        raise click.UsageError(str(error)) from error
    try:
        answer = ask(place.control, "restart")
    except DeniedError as error:
        _fail(str(error), f"sudo vllmd restart {place.name}", Exit.NO_PERMISSION)
    except UnreachableError as error:
        _fail(str(error), f"vllmd status {place.name}", Exit.UNREACHABLE)
    except ControlError as error:
        _fail(str(error), f"vllmd status {place.name}", Exit.REFUSED)
    if wants_json:
        print(json.dumps({"schema": "vllmd.restart/v1", "name": place.name, **answer}))
    else:
        print(f"{place.name}: {plain(str(answer.get('message', 'restart begun')))}")
        print(f"`vllmd status {place.name} -w` to watch")


def _fail(problem: str, next_command: str, code: Exit) -> NoReturn:
    """Say on stderr what is wrong and what to type, and end."""
    click.echo(f"vllmd: {plain(problem)}\n`{next_command}`", err=True)
    sys.exit(code)
