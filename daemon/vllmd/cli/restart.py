"""`vllmd restart`: a drained restart that the operator asks for."""

import click

from vllmd.cli.ordering import instance_options, json_option, order, print_json, the_place
from vllmd.cli.where import Asked
from vllmd.model.plain import plain


@click.command("restart")
@instance_options
@json_option
def restart(asked: Asked, *, wants_json: bool) -> None:
    """Restart the server of an instance, draining it first; also out of held and backoff, and during a pause.

    Exit code 0: it was begun. 4: the daemon does not answer. 5: it refused. 77: no permission.
    """
    place = the_place(asked)
    answer = order(place, "restart")
    if wants_json:
        print_json("restart", place, answer)
    else:
        print(f"{place.name}: {plain(str(answer.get('message', 'restart begun')))}")
        print(f"`vllmd status {place.name} -w` to watch")
