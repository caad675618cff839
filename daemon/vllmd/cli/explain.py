"""`vllmd explain`: what a decision answered, why it was made, and what came of it; or why nothing is done now."""

import json
import re
from typing import Any

import click

from vllmd.cli.exits import Exit
from vllmd.cli.ordering import fail, json_option, place_options, the_place, this_look
from vllmd.cli.past import past
from vllmd.cli.where import Asked
from vllmd.report.explain_text import explain_markdown, explain_page
from vllmd.report.status_file import read_status

_ID = re.compile(r"[DH][1-9][0-9]*")


@click.command("explain")
@click.argument("words", nargs=-1, metavar="[ID] [NAME]")
@click.option("--name", "name", hidden=True, envvar="VLLMD_INSTANCE")
@place_options
@click.option("--markdown", is_flag=True, help="Write Markdown, for a ticket.")
@json_option
def explain(asked: Asked, words: tuple[str, ...], *, markdown: bool, wants_json: bool) -> None:
    """Explain a decision by its ID (D7, or H7 for a hold); without one, why nothing is done now.

    From the ledger's file when the daemon is dead. Exit code 0: explained. 1: there is no such decision. 4: neither
    daemon nor ledger can be read. 77: no permission.
    """
    decision_id, named = _read(words)
    place = the_place(Asked(named or asked.name, asked.socket, asked.config, asked.state_dir))

    def from_file() -> dict[str, Any]:
        from vllmd.report.history_json import explanation  # noqa: PLC0415 - 100 ms, only without a daemon

        return explanation(place.state, place.name, decision_id, read_status(place.status_file).document or {})

    document, silent = past(place, "explain", {"id": decision_id}, from_file)
    if silent:
        document = {**document, "live": False}
    if decision_id is not None and document.get("decision") is None:
        fail(f"there is no decision {decision_id}", f"vllmd history {place.name} --all", Exit.FAILURE)
    if wants_json:
        print(json.dumps(document, indent=2))
    elif markdown:
        print(explain_markdown(document), end="")
    else:
        look = this_look()
        click.echo(explain_page(document, look), nl=False, color=look.colour)


def _read(words: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Return the decision's id and the instance's name among the words; exit code 2 for anything else."""
    ids = [word for word in words[:1] if _ID.fullmatch(word)]
    names = words[len(ids) :]
    if len(names) > 1:
        raise click.UsageError(f"expected [ID] [NAME], found {' '.join(words)!r}; an ID is one like D7")
    return (ids[0] if ids else None), (names[0] if names else None)
