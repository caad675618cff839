"""`vllmd pause`: vllmd keeps its hands off a server for a while."""

import click

from vllmd.cli.ordering import instance_options, json_option, order, print_json, the_place, this_look
from vllmd.cli.where import Asked
from vllmd.config.durations import parse_duration, show_duration
from vllmd.model.orders import PAUSE_LIMIT_S
from vllmd.report.pause_text import paused_page

# A working day: a pause that somebody forgot does not last for weeks.
_USUAL = "8h"


@click.command("pause")
@instance_options
@click.option("--for", "length", metavar="TIME", help=f"How long: 30m, 2h, 1d. Without it {_USUAL}.")
@click.option("--forever", is_flag=True, help="Until `vllmd resume`.")
@click.option("--reason", default="", metavar="TEXT", help="Why; shown in every status.")
@click.option("--keep-recovery", is_flag=True, help="Still start a server again that crashes.")
@json_option
def pause(
    asked: Asked, length: str | None, reason: str, *, forever: bool, keep_recovery: bool, wants_json: bool
) -> None:
    """Leave the server as it is for a while: no change, no restart, also none after a crash (but --keep-recovery).

    A start or a drain that runs goes on, and `vllmd restart` still restarts. Asked again it begins anew.
    Exit code 0: paused. 4: the daemon does not answer. 5: it refused. 77: no permission.
    """
    for_s = _length_s(length, forever=forever)
    place = the_place(asked)
    answer = order(place, "pause", for_s=for_s, reason=reason, keep_recovery=keep_recovery)
    if wants_json:
        print_json("pause", place, answer)
    else:
        look = this_look()
        click.echo(paused_page(place.name, answer, look), nl=False, color=look.colour)


def _length_s(length: str | None, *, forever: bool) -> float | None:
    """Return the seconds that are asked for, None for no end; exit code 2 for what is no length of time."""
    if forever:
        if length is not None:
            raise click.UsageError("--for and --forever exclude each other")
        return None
    for_s = parse_duration(_USUAL if length is None else length)
    if for_s is None or not 0 < for_s <= PAUSE_LIMIT_S:
        text = f'found {length!r}, wanted a time up to {show_duration(PAUSE_LIMIT_S)} like "30m", "2h", or --forever'
        raise click.BadParameter(text, param_hint="--for")
    return for_s
