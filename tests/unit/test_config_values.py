"""What a configuration may not say, and what it had better not."""

from pathlib import Path

import pytest

from config_texts import COMMAND, load, problem, problems
from vllmd.config.load import load_settings
from vllmd.errors import ConfigError, Finding, Severity


def test_a_wrong_word_for_the_mode_is_one_problem(tmp_path: Path) -> None:
    """Although it would set both domains, the operator reads of it once."""
    found = problem(tmp_path, 'mode = "activ"')
    assert (found.message, found.hint) == ("mode is none of observe, advisory, active", 'did you mean "active"?')


def test_every_problem_is_found_at_once(tmp_path: Path) -> None:
    """Syntax, unknown keys, values and warnings of all files come in one answer: errors first, in the files' order."""
    found = problems(
        tmp_path,
        "[slo]\nitl_p99 = '90ms'\nttft_p95 = 0",
        "x = ",
        "[budget]\nsoack = '1m'\n[engine]\nargv = []",
    )
    assert [(f.code, f.file and Path(f.file).name, f.line) for f in found] == [
        ("E105", "0.toml", 3),
        ("E101", "1.toml", 1),
        ("E201", "2.toml", 2),
        ("E104", "2.toml", 4),
        ("W310", "0.toml", 2),
    ]


def test_a_bad_value_names_what_it_replaces(tmp_path: Path) -> None:
    """A wrong value says which earlier file sets the key, too."""
    first, second = COMMAND + "[slo]\nttft_p95 = '1s'", "# a comment\n[slo]\nttft_p95 = '1sec'"
    (found,) = problems(tmp_path, first, second)
    assert found == Finding(
        code="E104",
        message="ttft_p95 is not a duration",
        key="slo.ttft_p95",
        found="'1sec'",
        wanted="a duration",
        file=f"{tmp_path}/1.toml",
        line=3,
        column=12,
        hint='write "1s", "800ms" or 0.8 (seconds)',
        width=6,
        notes=(f"{tmp_path}/0.toml:4 also sets it to '1s'; this file wins",),
    )


def test_a_bad_value_that_a_later_source_replaces_is_no_problem(tmp_path: Path) -> None:
    """Only the value that counts is judged: an operator can mend a file with a drop-in."""
    loaded, _ = load(tmp_path, COMMAND + "[slo]\nitl_p99 = 'soon'", "[slo]\nitl_p99 = '50ms'")
    assert loaded.slo.targets[0].limit_s == 0.05


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[budget]\nrestart_per_hour = 1", "unknown key `restart_per_hour`", 'did you mean "restarts_per_hour"?'),
        ("[slo]\nitl_p98 = 1", "unknown key `itl_p98`", 'did you mean "itl_p99"?'),
        ("[slo]\nwindow = '30d'", "unknown key `window`", 'did you mean "judge_window"?'),
        ("[engin]\nurl = 'x'", "unknown section `engin`", 'did you mean "engine"?'),
        ("url = 'http://x'", "unknown key `url`", "url belongs in [engine]"),
        ("'engine.url' = 'http://x'", "unknown key `engine.url`", 'did you mean "engine"?'),
        ("[schedule]\ntimezone = 'UTC'", "unknown section `schedule`", ""),
        ("[engine]\nprobe = false", "unknown key `probe`", ""),
        ("[state]\nhistory = '90d'", "unknown key `history`", ""),
        ('[guard]\n"max-num-seq" = {}', "unknown key `max-num-seq`", 'did you mean "max-num-seqs"?'),
        ('[guard]\n"max-num-seqs" = { mini = 1 }', "unknown key `mini`", 'did you mean "min"?'),
        ('[guard]\n"enforce-eager" = { min = 1 }', "unknown key `min`", ""),
        ('[guard]\n"Max Seqs" = {}', "unknown key `Max Seqs`", 'did you mean "max-num-seqs"?'),
        ('[guard]\ngpu_headroom = "2GiB"', "unknown key `gpu_headroom`", ""),
        ("[log.engine]\nsize = 1", "unknown key `size`", 'did you mean "max_size"?'),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest_known(tmp_path: Path, text: str, message: str, hint: str) -> None:
    """Whatever does not work is an error, never silently ignored; a similar key is named."""
    found = problem(tmp_path, text)
    assert (found.message, found.hint) == (message, hint)
    assert found.wanted


@pytest.mark.parametrize(
    ("text", "key", "code"),
    [
        ("schema = 2", "schema", "E107"),
        ("schema = true", "schema", "E107"),
        ("mode = 1", "mode", "E104"),
        ("engine = 5", "engine", "E104"),
        ("[[guard]]", "guard", "E104"),
        ("[engine]\nargv = 'vllm serve m'", "engine.argv", "E104"),
        ("[engine]\nargv = ['vllm', 5]", "engine.argv", "E104"),
        ("[engine]\nargv = ['']", "engine.argv", "E104"),
        ("[engine]\nurl = '127.0.0.1:8000'", "engine.url", "E104"),
        ("[engine]\nurl = 'http://u:p@h:1'", "engine.url", "E104"),
        ("[engine]\nurl = 'http://h:99999'", "engine.url", "E104"),
        ("[engine]\nurl = 'http://[::1'", "engine.url", "E104"),
        ("[engine]\nenv_file = 'engine.env'", "engine.env_file", "E104"),
        ("[engine]\nstart_timeout = 0", "engine.start_timeout", "E105"),
        ("[engine]\ndrain_timeout = '2000d'", "engine.drain_timeout", "E105"),
        ("[engine]\ncanary = false", "engine.canary", "E104"),
        ("[engine]\ncanary = '500ms'", "engine.canary", "E105"),
        ("[engine]\nscrape_interval = '10ms'", "engine.scrape_interval", "E105"),
        ("[engine]\nscrape_interval = '2m'", "engine.scrape_interval", "E105"),
        ("[slo]\nitl_p99 = 0", "slo.itl_p99", "E105"),
        ("[slo]\nitl_p99 = 1979-05-27", "slo.itl_p99", "E104"),
        ("[slo]\nmin_requests = 0", "slo.min_requests", "E105"),
        ("[slo]\nmin_requests = 1.5", "slo.min_requests", "E104"),
        ("[guard]\nfrozen = 'dtype'", "guard.frozen", "E104"),
        ("[guard]\nfrozen = ['dtype', 'a b']", "guard.frozen", "E104"),
        ("[guard]\nmax-num-seqs = 5", "guard.max-num-seqs", "E104"),
        ("[guard]\nmax-num-seqs.min = 0", "guard.max-num-seqs.min", "E105"),
        ("[guard]\nmax-num-seqs.min = 1.5", "guard.max-num-seqs.min", "E104"),
        ("[guard]\ngpu_memory_utilization.max = 1.01", "guard.gpu-memory-utilization.max", "E105"),
        ("[guard]\ngpu_memory_utilization.max = nan", "guard.gpu-memory-utilization.max", "E104"),
        ("[guard]\nmax-num-seqs = { min = 9, max = 8 }", "guard.max-num-seqs.max", "E106"),
        ("[budget]\nrestarts_per_hour = -1", "budget.restarts_per_hour", "E105"),
        ("[budget]\nrestarts_per_day = true", "budget.restarts_per_day", "E104"),
        ("[budget]\ncrash_breaker = '5 per 15m'", "budget.crash_breaker", "E104"),
        ("[budget]\ncrash_breaker = '0 in 15m'", "budget.crash_breaker", "E104"),
        ("[budget]\nsoak = '0s'", "budget.soak", "E105"),
        ("[listen]\nmetrics = '127.0.0.1'", "listen.metrics", "E104"),
        ("[listen]\nmetrics = '127.0.0.1:0'", "listen.metrics", "E105"),
        ("[listen]\nmetrics = '[::1:9842'", "listen.metrics", "E104"),
        ("[listen]\nmetrics = '[::g]:9842'", "listen.metrics", "E104"),
        ("[listen]\ncontrol = 'x.sock'", "listen.control", "E104"),
        (f"[listen]\ncontrol = '/{'x' * 107}'", "listen.control", "E104"),
        ("[listen]\ngroup = ''", "listen.group", "E104"),
        ("[log]\nformat = 'journal'", "log.format", "E104"),
        ("[log]\nengine = 20", "log.engine", "E104"),
        ("[log]\nengine.keep = 0", "log.engine.keep", "E105"),
        ("[log]\nengine.max_size = '1KB'", "log.engine.max_size", "E105"),
        ("[log]\nengine.max_size = 'big'", "log.engine.max_size", "E104"),
        ("[state]\ndir = 'here'", "state.dir", "E104"),
        ("[guard]\nmax-num-seqs = {}\nmax_num_seqs = {}", "guard.max-num-seqs", "E203"),
    ],
)
def test_values_out_of_kind_or_range_are_refused(tmp_path: Path, text: str, key: str, code: str) -> None:
    """Every key judges its value, and the finding says where it is, what was found and what is wanted."""
    found = problem(tmp_path, text)
    assert (found.key, found.code) == (key, code)
    assert found.file == f"{tmp_path}/1.toml"
    assert found.line == text.count("\n") + 1
    assert found.found
    assert found.wanted


def test_a_broken_file_is_not_said_to_lack_a_command(tmp_path: Path) -> None:
    """What a file that cannot be read leaves out is not a second problem."""
    assert [f.code for f in problems(tmp_path, "[engine]\nargv = [")] == ["E101"]


def test_a_missing_command_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    """Without a command there is nothing to run; the message says where to write one."""
    (found,) = problems(tmp_path, "mode = 'active'")
    assert (found.code, found.key, found.file) == ("E109", "engine.argv", f"{tmp_path}/0.toml")
    with pytest.raises(ConfigError, match="no command to run"):
        load_settings("default", files=(), environ={})


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("[slo]\nitl_p99 = '90ms'", "W310", "nearest edges: 75 ms, 100 ms"),
        ("[slo]\nttft_p95 = 3000", "W310", "nearest edges: 2560 s"),
        ("[slo]\nitl_p50 = '1ms'", "W310", "nearest edges: 10 ms"),
        ("[slo]\njudge_window = '9s'", "W311", "scraped every 5s"),
        ("[budget]\nsoak = '1m'", "W312", "less than one window of 5m"),
        ("[slo]\njudge_window = '20m'", "W312", "less than one window of 20m"),
        ("[budget]\nrestarts_per_day = 1", "W313", "the day is reached first"),
        ("[guard]\nswap-space = {}", "W314", "vllmd moves gpu-memory-utilization"),
        ("[guard]\nmax-num-seqs = {}\nfrozen = ['max-num-seqs']", "W315", "wins"),
    ],
)
def test_unwise_settings_are_warned_of(tmp_path: Path, text: str, code: str, words: str) -> None:
    """What is allowed but will surprise does not stop anything, and is told with the reason."""
    _, (warning,) = load(tmp_path, COMMAND, text)
    assert (warning.code, warning.severity) == (code, Severity.WARNING)
    assert words in warning.notes[0]
    assert warning.line


def test_limits_on_bucket_edges_are_silent(tmp_path: Path) -> None:
    """An edge of vLLM's histogram, however it is written, is not warned of."""
    text = "[slo]\nitl_p99 = '75ms'\nitl_p50 = 0.025\nttft_p95 = '1s'\nttft_p999 = '7s500ms'"
    assert load(tmp_path, COMMAND, text)[1] == ()


SECRETS = ("hunter2-hunter2", "sk-0123456789abcdef", "hf_abcdefghijklmnop")


@pytest.mark.parametrize(
    "text",
    [
        "[engine]\nargv = ['vllm', '--api-key', '{}', 5]",
        "[engine]\nargv = 'vllm --api-key {}'",
        '[engine]\nargv = ["vllm", "--hf-token={}", "--x"]\nurl = 5\napi_key = "{}"',
        "[engine]\napi_key = {}",
        "[engine]\nurl = 'http://user:{}@host:1'",
        "[engine]\nargv = ['vllm',\n'--api-key',\n'{}'\nx = 1",
    ],
)
@pytest.mark.parametrize("secret", SECRETS)
def test_no_finding_holds_a_secret(tmp_path: Path, text: str, secret: str) -> None:
    """Keys and tokens in a wrong value, or beside a syntax error, stay out of every field of a finding."""
    found = problems(tmp_path, text.replace("{}", secret))
    assert found
    assert secret not in repr(found)


@pytest.mark.parametrize(("text", "seconds"), [("", None), ("canary = 'off'", None), ("canary = '60s'", 60.0)])
def test_a_canary_is_off_or_a_duration(tmp_path: Path, text: str, seconds: float | None) -> None:
    """Off is the default, and can be written to switch off what an earlier file set."""
    loaded, _ = load(tmp_path, COMMAND + "canary = '5m'" if text else COMMAND, f"[engine]\n{text}")
    assert loaded.engine.canary_s == seconds
    found = problem(tmp_path, "[engine]\ncanary = 'of'")
    assert (found.message, found.wanted) == ('canary is neither "off" nor a duration', '"off", or a duration')
