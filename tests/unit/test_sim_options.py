"""The simulated command line, host and defaults: what is accepted, filled in and refused."""

import ast
from pathlib import Path

import pytest

from vllmd_sim import options
from vllmd_sim.config import resolve
from vllmd_sim.failures import ConfigError
from vllmd_sim.host import Host, HostError, parse_host


def test_numbers_take_the_suffixes_of_vllm() -> None:
    """A small suffix is decimal, a capital one binary."""
    assert [options.human_int(text) for text in ("8192", "32k", "32K", "1.5k")] == [8192, 32000, 32768, 1500]


def test_every_way_to_write_an_option_is_read() -> None:
    """Underscores, `=`, prefixes, short forms and `auto` mean what they mean to vLLM."""
    args = options.parse(
        ["m", "--gpu_memory_utilization=0.8", "--max-num-se", "8", "-tp", "2", "--max-model-len", "auto"]
    )
    assert (args.gpu_memory_utilization, args.max_num_seqs, args.tensor_parallel_size) == (0.8, 8, 2)
    assert args.max_model_len == -1


def test_dotted_options_become_json() -> None:
    """Dotted keys of one option are gathered, with `=` and without."""
    args = options.parse(["-cc.mode=3", "--compilation-config.pass.fuse", "1"])
    assert args.compilation_config == {"mode": "3", "pass": {"fuse": "1"}}


def test_the_command_line_wins_over_the_config_file(tmp_path: Path) -> None:
    """A flat YAML file is read first: switches, values, and false where a --no- form exists."""
    file = tmp_path / "c.yaml"
    file.write_text("max-num-seqs: 16  # few\nport: 9000\nenforce_eager: true\nenable-chunked-prefill: false\n")
    args = options.parse(["m", "--port", "9001", "--config", str(file)])
    assert (args.max_num_seqs, args.port, args.enforce_eager, args.enable_chunked_prefill) == (16, 9001, True, False)


def test_non_default_names_what_differs() -> None:
    """Only changed options are logged."""
    assert options.non_default(options.parse(["m", "--port", "1"])) == {"model_tag": "m", "port": 1}


def test_an_unknown_option_ends_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    """The message is argparse's, under the name `vllm serve`."""
    with pytest.raises(SystemExit) as end:
        options.parse(["m", "--no-such-flag"])
    assert end.value.code == 2
    assert "vllm serve: error: unrecognized arguments: --no-such-flag" in capsys.readouterr().err


def test_options_can_be_read_from_the_source_as_text() -> None:
    """Every option that the parser knows stands in the source as a literal."""
    tree = ast.parse(Path(options.__file__).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    declared = {
        arg.value
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
        for arg in call.args
        if isinstance(arg, ast.Constant)
    }
    assert {"--gpu-memory-utilization", "-tp", "--enable-chunked-prefill", "--kv-cache-memory-bytes"} <= declared
    assert len(declared) > 40


@pytest.mark.parametrize(
    ("gpu", "argv", "expected"),
    [
        (Host(), [], (8192, 1024)),
        (Host(gpu="NVIDIA A100-SXM4-80GB"), [], (2048, 256)),
        (Host(gpu_total_gib=24.0), [], (2048, 256)),
        (Host(), ["--no-enable-chunked-prefill"], (32768, 1024)),
        (Host(), ["--max-num-batched-tokens", "512"], (512, 512)),
        (Host(), ["--max-num-seqs", "2", "--max-model-len", "1k"], (2000, 2)),
    ],
)
def test_unset_limits_follow_the_gpu(gpu: Host, argv: list[str], expected: tuple[int, int]) -> None:
    """Batched tokens and sequences get vLLM's defaults, capped by each other."""
    config = resolve(options.parse(argv), gpu)
    assert (config.batched_tokens, config.max_num_seqs) == expected


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--max-model-len", "999999"], "User-specified max_model_len (999999) is greater than the derived"),
        (
            ["--max-num-batched-tokens", "256", "--max-num-seqs", "1024"],
            "max_num_batched_tokens (256) must be greater than or equal to max_num_seqs (1024).",
        ),
        (
            ["--max-num-batched-tokens", "2048", "--no-enable-chunked-prefill"],
            "max_num_batched_tokens (2048) is smaller than max_model_len (32768).",
        ),
    ],
)
def test_combinations_are_refused_in_vllm_s_words(argv: list[str], words: str) -> None:
    """What vLLM refuses before its engine starts is refused here."""
    with pytest.raises(ConfigError) as refusal:
        resolve(options.parse(argv), Host())
    assert words in refusal.value.text


def test_a_host_is_described_in_json() -> None:
    """Given keys replace defaults, whole numbers pass for fractions."""
    host = parse_host('{"gpu_total_gib": 24, "gpu_dir": null, "version": "0.31.0"}')
    assert (host.gpu_total_gib, host.gpu_dir, host.version, host.weights_gib) == (24, None, "0.31.0", 16.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "must be a JSON object"),
        ('{"gpu_totl_gib": 1}', "unknown key 'gpu_totl_gib'"),
        ('{"seed": "x"}', "seed must be int"),
        ('{"noise": true}', "noise must be float"),
    ],
)
def test_a_bad_description_of_the_host_is_refused(text: str, words: str) -> None:
    """The refusal names the key and what was wanted."""
    with pytest.raises(HostError, match=words):
        parse_host(text)
