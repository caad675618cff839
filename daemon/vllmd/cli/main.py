"""The command `vllmd`. Each subcommand is imported when it is called: `vllmd status` must not pay for the daemon."""

import importlib
import sys

import click

from vllmd import __version__

_COMMANDS = (
    "run",
    "check",
    "doctor",
    "status",
    "history",
    "explain",
    "pause",
    "resume",
    "restart",
    "set",
    "forget",
    "reap",
    "diagnose",
    "install-service",
)
_HELP = {
    "run": "Keep one `vllm serve` alive, inside its memory and its latency targets.",
    "check": "Check an instance's configuration.",
    "doctor": "Look whether all is there that an instance needs, and what to do where it is not.",
    "status": "Show what an instance does and why.",
    "history": "Show what was changed, when, why, and what it brought.",
    "explain": "Explain one decision, or why nothing is done now.",
    "pause": "Leave the server as it is for a while.",
    "resume": "End a pause.",
    "restart": "Restart an instance's server, drained.",
    "set": "Set a flag of the running server at once, without a restart.",
    "forget": "Forget what was tried before.",
    "reap": "End the server that a vllmd left.",
    "diagnose": "Say what failed in a log of vLLM, and what helps.",
    "install-service": "Write the systemd unit and its companions.",
}


class LazyGroup(click.Group):
    """A group that imports a subcommand when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of use."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Return a subcommand by name; None for an unknown one."""
        if cmd_name not in _COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(importlib.import_module(f"vllmd.cli.{name}"), name)
        assert isinstance(command, click.Command)  # noqa: S101 - a bug otherwise
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write the list of subcommands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _HELP[name]) for name in _COMMANDS])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="vllmd")
def main() -> None:
    """Keep a vLLM server alive, inside its memory and its latency targets, and say why.

    Start: vllmd run -- vllm serve MODEL. Then, in another shell: vllmd status.
    """


if __name__ == "__main__":
    sys.exit(main())
