"""`vllmd check`: whether the configuration can be used, before anything is started or reloaded."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from vllmd.act.environment import child_environment
from vllmd.cli.command_findings import SeenCommand, see_command
from vllmd.cli.exits import Exit
from vllmd.cli.expectations import Expectations, expectations
from vllmd.cli.findings import as_json, render, summary
from vllmd.cli.terminal import wants_colour
from vllmd.config.env_file import read_env_file
from vllmd.config.files import config_files, etc_folder
from vllmd.config.load import in_order, load_settings
from vllmd.config.profiles import profile_of
from vllmd.errors import ConfigError, Finding, Severity
from vllmd.model.settings import Settings
from vllmd.report.doctor_text import restart_check


@click.command("check")
@click.argument("name", default="default", envvar="VLLMD_INSTANCE")
@click.option("--instance", metavar="NAME", help="The instance; the same as NAME.")
@click.option("--config", type=click.Path(path_type=Path), help="Check this file alone, not those of /etc/vllmd.")
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", help="When to colour.")
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object (vllmd.check/v1).")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only, and nothing when there are none.")
def check(name: str, instance: str | None, config: Path | None, color: str, *, wants_json: bool, quiet: bool) -> None:
    """Check an instance's configuration. Changes nothing and needs no daemon.

    Exit code 0: it can be used, perhaps with warnings. 78: it cannot.
    """
    found = examine(instance or name, config, os.environ)
    errors = [f for f in found.findings if f.severity is Severity.ERROR]
    if wants_json:
        print(_as_json(found))
    elif quiet:
        _print(errors, color)
    else:
        _print(found.findings, color)
        print(summary(found.findings, len(found.files)))
        if found.expected is not None:
            print(f"Restarts: {restart_check(found.expected.plain).said}.")
    sys.exit(Exit.CONFIG if errors else Exit.OK)


@dataclass(frozen=True, slots=True)
class Examined:
    """The files that an instance reads, everything that is wrong with them, and what their command lets expect.

    `expected`, `seen` and `settings` are None where the files themselves cannot be read.
    """

    files: tuple[Path, ...]
    findings: tuple[Finding, ...]
    settings: Settings | None = None
    seen: SeenCommand | None = None
    expected: Expectations | None = None


def examine(
    name: str, config: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object] | None = None
) -> Examined:
    """Return what is wrong with an instance's configuration and with what it names; `overrides` stand above it."""
    files: tuple[Path, ...] = ()
    try:
        files = config_files(name, config, etc_folder(environ))
        settings, warnings = load_settings(name, files=files, environ=environ, overrides=overrides)
    except ConfigError as error:
        return Examined(files, error.findings)
    variables, in_env_file = _read_variables(settings)
    environment = child_environment(environ, variables)
    seen = see_command(settings, environment)
    found = in_order((*warnings, *in_env_file, *_in_profile(settings), *seen.findings), files)
    expected = expectations(settings, environment, seen) if seen.command is not None else None
    return Examined(files, tuple(found), settings, seen, expected)


def _in_profile(settings: Settings) -> tuple[Finding, ...]:
    """Return what is wrong with the profile of the policies."""
    try:
        profile_of(settings)
    except ConfigError as error:
        return error.findings
    return ()


def _read_variables(settings: Settings) -> tuple[dict[str, str], tuple[Finding, ...]]:
    """Return the server's own variables, or what is wrong with their file; a note says where it is named."""
    if settings.engine.env_file is None:
        return {}, ()
    try:
        return read_env_file(Path(settings.engine.env_file)), ()
    except ConfigError as error:
        named = f"engine.env_file is set in {settings.origins['engine.env_file']}"
        return {}, tuple(replace(finding, notes=(*finding.notes, named)) for finding in error.findings)


def _print(findings: Sequence[Finding], color: str) -> None:
    if findings:
        wanted = wants_colour(color, os.environ, is_terminal=sys.stdout.isatty())
        print(render(findings, color=wanted), end="\n\n")


def _as_json(found: Examined) -> str:
    findings, expected = found.findings, found.expected
    return json.dumps(
        {
            "schema": "vllmd.check/v1",
            "files": [str(file) for file in found.files],
            "errors": sum(finding.severity is Severity.ERROR for finding in findings),
            "warnings": sum(finding.severity is Severity.WARNING for finding in findings),
            "findings": [as_json(finding) for finding in findings],
            "restart": None if expected is None else {"planned": expected.plain is None, "plain": expected.plain},
        }
    )
