"""The control block: what a daemon and an engine write is read whole."""

import ast
import mmap
import sys
from pathlib import Path

import pytest

import vllmd_shim
from vllmd_shim.block import BLOCK_BYTES, LAYOUT, Block, BlockError, Word, fresh_bytes, opened


def new_block(folder: Path) -> str:
    """Make a block's file."""
    path = folder / "block"
    path.write_bytes(fresh_bytes())
    return str(path)


def test_two_that_map_it_share_its_words(tmp_path: Path) -> None:
    """What one writes, the other reads; a fresh block asks for nothing and has no engine."""
    path = new_block(tmp_path)
    daemon, engine = opened(path), opened(path)
    assert [engine.words[w] for w in (Word.ASK_BUDGET, Word.ASK_SEQS, Word.ENGINE_PID)] == [0, 0, 0]
    daemon.words[Word.ASK_BUDGET] = 256
    engine.words[Word.OWN_NS] = 2**63 + 5
    assert engine.words[Word.ASK_BUDGET] == 256
    assert daemon.words[Word.OWN_NS] == 2**63 + 5


def test_a_report_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    """No report before the first, none while its count is odd, and then the whole one."""
    block = opened(new_block(tmp_path))
    assert block.read_report() is None
    block.write_report({"budget": "", "seqs": "no\nsuch name"})
    assert block.read_report() == {"budget": "", "seqs": "no such name"}
    block.words[Word.REPORT] = block.words[Word.REPORT] + 1
    assert block.read_report() is None


def test_a_long_report_is_cut(tmp_path: Path) -> None:
    """Reasons of any length and letters stay inside the block, and hide none that comes after them."""
    block = opened(new_block(tmp_path))
    block.write_report({"budget": "x" * 2 * BLOCK_BYTES, "seqs": "\N{SNOWMAN}x" * BLOCK_BYTES, "heartbeat": "no"})
    assert block.read_report() == {"budget": "x" * 300, "seqs": "\N{SNOWMAN}x" * 75, "heartbeat": "no"}


@pytest.mark.parametrize("data", [b"", b"\0" * BLOCK_BYTES, fresh_bytes()[:-1], fresh_bytes() + b"\0"])
def test_what_is_no_block_is_refused(tmp_path: Path, data: bytes) -> None:
    """An empty file, a file of zeros, and one of another size."""
    path = tmp_path / "block"
    path.write_bytes(data)
    with pytest.raises(BlockError):
        opened(str(path))


def test_another_layout_is_refused(tmp_path: Path) -> None:
    """A block of a later vllmd is not written into."""
    path = new_block(tmp_path)
    with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), BLOCK_BYTES) as mapped:
        Block(mapped).words[Word.LAYOUT] = LAYOUT + 1
        with pytest.raises(BlockError, match="layout"):
            opened(path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """Somebody else's link in a folder that all may write leads nowhere."""
    (tmp_path / "link").symlink_to(new_block(tmp_path))
    with pytest.raises(OSError, match="link"):
        opened(str(tmp_path / "link"))


def test_the_shim_imports_the_standard_library_alone() -> None:
    """The interpreter of vLLM has none of vllmd's dependencies."""
    folder = Path(str(vllmd_shim.__file__)).parent
    trees = [ast.parse(path.read_text()) for path in folder.glob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names | {"vllmd_shim"}
    assert len(trees) > 3
