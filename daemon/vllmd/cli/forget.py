"""`vllmd forget`: let what was tried before no longer count."""

import sys

import click

from vllmd.cli.exits import Exit
from vllmd.cli.ordering import fail, instance_options, json_option, order, print_json, the_place
from vllmd.cli.where import Asked
from vllmd.model.plain import plain


@click.command("forget")
@instance_options
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask on.")
@json_option
def forget(asked: Asked, *, yes: bool, wants_json: bool) -> None:
    """Forget what is banned and which flags were good: the next start of vllmd begins with your own command.

    The flags in force stay until then, the history and the used budget stay for good. Exit code 0: forgotten.
    1: you said no. 4: the daemon does not answer. 5: it refused. 77: no permission.
    """
    place = the_place(asked)
    if not yes:
        _ask(place.name)
    answer = order(place, "forget")
    if wants_json:
        print_json("forget", place, answer)
    else:
        print(f"{place.name}: {plain(str(answer.get('message', 'forgotten')))}")
        print(f"`vllmd history {place.name}` still shows what was tried")


def _ask(name: str) -> None:
    """Go on if the operator says yes; exit code 2 where nobody can be asked, 1 for no."""
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on: say --yes")
    question = f"Forget the bans and the last good flags of {name}? What failed may then be tried again"
    if not click.confirm(question, err=True):
        fail("nothing was forgotten", f"vllmd history {name}", Exit.FAILURE)
