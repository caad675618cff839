"""`vllmd run`: keep one server alive, in the foreground."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from vllmd.cli.exits import Exit
from vllmd.cli.findings import render
from vllmd.cli.where import DEFAULT_NAME
from vllmd.config.files import config_files, etc_folder
from vllmd.config.load import load_settings
from vllmd.errors import ConfigError, Severity, VllmdError, used_up
from vllmd.model.settings import Settings

# The embedded default: served when there is no vLLM to serve with.
SIMULATED = ("-m", "vllmd_sim", "serve", "simulated/llama-8b", "--host", "127.0.0.1", "--port", "8000")


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--instance", "--name", "name", default=DEFAULT_NAME, envvar="VLLMD_INSTANCE", metavar="NAME")
@click.option("--config", type=click.Path(path_type=Path), help="Read this file alone, not those of /etc/vllmd.")
@click.option("--state-dir", metavar="DIR", help="Keep state, logs and the control socket under DIR/NAME.")
def run(command: tuple[str, ...], name: str, config: Path | None, state_dir: str | None) -> None:
    """Keep one `vllm serve` alive, inside its memory and its latency targets.

    COMMAND is the server's command as you run it today, after `--`: vllmd run -- vllm serve MODEL. It replaces the
    one in the configuration. Without any, a simulated server is run.
    """
    overrides: dict[str, object] = {"engine.argv": command} if command else {}
    if state_dir is not None:
        overrides["state.dir"] = str(Path(state_dir).absolute())
    try:
        simulates = name == DEFAULT_NAME and "NOTIFY_SOCKET" not in os.environ  # a service was meant to serve a model
        settings = _settings(name, config, _simulated(name, config, overrides) if simulates else overrides)
        sys.exit(_serve(settings, lambda: _settings(name, config, overrides)))
    except ConfigError as error:
        print(render(error.findings), file=sys.stderr)
        sys.exit(Exit.CONFIG)
    except VllmdError as error:
        print(f"vllmd: {error}", file=sys.stderr)
        sys.exit(Exit.FAILURE)
    except OSError as error:
        if not used_up(error):
            raise
        print(f"vllmd: {error}: ending; a server that runs is left to the next vllmd", file=sys.stderr)
        sys.exit(Exit.FAILURE)


def _settings(name: str, config: Path | None, overrides: Mapping[str, object]) -> Settings:
    """Load the settings, and say what is to be warned of."""
    files = config_files(name, config, etc_folder(os.environ))
    settings, warnings = load_settings(name, files=files, environ=os.environ, overrides=overrides)
    if warnings:
        print(render([w for w in warnings if w.severity is Severity.WARNING]), file=sys.stderr)
    return settings


def _simulated(name: str, config: Path | None, overrides: Mapping[str, object]) -> Mapping[str, object]:
    """Return the overrides; without a command and a configuration those of the simulated server, and say so."""
    if "engine.argv" in overrides or config_files(name, config, etc_folder(os.environ)):
        return overrides
    print("vllmd: no command and no configuration: running vllmd_sim, a SIMULATED server", file=sys.stderr)
    return {**overrides, "engine.argv": (sys.executable, *SIMULATED)}


def _serve(settings: Settings, load: Callable[[], Settings]) -> int:
    """Run the daemon; `load` reads its settings anew. Its imports are paid here, not by every command."""
    from vllmd.cli.building import build  # noqa: PLC0415 - 300 ms that `vllmd --help` need not pay

    with build(settings, os.environ, load) as daemon:
        asyncio.run(daemon.run())
    return Exit.OK
