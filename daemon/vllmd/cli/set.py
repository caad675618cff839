"""`vllmd set`: a flag of the running server takes another value at once, without a restart."""

import os
import time
from dataclasses import replace
from typing import Any

import click

from vllmd.cli.ordering import json_option, order, place_options, print_json, the_place
from vllmd.cli.places import Places
from vllmd.cli.where import Asked
from vllmd.config.durations import parse_duration, show_duration
from vllmd.model.orders import PAUSE_LIMIT_S
from vllmd.model.plain import plain
from vllmd.report.live_text import set_line
from vllmd.report.reading import Fields, part, parts, text

_CONFIRM_S = 2.0  # for a busy engine's next step: the longest honest one that was seen took 0.96 s
_POLL_S = 0.05
_LAUNCHED = "launched"


@click.command("set")
@click.argument("name", required=False, envvar="VLLMD_INSTANCE")
@click.argument("assignment", required=False, metavar="FLAG=VALUE")
@click.option("--for", "length", metavar="TIME", help="How long: 30s, 10m, 2h. Without it until it is set again.")
@place_options
@json_option
def set(  # noqa: A001 - the command's name
    asked: Asked, assignment: str | None, length: str | None, *, wants_json: bool
) -> None:
    """Set max-num-batched-tokens or max-num-seqs of the running server, up to what it was launched with.

    FLAG=launched ends what was set. It takes no restart; a restart of the server begins with the launched value again.
    Exit code 0: set. 4: the daemon does not answer. 5: it refused, and says why. 77: no permission.
    """
    if assignment is None and asked.name is not None and "=" in asked.name:
        assignment, asked = asked.name, replace(asked, name=os.environ.get("VLLMD_INSTANCE"))
    flag, value = read_assignment(assignment)
    place = the_place(asked)
    answer = order(place, "set", flag=flag, value=value, for_s=_length_s(length))
    knob = _confirmed(place, answer, flag)
    if wants_json:
        print_json("set", place, {"id": answer.get("id"), **knob})
        return
    print(f"{place.name}: {plain(set_line(knob))} ({plain(text(answer, 'id'))})")
    if knob.get("asked") is not None:
        print(f"a restart of the server begins with {plain(str(knob.get('launched')))} again; sooner:")
        print(f"`vllmd set {place.name} {flag}={_LAUNCHED}`")


def read_assignment(assignment: str | None) -> tuple[str, int | None]:
    """Return the flag and its value, None for the launched one; exit code 2 for what is neither."""
    name, equals, value = (assignment or "").removeprefix("--").partition("=")
    if not name or not equals:
        raise click.UsageError(f"found {assignment!r}, wanted FLAG=VALUE like max-num-batched-tokens=1024")
    if value == _LAUNCHED:
        return name.replace("_", "-"), None
    if not value.isdecimal():
        raise click.UsageError(f"found {value!r}, wanted a whole number or {_LAUNCHED!r}")
    return name.replace("_", "-"), int(value)


def _length_s(length: str | None) -> float | None:
    """Return the seconds that are asked for, None for no end; exit code 2 for what is no length of time."""
    for_s = None if length is None else parse_duration(length)
    if length is not None and (for_s is None or not 0 < for_s <= PAUSE_LIMIT_S):
        text_ = f'found {length!r}, wanted a time up to {show_duration(PAUSE_LIMIT_S)} like "30s", "10m", "2h"'
        raise click.BadParameter(text_, param_hint="--for")
    return for_s


def _confirmed(place: Places, answer: dict[str, Any], flag: str) -> Fields:
    """Return what the engine says of a flag when a step has looked at it, or at the end of the limit."""
    deadline = time.monotonic() + _CONFIRM_S
    while True:
        knob = next((k for k in parts(part(answer, "live"), "flags") if k.get("flag") == flag), {})
        if knob.get("settled") is True or time.monotonic() > deadline:
            return knob
        time.sleep(_POLL_S)  # the engine's step sends no event
        answer = order(place, "live")
