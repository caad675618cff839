"""Reading what a vLLM accepts from its source."""

import json
import shutil
from pathlib import Path

import pytest

from option_catalogues import write_package
from vllmd.model.options import Arity, Dialect
from vllmd.observe.installation import Installation
from vllmd.observe.option_files import source_stamp
from vllmd.observe.option_source import read_catalogue


def installed(package_dir: Path, version: str = "0.33.0") -> Installation:
    """Return the installation of a package, as `find_installation` would."""
    return Installation(
        program=("vllm", "serve"),
        interpreter="/usr/bin/python3",
        package_dir=str(package_dir),
        version=version,
        simulated=False,
        stamp=source_stamp(package_dir, f"vllm-{version}.dist-info"),
    )


@pytest.fixture
def modern(tmp_path: Path) -> Path:
    """Return a package in the shape of vLLM 0.33."""
    return write_package("like-0.33", tmp_path / "modern" / "vllm")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a package in the shape of vLLM 0.9."""
    return write_package("like-0.9", tmp_path / "old" / "vllm")


@pytest.mark.parametrize(
    ("name", "arity", "is_json"),
    [
        ("help", Arity.NONE, False),
        ("headless", Arity.NONE, False),
        ("disable-log-stats", Arity.NONE, False),
        ("fail-on-environ-validation", Arity.BOOLEAN, False),
        ("enforce-eager", Arity.BOOLEAN, False),
        ("enable-chunked-prefill", Arity.BOOLEAN, False),
        ("log-error-stack", Arity.BOOLEAN, False),
        ("tensor-parallel-size", Arity.ONE, False),
        ("gpu-memory-utilization", Arity.ONE, False),
        ("model", Arity.ONE, False),
        ("quantization", Arity.ONE, False),
        ("runner", Arity.ONE, False),
        ("cache-backend", Arity.ONE, False),
        ("optimization-level", Arity.ONE, False),
        ("log-config-file", Arity.ONE, False),
        ("port", Arity.ONE, False),
        ("config", Arity.ONE, False),
        ("hf-token", Arity.OPTIONAL, False),
        ("served-model-name", Arity.MANY, False),
        ("ignored-layers", Arity.MANY, False),
        ("api-key", Arity.MANY, False),
        ("lora-modules", Arity.MANY, False),
        ("middleware", Arity.APPEND, False),
        ("allowed-origins", Arity.ONE, True),
        ("hf-overrides", Arity.ONE, True),
        ("media-limits", Arity.ONE, True),
        ("default-chat-template-kwargs", Arity.ONE, True),
        ("speculative-config", Arity.ONE, True),
        ("compilation-config", Arity.ONE, True),
        ("logging-config", Arity.ONE, True),
    ],
)
def test_the_arity_comes_from_the_call_or_from_the_annotation(
    modern: Path, name: str, arity: Arity, *, is_json: bool
) -> None:
    """Each way that new versions declare an option is understood."""
    option = read_catalogue(installed(modern), None).options[name]
    assert (option.arity, option.is_json) == (arity, is_json)


@pytest.mark.parametrize(
    ("name", "arity", "is_json"),
    [
        ("task", Arity.ONE, False),
        ("enforce-eager", Arity.BOOLEAN, False),
        ("rope-scaling", Arity.ONE, True),
        ("ignore-patterns", Arity.MANY, False),
        ("max-model-len", Arity.ONE, False),
        ("hf-token", Arity.OPTIONAL, False),
        ("compilation-config", Arity.ONE, True),
        ("use-v2-block-manager", Arity.NONE, False),
        ("host", Arity.ONE, False),
        ("allowed-origins", Arity.ONE, True),
        ("lora-modules", Arity.MANY, False),
        ("middleware", Arity.APPEND, False),
        ("api-server-count", Arity.ONE, False),
    ],
)
def test_old_versions_are_read_too(old: Path, name: str, arity: Arity, *, is_json: bool) -> None:
    """Each way that old versions declare an option is understood."""
    option = read_catalogue(installed(old, "0.9.2"), None).options[name]
    assert (option.arity, option.is_json) == (arity, is_json)


def test_all_spellings_are_kept(modern: Path) -> None:
    """Short forms and second names belong to the option whose long name comes first."""
    options = read_catalogue(installed(modern), None).options
    assert options["tensor-parallel-size"].spellings == ("--tensor-parallel-size", "-tp")
    assert options["gpu-memory-utilization"].spellings == ("--gpu-memory-utilization", "--device-memory-utilization")
    assert "device-memory-utilization" not in options


def test_paired_negatives_are_known_where_the_version_has_them(modern: Path, old: Path) -> None:
    """--disable-x of --enable-x, and the other way round, exist from 0.33 on."""
    options = read_catalogue(installed(modern), None).options
    assert options["enable-chunked-prefill"].negations == ("--disable-chunked-prefill",)
    assert options["disable-sliding-window"].negations == ("--enable-sliding-window",)
    assert all(not option.negations for option in read_catalogue(installed(old), None).options.values())


def test_the_dialect_of_the_parser_is_told(modern: Path, old: Path) -> None:
    """What -O3, 80g and a False in a file mean differs between versions."""
    assert read_catalogue(installed(modern), None).dialect == Dialect()
    assert read_catalogue(installed(old), None).dialect == Dialect("level", False, False)  # noqa: FBT003 (by position)


def test_a_simulator_declares_its_options_in_one_module(tmp_path: Path) -> None:
    """A package without an engine is read from its options.py."""
    (tmp_path / "options.py").write_text('def build(parser):\n    parser.add_argument("--port", "-p", type=int)\n')
    assert read_catalogue(installed(tmp_path), None).options["port"].spellings == ("--port", "-p")


@pytest.mark.parametrize("text", [b"def broken(:\n", b"\xff\xfe", b"x = '\x00'\n", b""])
def test_source_that_cannot_be_read_gives_an_empty_catalogue(tmp_path: Path, text: bytes) -> None:
    """A reading that fails is an empty catalogue, never an error."""
    (tmp_path / "options.py").write_bytes(text)
    catalogue = read_catalogue(installed(tmp_path), None)
    assert (catalogue.readable, catalogue.version) == (False, "0.33.0")


def test_a_missing_package_gives_an_empty_catalogue(tmp_path: Path) -> None:
    """Nothing is read where nothing is."""
    assert not read_catalogue(installed(tmp_path / "gone"), tmp_path / "cache").readable
    unknown = Installation(("vllm", "serve"), None, None, None, simulated=False, stamp="")
    assert not read_catalogue(unknown, None).readable


def test_the_cache_answers_for_the_same_installation(modern: Path, tmp_path: Path) -> None:
    """The second reading comes from the cache, also when the source is gone."""
    cache, installation = tmp_path / "cache", installed(modern)
    first = read_catalogue(installation, cache)
    shutil.rmtree(modern)
    assert read_catalogue(installation, cache) == first
    assert [file.suffix for file in cache.iterdir()] == [".json"]


def test_a_changed_installation_is_read_again(modern: Path, tmp_path: Path) -> None:
    """An edited source file, or another version, makes the cache worthless."""
    cache, before = tmp_path / "cache", installed(modern)
    read_catalogue(before, cache)
    with (modern / "engine" / "arg_utils.py").open("a") as file:
        file.write('\ndef more(parser):\n    parser.add_argument("--brand-new", type=int)\n')
    after = installed(modern)
    assert after.stamp != before.stamp
    assert read_catalogue(after, cache).knows("brand-new")
    assert installed(modern, "0.34.0").stamp != after.stamp


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', json.dumps({"format": 1, "package_dir": 3})])
def test_a_corrupt_cache_is_ignored_and_rewritten(modern: Path, tmp_path: Path, content: str) -> None:
    """A cache file that makes no sense costs a reading, nothing more."""
    cache, installation = tmp_path / "cache", installed(modern)
    catalogue = read_catalogue(installation, cache)
    file = next(cache.iterdir())
    file.write_text(content)
    assert read_catalogue(installation, cache) == catalogue
    shutil.rmtree(modern)
    assert read_catalogue(installation, cache) == catalogue


def test_a_cache_that_cannot_be_written_is_done_without(modern: Path, tmp_path: Path) -> None:
    """The reading does not depend on the cache."""
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert read_catalogue(installed(modern), tmp_path / "cache").readable
