"""`vllmd status`: what an instance does, and why. Light to import: it runs in watch loops and over ssh."""

import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from vllmd.cli.exits import Exit
from vllmd.cli.places import Places
from vllmd.cli.terminal import is_utf8, wants_colour
from vllmd.cli.where import Asked, all_places, this_caller
from vllmd.errors import ControlError, VllmdError
from vllmd.report.ask import DeniedError, ask
from vllmd.report.drawing import Look
from vllmd.report.status_file import SCHEMA, read_status
from vllmd.report.status_text import Seen, page

_WATCH_EVERY_S = 2.0
_CLEAR = "\x1b[H\x1b[2J"
# The worst of several instances decides.
_WORST_FIRST = (Exit.NO_PERMISSION, Exit.UNREACHABLE, Exit.NOT_SERVING, Exit.DEGRADED, Exit.OK)


class WatchingCommand(click.Command):
    """A command whose --watch takes its seconds only where a number follows: `status -w qwen` names an instance."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line."""
        return super().parse_args(ctx, with_interval(args))


def with_interval(args: Sequence[str]) -> list[str]:
    """Return the arguments with every bare --watch given its default interval."""
    found: list[str] = []
    for arg, following in zip(args, [*args, ""][1:], strict=True):
        found.append(arg)
        if arg in ("-w", "--watch") and not _is_number(following):
            found.append(str(_WATCH_EVERY_S))
    return found


def _is_number(text: str) -> bool:
    """Whether a word is a number of seconds."""
    return text.replace(".", "", 1).isdecimal()


@click.command("status", cls=WatchingCommand)
@click.argument("name", required=False, envvar="VLLMD_INSTANCE")
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object (vllmd.status/v1).")
@click.option(
    "-w", "--watch", "every_s", type=click.FloatRange(min=0.1), metavar="[S]", help="Draw anew every S (2) s."
)
@click.option("--exit-code", "counts_degraded", is_flag=True, help="Exit 11 when it serves, but degraded.")
@click.option("--ascii", "only_ascii", is_flag=True, help="Draw in ASCII.")
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", help="When to colour.")
@click.option("--socket", type=click.Path(path_type=Path), help="Ask on this control socket.")
@click.option("--config", type=click.Path(path_type=Path), help="Read this file alone to learn where it answers.")
@click.option("--state-dir", metavar="DIR", help="Folder above the instance's state folder.")
def status(
    name: str | None,
    every_s: float | None,
    color: str,
    socket: Path | None,
    config: Path | None,
    state_dir: str | None,
    *,
    wants_json: bool,
    counts_degraded: bool,
    only_ascii: bool,
) -> None:
    """Show an instance: state, targets, memory, flags, decisions. Without NAME: all that are found.

    Exit code 0: it serves. 3: it does not. 4: the daemon does not answer. 77: no permission.
    """
    look = Look(
        ascii=only_ascii or not is_utf8(os.environ, sys.stdout.encoding),
        colour=wants_colour(color, os.environ, is_terminal=sys.stdout.isatty()),
    )
    try:
        there = all_places(Asked(name, socket, config, state_dir), this_caller())
    except VllmdError as error:
        raise click.UsageError(str(error)) from error
    if every_s is None:
        seen = [look_at(place) for place in there]
        _show(seen, look, wants_json=wants_json, indent=2)
        sys.exit(exit_code(seen, counts_degraded=counts_degraded))
    _watch(there, look, every_s, wants_json=wants_json)


def look_at(place: Places) -> Seen:
    """Return what can be learned of one instance: from the daemon, else from what it told last."""
    try:
        return Seen(place.name, ask(place.control, "status"))
    except DeniedError as error:
        return Seen(place.name, None, str(error), denied=True)
    except ControlError as error:
        stored = read_status(place.status_file)
        problem = str(error) if stored.document else f"{error}; {stored.problem}"
        return Seen(place.name, stored.document, problem)


def exit_code(seen: Sequence[Seen], *, counts_degraded: bool) -> Exit:
    """Return the exit code for what was seen."""
    codes = {_code(one, counts_degraded=counts_degraded) for one in seen}
    return next(code for code in _WORST_FIRST if code in codes)


def _code(seen: Seen, *, counts_degraded: bool) -> Exit:
    """Return the exit code for one instance."""
    if seen.denied:
        return Exit.NO_PERMISSION
    if not seen.live:
        return Exit.UNREACHABLE
    if seen.instance.get("state") != "serving":
        return Exit.NOT_SERVING
    return Exit.DEGRADED if counts_degraded and seen.instance.get("degraded") else Exit.OK


def as_document(seen: Sequence[Seen]) -> dict[str, Any]:
    """Return one status document of all instances; the state of one whose daemon is silent is unknown."""
    first: dict[str, Any] = next((dict(one.document) for one in seen if one.document), {})
    about = {key: first.get(key) for key in ("time", "host", "vllmd")}
    return {"schema": SCHEMA, **about, "instances": [_instance(one) for one in seen]}


def _instance(seen: Seen) -> dict[str, Any]:
    """Return one element of `instances`."""
    if seen.live:
        return dict(seen.instance)
    last = {"last_state": seen.instance.get("state"), "last_seen": (seen.document or {}).get("time")}
    return {"name": seen.name, **seen.instance, "state": "unknown", "health": None, "problem": seen.problem, **last}


def _show(seen: Sequence[Seen], look: Look, *, wants_json: bool, indent: int | None) -> None:
    """Print what was seen, as a page, a table or JSON."""
    if wants_json:
        text = json.dumps(as_document(seen), indent=indent) + "\n"
    elif len(seen) == 1:
        text = page(seen[0], look, datetime.now(UTC))
    else:
        from vllmd.report.status_table import table  # noqa: PLC0415 - one instance is asked for most often

        text = table(seen, look)
    click.echo(text, nl=False, color=look.colour)


def _watch(there: Sequence[Places], look: Look, every_s: float, *, wants_json: bool) -> None:
    """Draw again and again until interrupted; JSON as one line a time."""
    try:
        while True:
            seen = [look_at(place) for place in there]
            if sys.stdout.isatty() and not wants_json:
                click.echo(_CLEAR, nl=False)
            _show(seen, look, wants_json=wants_json, indent=None)
            sys.stdout.flush()
            time.sleep(every_s)  # the operator's own interval; an interrupt ends it
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
