"""Compares the names that vllmd_shim wraps with the sources of several vLLM versions: `make shim-names`.

From the repository's root: PYTHONPATH=tests python -m shim_names [--write]. Each version's wheel (240 to 470 MB) is
downloaded, read as text and removed, one after the other; with VLLMD_VLLM_WHEELS=FOLDER it is looked for there first,
and kept there. Exit code 1 where the table in daemon/vllmd_shim/README.md says otherwise; --write puts it there.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from shim_names.names import NAMES, Name
from shim_names.source import Source

README = Path(__file__).parents[2] / "daemon" / "vllmd_shim" / "README.md"
VERSIONS = ("0.10.2", "0.12.0", "0.20.2", "0.26.0", "0.31.0", "0.33.0")
NOT_HAD = "not had"
_FOLDER = "VLLMD_VLLM_WHEELS"
_DOWNLOAD_LIMIT_S = 1800.0  # 470 MB at a quarter of a megabyte a second


def main() -> int:
    """Print the table, and compare or write it; return the exit code."""
    columns = {version: answers(version) for version in VERSIONS}
    made = table(NAMES, columns)
    print(made)
    text = README.read_text(encoding="utf-8")
    if "--write" in sys.argv[1:]:
        README.write_text(with_table(text, made), encoding="utf-8")
        return 0
    if with_table(text, made) == text:
        return 0
    print(f"{README} says otherwise: look at what it means, then --write", file=sys.stderr)
    return 1


def answers(version: str) -> Sequence[str]:
    """Return what a version has of each name, in order."""
    print(f"reading vLLM {version}", file=sys.stderr, flush=True)
    with wheel(version) as path:
        if path is None:
            return [NOT_HAD] * len(NAMES)
        source = Source(path)
        return [name.found(source) for name in NAMES]


@contextmanager
def wheel(version: str) -> Iterator[Path | None]:
    """Yield the wheel of a version, which goes again unless a folder for it is named; None where it cannot be had."""
    kept = os.environ.get(_FOLDER)
    with TemporaryDirectory() as passing:
        folder = Path(kept or passing)
        command = ("download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", f"--dest={folder}")
        if not any(folder.glob(f"vllm-{version}-*.whl")):
            pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *command]
            subprocess.run([*pip, f"vllm=={version}"], check=False, timeout=_DOWNLOAD_LIMIT_S)
        yield next(folder.glob(f"vllm-{version}-*.whl"), None)


def table(names: Sequence[Name], columns: Mapping[str, Sequence[str]]) -> str:
    """Return the table in Markdown: a row a name, a column a version."""
    head = ["name", *columns, "off where it is missing"]
    rows = [[name.name, *(cells[n] for cells in columns.values()), name.off] for n, name in enumerate(names)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def with_table(text: str, made: str) -> str:
    """Return a README with its table, the one that begins with `| name |`, replaced."""
    lines = text.split("\n")
    first = next(n for n, line in enumerate(lines) if line.startswith("| name |"))
    last = next(n for n, line in enumerate([*lines, ""]) if n > first and not line.startswith("|"))
    return "\n".join([*lines[:first], made, *lines[last:]])


if __name__ == "__main__":
    sys.exit(main())
