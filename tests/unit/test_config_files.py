"""Which files are read, and what becomes of those that cannot be."""

from pathlib import Path

import pytest

from config_texts import COMMAND, problem
from vllmd.config.files import config_files, etc_folder
from vllmd.config.load import load_settings
from vllmd.errors import ConfigError


@pytest.mark.parametrize(
    ("raw", "code", "words"),
    [
        (b"a = 1\nb = \xff", "E103", "not UTF-8: byte 0xff in line 2"),
        (b"x" * (2**20 + 1), "E102", "larger than 1 MiB"),
        (b"a = " + b"[" * 50_000, "E101", "nested too deeply"),
        (b"a = " + b"9" * 5000, "E101", "not valid TOML"),
        (b"a = active", "E101", "invalid value"),
        (b'a = """never closed', "E101", "unterminated string"),
        (b"a = 1\na = 2", "E101", "cannot overwrite a value"),
    ],
)
def test_files_that_cannot_be_read_are_findings(tmp_path: Path, raw: bytes, code: str, words: str) -> None:
    """No content of a file ends in a traceback."""
    file = tmp_path / "x.toml"
    file.write_bytes(raw)
    with pytest.raises(ConfigError) as raised:
        load_settings("x", files=[file], environ={}, overrides={"engine.argv": ["vllm"]})
    (found,) = raised.value.findings
    assert (found.code, found.file) == (code, str(file))
    assert words in found.message


def test_a_syntax_error_has_its_place(tmp_path: Path) -> None:
    """The line and column are tomllib's, and a word without quotes gets the advice to quote it."""
    found = problem(tmp_path, "\nmode = active # no quotes")
    assert (found.line, found.column, found.width) == (2, 8, 6)
    assert found.hint == 'text needs quotes: "active"'
    found = problem(tmp_path, "[slo]\nitl_p99 = '''x\ny")
    assert (found.line, found.column) == (3, 2)


def test_missing_files_and_folders_are_findings(tmp_path: Path) -> None:
    """A named file that is not there, or is a folder, is said to be so."""
    with pytest.raises(ConfigError) as raised:
        load_settings("x", files=[tmp_path / "no.toml", tmp_path], environ={}, overrides={"engine.argv": ["vllm"]})
    assert [f.message for f in raised.value.findings] == [
        "the file cannot be read: no such file or directory",
        "the file cannot be read: a directory",
    ]


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    """A file written on Windows loads, and its places are the visible ones."""
    (tmp_path / "x.toml").write_bytes(b"\xef\xbb\xbf" + COMMAND.replace("\n", "\r\n").encode())
    loaded, _ = load_settings("x", files=[tmp_path / "x.toml"], environ={})
    assert loaded.origins == {"engine.argv": f"{tmp_path}/x.toml:2"}


def test_the_chain_of_files(tmp_path: Path) -> None:
    """First vllmd.toml, then the drop-ins by name, then the instance's own; what is not there is not in the chain."""
    (tmp_path / "vllmd.d").mkdir()
    for name in ("vllmd.d/20-b.toml", "vllmd.d/10-a.toml", "vllmd.d/.#x.toml", "vllmd.d/note.txt", "qwen.toml"):
        (tmp_path / name).touch()
    names = [str(path.relative_to(tmp_path)) for path in config_files("qwen", None, tmp_path)]
    assert names == ["vllmd.d/10-a.toml", "vllmd.d/20-b.toml", "qwen.toml"]
    (tmp_path / "vllmd.toml").touch()
    assert config_files("vllmd", None, tmp_path)[0] == tmp_path / "vllmd.toml"
    assert len(config_files("vllmd", None, tmp_path)) == 3
    assert config_files("other", None, tmp_path / "nowhere") == ()


def test_a_dangling_link_is_not_skipped(tmp_path: Path) -> None:
    """A file of the chain that is there but leads nowhere is an error, not an absence."""
    (tmp_path / "vllmd.toml").symlink_to(tmp_path / "gone")
    assert config_files("x", None, tmp_path) == (tmp_path / "vllmd.toml",)


def test_a_named_file_replaces_the_chain(tmp_path: Path) -> None:
    """Only the named file is read, whether it exists or not."""
    (tmp_path / "vllmd.toml").touch()
    assert config_files("x", Path("/no/such.toml"), tmp_path) == (Path("/no/such.toml"),)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "x" * 65, "a\n"])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    """An instance's name never leads out of the configuration's folder."""
    with pytest.raises(ConfigError, match="not an instance's name"):
        config_files(name, None, tmp_path)


def test_the_folder_is_systemds_or_the_usual_one() -> None:
    """A unit hands its ConfigurationDirectory= over; a shell has none."""
    assert etc_folder({"CONFIGURATION_DIRECTORY": "/etc/vllmd:/etc/other"}) == Path("/etc/vllmd")
    assert etc_folder({"CONFIGURATION_DIRECTORY": "/srv/v"}) == Path("/srv/v")
    assert etc_folder({}) == Path("/etc/vllmd")
