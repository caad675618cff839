"""`vllmd history`: what was changed, when, why, what it cost and what it brought."""

import json
import time
from datetime import UTC, datetime
from typing import Any

import click

from vllmd.cli.exits import Exit
from vllmd.cli.ordering import fail, instance_options, json_option, the_place, this_look
from vllmd.cli.past import past
from vllmd.cli.where import Asked
from vllmd.config.durations import parse_duration
from vllmd.report.history_text import history_page

_MOST = 200  # decisions a page, as report.ledger_history says too


def moment(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """Return a time in unix seconds: RFC 3339, a day, or how long ago ("7d"); UTC where it names no zone."""
    if value is None:
        return None
    ago_s = parse_duration(value)
    if ago_s is not None:
        return time.time() - ago_s
    try:
        found = datetime.fromisoformat(value)
    except ValueError as error:
        text = f'{value!r} is no time: write "7d", "2026-09-24" or "2026-09-24T14:02:31Z"'
        raise click.BadParameter(text) from error
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


@click.command("history")
@instance_options
@click.option("--since", "since_s", callback=moment, metavar="TIME", help='From this time on: "7d" ago, or a date.')
@click.option("--until", "until_s", callback=moment, metavar="TIME", help="Up to this time.")
@click.option("--all", "holds", is_flag=True, help="Holds, too: decisions to do nothing.")
@click.option("--trigger", metavar="T", help="Only what this set off: runtime-oom, itl_p99, admin, first, quiet, ...")
@click.option("--limit", type=click.IntRange(1, _MOST), default=20, show_default=True, help="Decisions a page.")
@click.option("--before", metavar="ID", help="Only what was decided before this decision: the next page.")
@json_option
def history(asked: Asked, *, wants_json: bool, **wanted: Any) -> None:  # noqa: ANN401 - what the options above hold
    """Show the decisions of an instance, newest first; from the ledger's file when the daemon is dead.

    Exit code 0: shown. 1: there is no decision --before. 4: neither daemon nor ledger can be read. 77: no permission.
    """
    place = the_place(asked)

    def from_file() -> dict[str, Any]:
        from vllmd.report.history_json import history as read  # noqa: PLC0415 - 100 ms, only without a daemon
        from vllmd.report.ledger_history import Asked as Wanted  # noqa: PLC0415 - likewise

        return read(place.state, place.name, Wanted(**wanted))

    document, _ = past(place, "history", wanted, from_file)
    if document.get("decisions") is None:
        fail(f"there is no decision {wanted['before']}", f"vllmd history {place.name}", Exit.FAILURE)
    if wants_json:
        print(json.dumps(document, indent=2))
    else:
        look = this_look()
        click.echo(history_page(document, look), nl=False, color=look.colour)
