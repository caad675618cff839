"""status.json: replaced as a whole, read back, and never fatal when broken."""

from pathlib import Path

import pytest

from examples import example_status
from vllmd.report.status_file import read_status, write_status
from vllmd.report.status_json import status_document


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    """The document comes back as it was written."""
    document = status_document(example_status())
    write_status(tmp_path / "status.json", document)
    assert read_status(tmp_path / "status.json").document == document


def test_replaced_as_a_whole(tmp_path: Path) -> None:
    """A second document replaces the first, leaves nothing else behind, and only its group may read it."""
    path = tmp_path / "status.json"
    write_status(path, status_document(example_status()))
    write_status(path, status_document(example_status(name="other")))
    assert [file.name for file in tmp_path.iterdir()] == ["status.json"]
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_in_the_way_is_replaced_not_followed(tmp_path: Path) -> None:
    """A status file that is a link to another file leaves that file alone."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path = tmp_path / "status.json"
    path.symlink_to(victim)
    write_status(path, status_document(example_status()))
    assert victim.read_text() == "mine"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"schema": "other/v1"}', b"\xff\xfe", b"[" * 100_000], ids=range(6)
)
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    """A file that is no status document is a problem in words, with its path."""
    path = tmp_path / "status.json"
    path.write_bytes(content)
    found = read_status(path)
    assert found.document is None
    assert str(path) in found.problem


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A file that is not there is a problem in words."""
    assert "does not exist" in read_status(tmp_path / "status.json").problem
