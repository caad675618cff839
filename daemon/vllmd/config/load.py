"""From files, environment and command line to Settings: every problem is found before anything is started."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from vllmd.config.build import build_settings
from vllmd.config.crosscheck import check_guards, warnings
from vllmd.config.entries import Entries, Entry, lay_over, read_entries
from vllmd.config.sources import Source, environment_sources, file_source, override_sources
from vllmd.config.values import WrongValueError
from vllmd.errors import ConfigError, Finding, Severity
from vllmd.model.settings import Settings


def load_settings(
    name: str,
    *,
    files: Sequence[Path],
    environ: Mapping[str, str],
    overrides: Mapping[str, object] | None = None,
) -> tuple[Settings, tuple[Finding, ...]]:
    """Return an instance's settings and the warnings about them.

    Later files win over earlier ones, VLLMD__SECTION__KEY of `environ` over files, `overrides` ("section.key": value)
    over all. Raises ConfigError with every problem at once, warnings among them.
    """
    sources = [*map(file_source, files), *environment_sources(environ), *override_sources(overrides or {})]
    entries, findings = _merged(sources)
    values, wrong = _read_values(entries)
    findings += wrong
    if "engine.argv" not in entries and all(isinstance(source, Source) for source in sources):
        findings.append(_no_command(files))
    usable = {path: entry for path, entry in entries.items() if path in values}
    origins = {path: entry.origin for path, entry in usable.items()}
    settings = build_settings(name, values, origins)
    findings += check_guards(settings, usable)
    findings += warnings(settings, usable)
    findings = in_order(findings, files)
    if any(f.severity is Severity.ERROR for f in findings):
        raise ConfigError(findings)
    return settings, tuple(findings)


def in_order(findings: Sequence[Finding], files: Sequence[Path]) -> list[Finding]:
    """Return findings once each: errors first, then in the order of the files and of their lines."""
    rank = {str(path): place for place, path in enumerate(files)}

    def place(finding: Finding) -> tuple[bool, int, int, int]:
        file = rank.get(finding.file or "", len(rank))
        return finding.severity is Severity.WARNING, file, finding.line or 0, finding.column or 0

    return sorted(dict.fromkeys(findings), key=place)


def _merged(sources: Sequence[Source | Finding]) -> tuple[dict[str, Entry], list[Finding]]:
    """Return the entries that count, and what is wrong with the sources themselves and with their keys."""
    merged: dict[str, Entry] = {}
    findings: list[Finding] = []
    for source in sources:
        if isinstance(source, Finding):
            findings.append(source)
            continue
        entries, unknown = read_entries(source)
        merged = lay_over(merged, entries)
        findings += unknown
    return merged, findings


def _read_values(entries: Entries) -> tuple[dict[str, object], list[Finding]]:
    """Return every value that can be read, and a finding for each that cannot."""
    values: dict[str, object] = {}
    findings: list[Finding] = []
    for path, entry in entries.items():
        try:
            values[path] = entry.read(entry.value)
        except WrongValueError as wrong:
            findings.append(_wrong_value(entry, wrong))
    return values, findings


def _wrong_value(entry: Entry, wrong: WrongValueError) -> Finding:
    path = entry.path if wrong.index is None else (*entry.path, wrong.index)
    finding = Finding(
        code=wrong.code,
        message=f"{entry.label} {wrong.problem}",
        key=entry.key,
        found=wrong.found or entry.source.written(path, entry.value),
        wanted=wrong.wanted,
        hint=wrong.hint,
        notes=entry.notes,
    )
    return entry.source.at_value(finding, path)


def _no_command(files: Sequence[Path]) -> Finding:
    return Finding(
        code="E109",
        message="engine.argv is not set: there is no command to run",
        key="engine.argv",
        found="nothing",
        wanted="the command that starts vLLM",
        file=str(files[-1]) if files else None,
        hint='write argv = ["vllm", "serve", "MODEL"] under [engine], or use `vllmd run -- vllm serve MODEL`',
        notes=() if files else ("no configuration file was found",),
    )
