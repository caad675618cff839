"""Loads settings from texts, for every test of the configuration."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from vllmd.config.load import load_settings
from vllmd.errors import ConfigError, Finding, Severity
from vllmd.model.settings import Settings

COMMAND = '[engine]\nargv = ["vllm", "serve", "m"]\n'


def load(
    folder: Path,
    *texts: str,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> tuple[Settings, tuple[Finding, ...]]:
    """Load settings from files of these texts, the last one wins."""
    files = [folder / f"{place}.toml" for place in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, "utf-8")
    return load_settings("qwen", files=files, environ=environ or {}, overrides=overrides)


def problems(folder: Path, *texts: str, environ: Mapping[str, str] | None = None) -> tuple[Finding, ...]:
    """Return the findings of texts that cannot be used."""
    with pytest.raises(ConfigError) as raised:
        load(folder, *texts, environ=environ)
    return raised.value.findings


def problem(folder: Path, text: str) -> Finding:
    """Return the only error of a text, which is given a command if it has none."""
    (finding,) = (f for f in problems(folder, COMMAND, text) if f.severity is Severity.ERROR)
    return finding
