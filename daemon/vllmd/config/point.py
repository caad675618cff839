"""Finds the place of a key again, for what turns out to be wrong only after the settings were read."""

from dataclasses import replace
from pathlib import Path

from vllmd.config.sources import COMMAND_LINE, Source, file_source
from vllmd.config.toml_lines import KeyPath
from vllmd.errors import Finding
from vllmd.model.settings import Settings


def point_at(finding: Finding, settings: Settings, key: str, index: int | None = None) -> Finding:
    """Return the finding with the place of a key's value, or of one element of it.

    Where the key comes from the environment or the command line, or its file changed since, there is no line.
    """
    origin = settings.origins.get(key, COMMAND_LINE)
    if origin == COMMAND_LINE:
        return replace(finding, file=None)
    file, _, line = origin.rpartition(":")
    source = file_source(Path(file)) if line.isdigit() else None
    if not isinstance(source, Source):
        return replace(finding, file=file if line.isdigit() else origin)
    path: KeyPath = tuple(key.split("."))
    element = path if index is None else (*path, index)
    return source.at_value(finding, element if element in source.places else path)
