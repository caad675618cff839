"""From files, environment and command line to settings."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config_texts import COMMAND, load
from vllmd.config.load import load_settings
from vllmd.errors import ConfigError
from vllmd.model.decision import Target
from vllmd.model.settings import DEFAULT_GUARDS, Bounds, Budget, Engine, Listen, Logging, Mode, Modes, Settings, Slo


def test_a_command_alone_is_enough() -> None:
    """Without any file the memory policies are active, latency is advisory, and nothing is to be warned of."""
    argv = ("vllm", "serve", "m")
    loaded, warnings = load_settings("default", files=(), environ={}, overrides={"engine.argv": argv})
    assert loaded == Settings(engine=Engine(argv=argv), origins={"engine.argv": "command line"})
    assert loaded.modes == Modes(Mode.ACTIVE, Mode.ADVISORY)
    assert warnings == ()


def test_every_key_reaches_its_setting(tmp_path: Path) -> None:
    """Each key that works fills its own field, in base units."""
    text = """
        schema = 1
        mode = { memory = "observe", latency = "active" }
        [engine]
        argv = ["/opt/vllm", "serve", "m"]
        url = "http://127.0.0.1:8000/"
        env_file = "/etc/vllmd/engine.env"
        start_timeout = "20m"
        drain_timeout = "1m30s"
        scrape_interval = 0.5
        [slo]
        itl_p99 = "100ms"
        ttft_p999 = 1
        judge_window = "10m"
        min_requests = 50
        [guard]
        "gpu-memory-utilization" = { min = 0.80, max = 0.94, step = 0.02 }
        max_num_seqs = { min = 32 }
        "enforce-eager" = false
        frozen = ["dtype", "kv_cache_dtype", "--quantization"]
        [budget]
        restarts_per_hour = 1
        restarts_per_day = 3
        crash_breaker = "4 in 10m"
        soak = "20m"
        [listen]
        metrics = "[::1]:9843"
        control = "/run/vllmd/NAME/control.sock"
        group = "ops"
        [log]
        format = "json"
        engine = { keep = 5, max_size = "1GB" }
        [state]
        dir = "/srv/vllmd"
    """
    loaded, warnings = load(tmp_path, text)
    assert warnings == ()
    assert loaded.name == "qwen"
    assert loaded.modes == Modes(Mode.OBSERVE, Mode.ACTIVE)
    assert loaded.engine == Engine(
        argv=("/opt/vllm", "serve", "m"),
        url="http://127.0.0.1:8000",
        env_file="/etc/vllmd/engine.env",
        start_timeout_s=1200,
        drain_timeout_s=90,
        scrape_interval_s=0.5,
    )
    assert loaded.slo == Slo(
        (Target("itl_p99", "itl", 0.99, 0.1), Target("ttft_p999", "ttft", 0.999, 1)),
        judge_window_s=600,
        min_requests=50,
    )
    assert loaded.guard.bounds["gpu-memory-utilization"] == Bounds(0.8, 0.94, 0.02)
    assert loaded.guard.bounds["max-num-seqs"] == Bounds(32)
    assert loaded.guard.bounds["max-num-batched-tokens"] == DEFAULT_GUARDS["max-num-batched-tokens"]
    assert "enforce-eager" not in loaded.guard.bounds
    assert loaded.guard.frozen == {"dtype", "kv-cache-dtype", "quantization", "enforce-eager"}
    assert loaded.budget == Budget(1, 3, 4, 600, 1200)
    assert loaded.listen == Listen("[::1]:9843", "/run/vllmd/NAME/control.sock", "ops")
    assert loaded.log == Logging("json", 5, 10**9)
    assert loaded.state_dir == "/srv/vllmd"


def test_tables_merge_and_arrays_replace(tmp_path: Path) -> None:
    """A later file changes the keys that it names; an array that it names is the whole array."""
    first = COMMAND + '[guard]\nfrozen = ["dtype", "seed"]\n"max-num-seqs" = { min = 32, max = 512 }\n'
    second = '[engine]\nurl = "http://h:1"\n[guard]\nfrozen = ["block-size"]\nmax_num_seqs.max = 256\n'
    loaded, _ = load(tmp_path, first, second)
    assert loaded.engine.argv == ("vllm", "serve", "m")
    assert loaded.engine.url == "http://h:1"
    assert loaded.guard.frozen == {"block-size"}
    assert loaded.guard.bounds["max-num-seqs"] == Bounds(32, 256)


def test_one_word_for_the_mode_means_every_domain(tmp_path: Path) -> None:
    """A mode of one word sets memory and latency; a later table changes only what it names."""
    loaded, _ = load(tmp_path, 'mode = "active"\n' + COMMAND, 'mode.latency = "observe"')
    assert loaded.modes == Modes(Mode.ACTIVE, Mode.OBSERVE)
    loaded, _ = load(tmp_path, 'mode.latency = "observe"\n' + COMMAND, 'mode = "active"')
    assert loaded.modes == Modes(Mode.ACTIVE, Mode.ACTIVE)


@pytest.mark.parametrize(
    ("below", "above", "bounds"),
    [
        ("{ min = 32 }", "false", None),
        ("false", "{ min = 32 }", Bounds(32)),
        ("{ min = 32 }", "{}", Bounds(32)),
        ("{ min = 32 }", "true", Bounds()),
    ],
)
def test_a_guard_may_become_another_kind(tmp_path: Path, below: str, above: str, bounds: Bounds | None) -> None:
    """A later true or false replaces a table of bounds, and the other way round; tables merge."""
    loaded, _ = load(tmp_path, f"{COMMAND}[guard]\nmax-num-seqs = {below}", f"[guard]\nmax-num-seqs = {above}")
    assert loaded.guard.bounds.get("max-num-seqs") == bounds


def test_true_keeps_the_default_bounds_and_an_empty_table_opens_them(tmp_path: Path) -> None:
    """A flag's entry has exactly its bounds; a mere permission does not lift the ones that come with vllmd."""
    text = COMMAND + "[guard]\ngpu-memory-utilization = true\nmax-num-batched-tokens = {}\nenforce-eager = {}"
    loaded, _ = load(tmp_path, text)
    assert loaded.guard.bounds["gpu-memory-utilization"] == DEFAULT_GUARDS["gpu-memory-utilization"]
    assert loaded.guard.bounds["max-num-batched-tokens"] == Bounds()
    assert loaded.guard.bounds["enforce-eager"] == Bounds()


def test_the_environment_wins_over_files_and_the_command_line_over_both(tmp_path: Path) -> None:
    """Variables are read as TOML where they are TOML, else as text; the origins say who won."""
    environ = {
        "VLLMD__ENGINE__ARGV": '["vllm", "serve", "env"]',
        "VLLMD__SLO__ITL_P99": "50ms",
        "VLLMD__BUDGET__RESTARTS_PER_DAY": "9",
        "VLLMD__GUARD__MAX_NUM_SEQS__MAX": "64",
        "VLLMD__LISTEN__METRICS": "127.0.0.1:1",
        "VLLMD__LOG__ENGINE__KEEP": "3",
        "VLLMD__MODE": "observe",
        "VLLMD__MODE__LATENCY": "active",
        "VLLMD_INSTANCE": "not one of ours",
    }
    overrides = {"engine.argv": ("vllm", "serve", "typed")}
    loaded, _ = load(tmp_path, COMMAND + "[slo]\nitl_p99 = 1", environ=environ, overrides=overrides)
    assert loaded.engine.argv == ("vllm", "serve", "typed")
    assert loaded.slo.targets == (Target("itl_p99", "itl", 0.99, 0.05),)
    assert loaded.budget.restarts_per_day == 9
    assert loaded.guard.bounds["max-num-seqs"] == Bounds(None, 64)
    assert loaded.log.engine_keep == 3
    assert loaded.modes == Modes(Mode.OBSERVE, Mode.ACTIVE)
    assert loaded.origins["engine.argv"] == "command line"
    assert loaded.origins["slo.itl_p99"] == "environment VLLMD__SLO__ITL_P99"


def test_origins_name_file_and_line(tmp_path: Path) -> None:
    """For each key that was set there is the place where it was."""
    loaded, _ = load(tmp_path, COMMAND, "[budget]\nsoak = '20m'\n[log]\nengine.keep = 3")
    assert loaded.origins == {
        "engine.argv": f"{tmp_path}/0.toml:2",
        "budget.soak": f"{tmp_path}/1.toml:2",
        "log.engine.keep": f"{tmp_path}/1.toml:4",
    }


def test_unknown_variables_are_errors() -> None:
    """A misspelt variable is as wrong as a misspelt key."""
    with pytest.raises(ConfigError) as raised:
        load_settings("x", files=(), environ={"VLLMD__SLO__ITL": "1"}, overrides={"engine.argv": ["vllm"]})
    (found,) = raised.value.findings
    assert (found.file, found.line) == ("environment VLLMD__SLO__ITL", None)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            ["VLLMD__MODE", "VLLMD__SLO__ITL_P99", "VLLMD__GUARD__FROZEN", "VLLMD__", "VLLMD__A__", "VLLMD__LOG"]
        ),
        st.text(max_size=20),
    )
)
def test_no_environment_ends_in_a_traceback(environ: dict[str, str]) -> None:
    """Whatever the variables hold, the answer is settings or findings."""
    try:
        load_settings("x", files=(), environ=environ, overrides={"engine.argv": ["vllm"]})
    except ConfigError as error:
        assert error.findings  # noqa: PT017 - either answer is right
