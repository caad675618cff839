"""`vllmd doctor`: whether all is there that an instance needs, a line each, and what to do. Light to import."""

import json
import sys
from pathlib import Path

import click

from vllmd.cli.exits import Exit
from vllmd.cli.ordering import instance_options, the_place, this_look
from vllmd.cli.places import Places
from vllmd.cli.where import Asked
from vllmd.errors import ControlError
from vllmd.report.ask import DeniedError, ask
from vllmd.report.doctor_running import daemon_check, running_checks
from vllmd.report.doctor_text import Check, doctor_document, doctor_page, failed
from vllmd.report.reading import Fields
from vllmd.report.status_file import read_status
from vllmd.report.status_text import Seen


@click.command("doctor")
@instance_options
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object (vllmd.doctor/v1).")
def doctor(asked: Asked, *, wants_json: bool) -> None:
    """Check what an instance needs: vLLM, vllmd_shim, restarts, GPUs, state, service, metrics. Changes nothing.

    Of a server that serves its daemon is asked; all else is looked at from here, by this user. Exit code 0: nothing is
    bad, perhaps something is to be looked at. 1: something is bad.
    """
    place = the_place(asked)
    checks = examined(place, asked.config)
    if wants_json:
        print(json.dumps(doctor_document(place.name, checks), indent=2))
    else:
        look = this_look()
        click.echo(doctor_page(place.name, checks, look), nl=False, color=look.colour)
    sys.exit(Exit.FAILURE if failed(checks) else Exit.OK)


def examined(place: Places, config: Path | None) -> list[Check]:
    """Return every check, in the order in which an instance needs what they look at."""
    from vllmd.cli.doctor_configuration import configuration_checks  # noqa: PLC0415 - not for `vllmd doctor --help`
    from vllmd.cli.doctor_host import host_checks  # noqa: PLC0415 - likewise

    seen = _seen(place)
    told = seen.instance if seen.live else {}
    configured = configuration_checks(place.name, config, _argv(seen.instance))
    running = running_checks(told)
    expected = {check.name: check for check in configured.expected}
    expected.update({check.name: check for check in running})  # what runs says more than what is expected
    host = host_checks(place, told, configured.metrics, alive=seen.live or seen.denied)
    return [*configured.checks, daemon_check(seen), *expected.values(), *host]


def _seen(place: Places) -> Seen:
    """Return what the daemon tells, else what it told last."""
    try:
        return Seen(place.name, ask(place.control, "status"))
    except DeniedError as error:
        return Seen(place.name, None, str(error), denied=True)
    except ControlError as error:
        return Seen(place.name, read_status(place.status_file).document, str(error))


def _argv(instance: Fields) -> tuple[str, ...]:
    """Return the command that the daemon runs, or ran: it need not stand in a file."""
    argv = instance.get("argv")
    return tuple(map(str, argv)) if isinstance(argv, list) else ()
