"""`vllmd diagnose` on the command line: its answer for programs and for people, and what it refuses."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from captures import LOGS
from corpus_score import DATA, in_folder
from vllmd.cli.diagnose import Question, diagnose, explain

LOG = str(LOGS / "h200-vllm-0.26.0" / "max-seq-len-exceeds-kv.log")


def asked(*args: str) -> Result:
    """Return what the command does with these arguments."""
    return CliRunner().invoke(diagnose, args)


def test_a_program_gets_one_object_with_every_key() -> None:
    """The keys are always there, and flags are spelled as they are typed."""
    result = asked(LOG, "--json", "--argv", "vllm serve m --max-model-len 32768 --gpu-memory-utilization 0.125")
    answer = json.loads(result.stdout)
    assert result.exit_code == 0
    assert set(answer) == {
        "class",
        "phase",
        "action",
        "set",
        "env",
        "tunable",
        "advice",
        "evidence",
        "numbers",
    }
    assert (answer["class"], answer["action"]) == ("max-model-len-too-long", "change-flags")
    assert set(answer["set"]) == {"--gpu-memory-utilization"}
    assert answer["evidence"]["line"] == 52


def test_people_get_a_page() -> None:
    """The text says what it is, why, where, and what to set."""
    shown = asked(LOG, "--argv", "--gpu-memory-utilization 0.125").stdout
    assert shown.startswith("max-model-len-too-long (profiling)\n  why     KV pool too small")
    assert "  line    52: ValueError: To serve at least one request" in shown
    assert "  set     --gpu-memory-utilization 0.145" in shown


def test_a_variable_is_shown_as_it_is_set(tmp_path: Path) -> None:
    """What is to be set in the environment looks like it."""
    log = tmp_path / "log"
    log.write_text("TimeoutError: Timed out waiting for engines to send initial message on input socket.\n")
    assert "  set     VLLM_ENGINE_READY_TIMEOUT_S=1800" in asked(str(log)).stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("/srv/no-such-log",), "does not exist"),
        ((LOG, "--context", "{"), "no JSON"),
        ((LOG, "--context", "[1]"), "an object is wanted"),
        ((LOG, "--context", '{"gpu_total_gib": "much"}'), "gpu_total_gib must be a number, found 'much'"),
        ((LOG, "--context", '{"gpu_total_gib": -1}'), "gpu_total_gib must be a number"),
        ((LOG, "--context", '{"gpu_total_gib": NaN}'), "gpu_total_gib must be a number"),
        ((LOG, "--context", '{"gpu_count": {"a": 1}}'), "gpu_count must be a whole number"),
        ((LOG, "--context", '{"stop_requested": 3}'), "stop_requested must be true or false"),
        ((LOG, "--context", '{"hardware": {}}'), "hardware must be a text"),
        ((LOG, "--argv", "--x 'open"), "No closing quotation"),
        ((LOG, "--state", "dancing"), "is not one of"),
        ((LOG, "--exit-code", "nine"), "is not a valid integer"),
    ],
)
def test_bad_input_is_named_and_ends_with_2(args: tuple[str, ...], words: str) -> None:
    """A wrong argument is no traceback."""
    result = asked(*args, "--json")
    assert result.exit_code == 2
    assert words in result.output.replace("\n", " ")


def test_unknown_facts_and_missing_ones_do_no_harm() -> None:
    """A supervisor may know more, or less, than this version asks."""
    result = asked(LOG, "--json", "--context", '{"colour": {"a": 1}, "gpu_total_gib": null, "env_HF_HUB_OFFLINE": 1}')
    assert result.exit_code == 0


def test_a_secret_of_the_argv_is_not_shown(tmp_path: Path) -> None:
    """A refusal that repeats a key is masked."""
    log = tmp_path / "log"
    log.write_text("vllm: error: unrecognized arguments: --api-kee s3cr3t-planted-value\n")
    result = asked(str(log), "--argv", "--api-key s3cr3t-planted-value", "--json")
    assert "s3cr3t-planted-value" not in result.output
    assert json.loads(result.stdout)["set"] == {"--api-kee": None}


_REFUSALS = (
    r"ValueError: max_num_batched_tokens \(\d+\) must be greater than or equal to max_num_seqs \(\d+\)",
    r"ValueError: Total number of attention heads \(\d+\) must be divisible by tensor parallel size \(\d+\)",
)
_LINES = st.lists(
    st.one_of(
        st.sampled_from([line for case in in_folder(DATA / "corpus") for line in case.lines]),
        *(st.from_regex(re.compile(refusal), fullmatch=True) for refusal in _REFUSALS),
        st.text(max_size=30),
    ),
    max_size=8,
)
_WORDS = st.lists(
    st.sampled_from(
        [
            "--gpu-memory-utilization",
            "--max-num-batched-tokens",
            "--max-num-seqs",
            "--max-model-len",
            "--kv-transfer-config",
            "--swap-space",
            "--max-cudagraph-capture-size",
            "0.9",
            "nan",
            "-inf",
            "1e400",
            "0",
            "8192",
            "32k",
            "auto",
            '{"kv_connector_extra_config": {"cpu_bytes_to_use": Infinity}}',
        ]
    ),
    max_size=8,
)
_FACTS = st.fixed_dictionaries(
    {},
    optional={
        "gpu_total_gib": st.floats(0, 1e9),
        "weights_gib": st.floats(0, 1e9),
        "host_total_gib": st.floats(0, 1e9),
        "other_process_used_gib": st.floats(0, 1e9),
        "gpu_memory_utilization": st.floats(0, 2),
        "unified_memory": st.booleans(),
        "gpu_count": st.integers(0, 9),
        "earlier_same_failures": st.integers(0, 10**9),
        "env_MAX_JOBS": st.sampled_from(["inf", "4", "", "x"]),
        "env_VLLM_ENGINE_READY_TIMEOUT_S": st.sampled_from(["nan", "600", "1e300"]),
        "hardware": st.sampled_from(["CPU backend", "GB10", "1x (0.0 GiB)"]),
        "stop_requested": st.booleans(),
        "cgroup_oom_kill": st.integers(0, 2),
    },
)


@given(
    _LINES, _WORDS, _FACTS, st.sampled_from(["exited", "running", "starting"]), st.sampled_from([None, "0.6.0", "x"])
)
@settings(max_examples=300, deadline=None)
def test_whatever_is_known_there_is_an_answer(
    lines: list[str], words: list[str], facts: dict[str, object], state: str, version: str | None
) -> None:
    """No mixture of lines, options and facts breaks a rule, and an answer is always valid JSON."""
    answer = explain(lines, Question(words, 1, state, version, facts))
    assert json.dumps(answer, allow_nan=False)
    utilization = answer["set"].get("--gpu-memory-utilization")
    assert utilization is None or 0 < float(utilization) <= 1


@given(st.binary(max_size=2000), st.one_of(st.none(), st.integers(-70, 300)), st.sampled_from(["exited", "running"]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_bytes_are_answered(tmp_path: Path, data: bytes, code: int | None, state: str) -> None:
    """What is no text at all gets an answer, too."""
    log = tmp_path / "log"
    log.write_bytes(data)
    args = [str(log), "--json", "--state", state] + ([] if code is None else [f"--exit-code={code}"])
    assert json.loads(asked(*args).stdout)["class"]
