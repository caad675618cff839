"""Configuration files of vLLM, merged into the command line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from option_catalogues import real_catalogue
from vllmd.errors import CommandError
from vllmd.model.argv import parse_command
from vllmd.observe.yaml_flags import expand_config_file

REAL = real_catalogue()
SERVE = ("vllm", "serve")
MODULE = ("python", "-m", "vllm.entrypoints.openai.api_server")

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return what writes a configuration file and tells its name."""

    def write_text(text: str) -> str:
        file = tmp_path / "vllm.yaml"
        file.write_text(text, encoding="utf-8")
        return str(file)

    return write_text


def serve(*words: str) -> tuple[str, ...]:
    """Return what becomes of the words after `vllm serve`."""
    return expand_config_file((*SERVE, *words), 2, REAL)[2:]


def test_without_a_file_nothing_changes() -> None:
    """A command without --config stays as it is."""
    assert serve("M", "--port", "1") == ("M", "--port", "1")


def test_options_of_the_file_come_before_the_operators_own(write: Write) -> None:
    """The command line wins, since the last setting of an option counts."""
    file = write("max-num-seqs: 4\nport: 8001\n")
    words = serve("M", "--config", file, "--max-num-seqs", "8")
    assert words == ("M", "--max-num-seqs", "4", "--port", "8001", "--max-num-seqs", "8")
    command = parse_command((*SERVE, *words), 2, REAL)
    assert (dict(command.flags), command.problems) == ({"max-num-seqs": "8", "port": "8001"}, ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("enforce-eager: true\n", ("--enforce-eager",)),
        ("gpu_memory_utilization: 0.8\n", ("--gpu_memory_utilization", "0.8")),
        ("served-model-name: [a, b]\n", ("--served-model-name", "a", "b")),
        ("served-model-name: []\n", ()),
        (
            "compilation-config:\n  pass_config:\n    x: true\n",
            ("--compilation-config", '{"pass_config": {"x": true}}'),
        ),
        ("hf-overrides: {when: 2026-01-02}\n", ("--hf-overrides", '{"when": "2026-01-02"}')),
        ("quantization: null\n", ("--quantization", "None")),
        ("max-model-len: -1\n", ("--max-model-len", "-1")),
        ("enable-chunked-prefill: false\n", ()),
        ("{}\n", ()),
    ],
)
def test_values_become_words_as_vllm_makes_them(write: Write, text: str, words: tuple[str, ...]) -> None:
    """Numbers, lists, mappings and True become options; `vllm serve` ignores False."""
    assert serve("M", "--config", write(text)) == ("M", *words)


def test_false_negates_only_in_the_module_form_and_only_what_can_be_negated(write: Write) -> None:
    """`python -m …` turns False into --no-NAME where that option exists under exactly this name."""
    file = write("enable-chunked-prefill: false\nenable_prefix_caching: false\ndisable-log-stats: false\nmodel: M\n")
    words = expand_config_file((*MODULE, "--config", file, "--port", "1"), 3, REAL)
    assert words == (*MODULE, "--no-enable-chunked-prefill", "--model", "M", "--port", "1")


def test_the_model_may_stand_in_the_file(write: Write) -> None:
    """The file's model counts when the command line has none."""
    file = write("model: FROM-FILE\nport: 1\n")
    assert serve("--config", file) == ("--model", "FROM-FILE", "--port", "1")
    assert serve("M", "--config", file) == ("M", "--port", "1")
    assert serve("--model", "M", "--config", file) == ("--port", "1", "--model", "M")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2\n", r"vllm\.yaml: line 2: not YAML: expected ',' or '\]'"),
        ("port: 1\n\tseed: 2\n", r"vllm\.yaml: line 2: not YAML: "),
        ("- a\n- b\n", r"vllm\.yaml: expected `option: value` lines, found a list"),
        ("", r"vllm\.yaml: expected `option: value` lines, found nothing"),
        ("on: 1\n", r"vllm\.yaml: True is no name of an option"),
        ("port: 1\n", r"no model is given, neither on the command line nor in .*vllm\.yaml"),
        ("a: \x00\n", r"vllm\.yaml: not YAML"),
    ],
)
def test_a_file_that_vllm_would_not_take_is_named_with_its_line(write: Write, text: str, message: str) -> None:
    """What is wrong with a file is told before the start."""
    with pytest.raises(CommandError, match=message):
        serve("--config", write(text))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("M", "--config", "/no/such.yaml"), r"/no/such\.yaml cannot be read: No such file or directory"),
        (("M", "--config", "/etc/hostname"), r"/etc/hostname: vLLM reads only files that end in \.yaml or \.yml"),
        (("M", "--config"), "--config expects the name of a YAML file"),
        (("M", "--config", "a.yaml", "--config", "b.yaml"), "--config is given twice"),
        (("M", "--config=a.yaml"), r"vLLM ignores the file of --config=a\.yaml: .* --config a\.yaml"),
    ],
)
def test_a_file_that_vllm_would_not_find_is_refused(words: tuple[str, ...], message: str) -> None:
    """Ways to name a file that vLLM does not understand are refused."""
    with pytest.raises(CommandError, match=message):
        serve(*words)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are told as such."""
    file = tmp_path / "vllm.yaml"
    file.write_bytes(b"port: \xff\n")
    with pytest.raises(CommandError, match="is not UTF-8 text"):
        serve("M", "--config", str(file))
