"""What `vllmd doctor` reads from the configuration: whether it is valid, which vLLM it runs, what to expect of it."""

import os
from dataclasses import dataclass
from pathlib import Path

from vllmd.cli.check import Examined, examine
from vllmd.errors import Severity
from vllmd.report.doctor_text import Check, Health, restart_check

_METRICS = "127.0.0.1:9842"  # of [listen], where nothing is configured
_NO_COMMAND = "E109"


@dataclass(frozen=True, slots=True)
class Configured:
    """The checks of the configuration, those of what it lets expect, and the address of the metrics."""

    checks: tuple[Check, ...]
    expected: tuple[Check, ...]
    metrics: str


def configuration_checks(name: str, config: Path | None, argv: tuple[str, ...]) -> Configured:
    """Return the checks; `argv` is the command that the daemon tells, for one whose configuration has none."""
    found = examine(name, config, os.environ)
    told = bool(argv) and any(finding.code == _NO_COMMAND for finding in found.findings)
    if told:
        found = examine(name, config, os.environ, {"engine.argv": argv})
    metrics = found.settings.listen.metrics if found.settings is not None else _METRICS
    checks = [_files(found, name, told=told)]
    if found.seen is not None:
        checks.append(_vllm(found))
    expected: list[Check] = []
    if found.expected is not None:
        expected = [_shim(found.expected.no_live), restart_check(found.expected.plain)]
    return Configured(tuple(checks), tuple(expected), metrics)


def _files(found: Examined, name: str, *, told: bool) -> Check:
    """Return whether the configuration can be used."""
    errors = [f for f in found.findings if f.severity is Severity.ERROR]
    where = "the command that vllmd was started with" if told else _count(len(found.files), "file")
    if errors:
        more = f", and {len(errors) - 1} more" if errors[1:] else ""
        return Check("config", Health.BAD, f"{errors[0].message}{more}", f"vllmd check {name}")
    if found.findings:
        said = f"{where}, {_count(len(found.findings), 'warning')}: {found.findings[0].message}"
        return Check("config", Health.WARN, said, f"vllmd check {name}")
    return Check("config", Health.OK, where)


def _vllm(found: Examined) -> Check:
    """Return which vLLM the command runs."""
    installation = found.seen.installation if found.seen is not None else None
    if installation is None:
        return Check(
            "vLLM", Health.BAD, "the command runs no vLLM that can be found", "name `vllm serve` in engine.argv"
        )
    if installation.simulated:
        said = f"vllmd_sim {installation.version or ''}, a simulated server"
        return Check("vLLM", Health.WARN, said, "name your `vllm serve` in engine.argv")
    if installation.package_dir is None or installation.version is None:
        said = f"{' '.join(installation.program)}: its version could not be found out"
        return Check("vLLM", Health.WARN, said, "options are not checked before a launch")
    return Check("vLLM", Health.OK, f"{installation.version} at {installation.package_dir}")


def _shim(no_live: str | None) -> Check:
    if no_live is None:
        return Check("shim", Health.OK, "will come into the server: nothing speaks against it before a launch")
    return Check("shim", Health.WARN, no_live, "live values and what needs them are off; all else works without")


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
