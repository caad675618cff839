"""The folder on PYTHONPATH: what lies in it, and what the server's environment becomes."""

from importlib.metadata import distributions
from importlib.resources import files
from pathlib import Path

import pytest

from vllmd.act.shim_folder import kept_out, with_shim, write_shim


def contents(folder: Path) -> dict[str, str]:
    """Return the files of a folder, by their path in it."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_the_folder_holds_the_whole_package_and_its_entry_point(tmp_path: Path) -> None:
    """Every module is there as it is here, and Python finds one entry point of vLLM's group, and nothing else."""
    write_shim(tmp_path)
    package = Path(str(files("vllmd_shim")))
    expected = {f"vllmd_shim/{path.name}": path.read_text() for path in package.glob("*.py")}
    found = contents(tmp_path)
    assert expected.items() <= found.items()
    assert len(found) == len(expected) + 2
    (distribution,) = distributions(path=[str(tmp_path)])
    (entry,) = distribution.entry_points
    assert (entry.group, entry.name) == ("vllm.general_plugins", "vllmd_shim")
    assert entry.value == "vllmd_shim.plugin:register"


def test_only_what_differs_is_written(tmp_path: Path) -> None:
    """A file that is as it should be keeps its inode; a changed and a broken one are put right."""
    write_shim(tmp_path)
    kept, changed, broken = (tmp_path / "vllmd_shim" / name for name in ("block.py", "clamp.py", "plugin.py"))
    inode, before = kept.stat().st_ino, contents(tmp_path)
    changed.write_text("raise SystemExit")
    broken.write_bytes(b"\xff\xfe")
    write_shim(tmp_path)
    assert contents(tmp_path) == before
    assert kept.stat().st_ino == inode


@pytest.mark.parametrize(
    ("environment", "out"),
    [
        ({}, False),
        ({"VLLM_PLUGINS": "a,vllmd_shim"}, False),
        ({"VLLM_PLUGINS": "a"}, True),
        ({"VLLM_PLUGINS": ""}, True),
    ],
)
def test_the_operators_choice_of_plugins_is_respected(environment: dict[str, str], *, out: bool) -> None:
    """What VLLM_PLUGINS does not name stays out, and that is the reason told."""
    reason = kept_out(environment)
    assert (reason is not None) == out
    assert reason is None or "VLLM_PLUGINS" in reason


def test_the_operators_python_path_is_kept(tmp_path: Path) -> None:
    """Our folder comes first, the operator's own after it; nothing else of the environment changes."""
    assert with_shim({"A": "1"}, tmp_path, {"V": "/b"}) == {"A": "1", "PYTHONPATH": str(tmp_path), "V": "/b"}
    assert with_shim({"PYTHONPATH": "/x:/y"}, tmp_path, {"V": "/b"})["PYTHONPATH"] == f"{tmp_path}:/x:/y"
