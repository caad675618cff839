"""What can be said before a launch of its live values and of its restarts: from the command, its source, the kernel."""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vllmd.act.parked_port import ParkedPort, PortFacts, connections_migrate, parking_refused
from vllmd.act.shim_folder import kept_out
from vllmd.cli.command_findings import SeenCommand
from vllmd.model.flags import CHUNKED_PREFILL, DATA_PARALLEL, Flags, api_servers
from vllmd.model.settings import Settings

_HOOK = re.compile(r"^    def get_scheduler_cls\b", re.MULTILINE)  # of SchedulerConfig, which vllmd_shim wraps


@dataclass(frozen=True, slots=True)
class Expectations:
    """Why live values cannot be had, why a restart would be plain; None where nothing speaks against it."""

    no_live: str | None
    plain: str | None


def expectations(settings: Settings, environment: Mapping[str, str], seen: SeenCommand) -> Expectations:
    """Return what is expected of a launch of a command, whose environment is the server's."""
    flags = seen.command.flags if seen.command is not None else Flags()
    out = _kept_out(settings, environment, flags)
    facts = PortFacts(
        api_servers=api_servers(flags),
        unix_socket="uds" in flags,
        counted=out is None,
        shared=out is None,
        migrates=connections_migrate(),
    )
    return Expectations(no_live(settings, environment, seen), parking_refused(facts) or parking_tried())


def no_live(settings: Settings, environment: Mapping[str, str], seen: SeenCommand) -> str | None:
    """Return why live values cannot be had, None where nothing speaks against it."""
    flags = seen.command.flags if seen.command is not None else Flags()
    return _kept_out(settings, environment, flags) or _no_hook(seen) or _no_chunks(flags)


def _kept_out(settings: Settings, environment: Mapping[str, str], flags: Flags) -> str | None:
    """Return why vllmd_shim will not come into the server."""
    if not settings.engine.shim:
        return "engine.shim is off"
    if (flags.number(DATA_PARALLEL) or 1) > 1:
        return f"--{DATA_PARALLEL} is above 1: vllmd_shim is for one engine"
    return kept_out(environment)


def _no_hook(seen: SeenCommand) -> str | None:
    """Return why the scheduler cannot be governed; None, too, where the source cannot be read."""
    installation = seen.installation
    if installation is None or installation.simulated or installation.package_dir is None:
        return None
    config = Path(installation.package_dir) / "config"
    try:
        text = (config / "scheduler.py").read_text(encoding="utf-8") if config.is_dir() else ""
    except (OSError, UnicodeDecodeError):
        text = ""
    return None if _HOOK.search(text) else "this vLLM has no SchedulerConfig.get_scheduler_cls (0.12 and later have it)"


def _no_chunks(flags: Flags) -> str | None:
    return (
        "chunked prefill is off: the token budget cannot be set live" if flags.get(CHUNKED_PREFILL) is False else None
    )


def parking_tried() -> str | None:
    """Return why this process may not park a port, tried on a free one of the loopback; None if it may."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as other:
        try:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            other.bind(("127.0.0.1", 0))
            other.listen()
            ParkedPort("127.0.0.1", other.getsockname()[1]).close()
        except OSError as error:
            return f"a port cannot be parked here: {error.strerror or error}"
    return None
