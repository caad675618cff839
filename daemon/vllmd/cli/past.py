"""How the command line learns of the past: from the daemon, or from the ledger itself where no daemon answers."""

from collections.abc import Callable, Mapping
from typing import Any

from vllmd.cli.exits import Exit
from vllmd.cli.ordering import fail
from vllmd.cli.places import Places
from vllmd.errors import ControlError, VllmdError
from vllmd.report.ask import DeniedError, UnreachableError, ask

_ANSWER_LIMIT_S = 5.0

Document = dict[str, Any]


def past(
    place: Places, command: str, arguments: Mapping[str, object], otherwise: Callable[[], Document]
) -> tuple[Document, str]:
    """Return the document of a reading command, and why the daemon did not answer (empty if it did).

    `otherwise` reads the ledger. Ends with code 77 without permission, and 4 where neither can be read.
    """
    try:
        return ask(place.control, command, _ANSWER_LIMIT_S, **arguments), ""
    except DeniedError as error:
        fail(str(error), f"sudo vllmd {command} {place.name}", Exit.NO_PERMISSION)
    except UnreachableError as error:
        silent = str(error)
    except ControlError as error:
        fail(str(error), f"vllmd status {place.name}", Exit.UNREACHABLE)
    try:
        return otherwise(), silent
    except PermissionError as error:
        fail(f"{silent}; {error}", f"sudo vllmd {command} {place.name}", Exit.NO_PERMISSION)
    except VllmdError as error:
        fail(f"{silent}; {error}", f"vllmd status {place.name}", Exit.UNREACHABLE)
