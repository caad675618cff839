"""The file of the server's environment variables."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllmd.config.env_file import read_env_file
from vllmd.errors import ConfigError


def read(folder: Path, text: str) -> dict[str, str]:
    """Read a file of this text."""
    file = folder / "engine.env"
    file.write_text(text, "utf-8", newline="")
    return read_env_file(file)


def test_every_form_of_a_line(tmp_path: Path) -> None:
    """Comments, export, quotes and escapes are read; what is between equals sign and line end is the value."""
    text = (
        "# a comment\n; another\n\nHF_HOME=/srv/hf\r\nexport A = spaced out  \n"
        'B=\'as $it #is \\n\'\nC="tab\\t quote\\" back\\\\slash"\nEMPTY=\nQ=""\nD=a=b#c\nHF_HOME=/later\n'
    )
    assert read(tmp_path, text) == {
        "HF_HOME": "/later",
        "A": "spaced out",
        "B": "as $it #is \\n",
        "C": 'tab\t quote" back\\slash',
        "EMPTY": "",
        "Q": "",
        "D": "a=b#c",
    }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("HF_HOME", "assigns nothing"),
        ("1A=x", "no variable's name"),
        ("=x", "no variable's name"),
        ("A B=x", "no variable's name"),
        ('A="x', "quotes do not match"),
        ("A='x' y", "quotes do not match"),
        ("A=x # cache", "may be a comment"),
        ("A=x\0y", "NUL"),
    ],
)
def test_a_bad_line_is_named_and_never_quoted(tmp_path: Path, line: str, words: str) -> None:
    """The finding has file and line but no column, so that the line with its possible secret is not shown."""
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, f"OK=1\n{line}\n{line}\n")
    first, second = raised.value.findings
    assert words in first.message
    assert (first.file, first.line, first.column) == (f"{tmp_path}/engine.env", 2, None)
    assert second.line == 3


def test_no_value_is_in_a_finding(tmp_path: Path) -> None:
    """A secret on a bad line, or in place of a name, is in no field of the finding."""
    for line in ("HF_TOKEN='hunter2", "hunter2", "hun ter2=x", "A=hunter2 # hunter2"):
        with pytest.raises(ConfigError) as raised:
            read(tmp_path, line)
        assert "ter2" not in repr(raised.value.findings)


def test_a_missing_file_is_a_finding(tmp_path: Path) -> None:
    """A file that cannot be read is named."""
    with pytest.raises(ConfigError, match="no such file"):
        read_env_file(tmp_path / "none")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_no_text_ends_in_a_traceback(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Whatever the file holds, the answer is variables or findings."""
    try:
        variables = read(tmp_path_factory.mktemp("env"), text.encode("utf-8", "replace").decode())
    except ConfigError as error:
        assert error.findings  # noqa: PT017 - either answer is right
    else:
        assert all(name.isidentifier() for name in variables)
