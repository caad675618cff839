"""`vllmd reap`: end the server that a vllmd left, where none comes back to take it over."""

import sys
from pathlib import Path

import click

from vllmd.cli.exits import Exit
from vllmd.cli.ordering import fail, instance_options, the_place
from vllmd.cli.where import Asked
from vllmd.errors import InstanceBusyError, VllmdError


@click.command("reap")
@instance_options
@click.option(
    "--grace", "grace_s", type=click.FloatRange(min=0), default=10.0, show_default=True, help="Seconds before SIGKILL."
)
@click.option("--result", metavar="RESULT", help="How the service ended ($SERVICE_RESULT): act on a real stop only.")
@click.option("--job", type=click.Path(path_type=Path), help="File with the manager's job for the service, if any.")
def reap(asked: Asked, *, grace_s: float, result: str | None, job: Path | None) -> None:
    """End the server that a vllmd of this instance left, and only that: SIGTERM, then SIGKILL.

    Exit code 0: nothing of it lives, or it is left on purpose. 1: vllmd runs, or a process cannot be ended.
    """
    from vllmd.cli.reaping import Stop, reap_instance, stop_of  # noqa: PLC0415 - what acts on processes is not light

    stop = Stop.REAL if result is None else stop_of(result, job)
    if stop is Stop.NONE:
        print(f"vllmd: the service ended by {result}: the server is left to the next vllmd")
        return
    if result == "timeout":
        grace_s = 0.0  # it was given its time
    place = the_place(asked)
    try:
        told, left = reap_instance(place.state, grace_s, keep_left=stop is Stop.PERHAPS)
    except InstanceBusyError as error:
        fail(str(error), f"systemctl stop vllmd@{place.name}", Exit.FAILURE)
    except VllmdError as error:
        fail(str(error), f"vllmd status {place.name}", Exit.FAILURE)
    print(f"{place.name}: {told}")
    if left:
        sys.exit(Exit.FAILURE)
