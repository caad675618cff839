"""`vllmd resume`: end a pause before its time."""

import click

from vllmd.cli.ordering import instance_options, json_option, order, print_json, the_place, this_look
from vllmd.cli.where import Asked
from vllmd.report.pause_text import resumed_page


@click.command("resume")
@instance_options
@json_option
def resume(asked: Asked, *, wants_json: bool) -> None:
    """End a pause; a server that crashed meanwhile and was kept down is recovered.

    Exit code 0: resumed. 4: the daemon does not answer. 5: it is not paused. 77: no permission.
    """
    place = the_place(asked)
    answer = order(place, "resume")
    if wants_json:
        print_json("resume", place, answer)
    else:
        look = this_look()
        click.echo(resumed_page(place.name, answer, look), nl=False, color=look.colour)
