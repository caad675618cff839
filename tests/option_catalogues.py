"""Catalogues for tests: the options of a real vLLM, from captured facts, and packages to read options from."""

import csv
from pathlib import Path

from vllmd.model.options import Arity, Catalogue, Option

DATA = Path(__file__).parent / "data" / "vllm-options"


def captured_options() -> tuple[Option, ...]:
    """Return every option of vLLM 0.32.0 (captured on CPU; see the README beside the data)."""
    with (DATA / "vllm-0.32.0.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return tuple(
        Option(row["name"], tuple(row["spellings"].split()), Arity(row["arity"]), row["json"] == "json") for row in rows
    )


def real_catalogue() -> Catalogue:
    """Return the catalogue of vLLM 0.32.0."""
    return Catalogue({option.name: option for option in captured_options()}, "0.32.0")


def write_package(name: str, package_dir: Path) -> Path:
    """Copy one of the packages in the data folder, and return its folder."""
    source = DATA / name
    for file in source.rglob("*.txt"):
        target = package_dir / file.relative_to(source).with_suffix("")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    (package_dir / "__init__.py").touch()
    return package_dir
