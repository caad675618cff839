"""How findings are drawn."""

from vllmd.cli.findings import as_json, render, summary
from vllmd.errors import Finding, Severity

SLO = '# targets\n[slo]\nttft_p95 = "1sec"\n'
TYPING_ERROR = Finding(
    "E104",
    "ttft_p95 is not a duration",
    "slo.ttft_p95",
    '"1sec"',
    "a duration",
    file="/etc/vllmd/vllmd.d/20-slo.toml",
    line=3,
    column=12,
    hint='write "1s", "800ms" or 0.8 (seconds)',
    width=6,
    notes=('/etc/vllmd/vllmd.toml:18 also sets it to "1s"; this file wins',),
)
WARNING = Finding(
    "W310",
    "itl_p99 = 90 ms is not a bucket edge of vllm:inter_token_latency_seconds",
    "slo.itl_p99",
    '"90ms"',
    "75 ms, 100 ms",
    file="/etc/vllmd/vllmd.toml",
    line=9,
    column=1,
    severity=Severity.WARNING,
    notes=("attainment would be interpolated; nearest edges: 75 ms, 100 ms",),
)


def draw(finding: Finding, text: str | None) -> list[str]:
    """Draw one finding of a file with this text."""
    return render([finding], text_of=lambda _: text).split("\n")


def at(line: int, column: int, width: int, hint: str = "no") -> Finding:
    """Return an error at a place."""
    return Finding("E1", "m", "k", "f", "w", file="f", line=line, column=column, hint=hint, width=width)


def test_an_error_shows_the_line_and_points_at_the_fault() -> None:
    """Code, message, place, source line, carets with the advice, then what else bears on it."""
    assert draw(TYPING_ERROR, SLO) == [
        "error[E104]: ttft_p95 is not a duration",
        "  --> /etc/vllmd/vllmd.d/20-slo.toml:3:12",
        "   |",
        ' 3 | ttft_p95 = "1sec"',
        '   |            ^^^^^^ write "1s", "800ms" or 0.8 (seconds)',
        '   = /etc/vllmd/vllmd.toml:18 also sets it to "1s"; this file wins',
    ]


def test_a_warning_is_three_lines() -> None:
    """A warning has its place and its reason, and no excerpt."""
    assert draw(WARNING, SLO) == [
        "warning[W310]: itl_p99 = 90 ms is not a bucket edge of vllm:inter_token_latency_seconds",
        "  --> /etc/vllmd/vllmd.toml:9:1",
        "   = attainment would be interpolated; nearest edges: 75 ms, 100 ms",
    ]


def test_without_a_line_the_advice_stands_alone() -> None:
    """A finding about the command line, a vanished file or a secret line shows what is wanted, and no excerpt."""
    bare = Finding("E109", "no command", "engine.argv", "", "the command")
    assert draw(bare, None) == ["error[E109]: no command", "  --> command line", "   = wanted the command"]
    assert draw(TYPING_ERROR, None)[2] == '   = write "1s", "800ms" or 0.8 (seconds)'
    assert draw(TYPING_ERROR, "shorter now")[2] == '   = write "1s", "800ms" or 0.8 (seconds)'


def test_the_gutter_grows_with_the_line_number() -> None:
    """Bars stand below each other for lines of any number."""
    assert draw(at(120, 1, 1), "\n" * 119 + "x")[2:] == ["     |", " 120 | x", "     | ^ no"]


def test_the_caret_counts_what_is_shown() -> None:
    """Tabs and control characters before the fault take as many columns as they are drawn with."""
    assert draw(at(1, 3, 1), "\t\x1bx = 1")[3:] == [" 1 |     \\x1bx = 1", "   |         ^ no"]


def test_text_of_a_file_cannot_steer_the_terminal() -> None:
    """Escapes, bidirectional controls and line breaks in any field are shown, never sent."""
    hostile = "\x1b[31m\u202e\r\n\x9b"
    finding = Finding("E1", hostile, "k", "f", "w", file=hostile, line=1, column=1, hint=hostile, notes=(hostile,))
    drawn = render([finding], text_of=lambda _: f"a {hostile}")
    assert all(line.isprintable() for line in drawn.split("\n"))
    assert len(drawn.split("\n")) == 6


def test_secrets_in_the_line_are_masked_and_the_caret_stays() -> None:
    """A key on the quoted line is replaced, and the caret still stands below the fault behind it."""
    line = 'argv = ["vllm", "--api-key", "hunter2-hunter2", "--hf-token=hf_abcdefghijkl", "--foo"]'
    drawn = draw(at(1, line.index('"--foo"') + 1, 7), line)
    assert drawn[3] == ' 1 | argv = ["vllm", "--api-key", "***", "--hf-token=***", "--foo"]'
    assert drawn[4].index("^^^^^^^") == drawn[3].index('"--foo"')


def test_a_secret_known_from_another_line_is_masked() -> None:
    """An array of several lines may hold the option on one line and its secret on the next."""
    text = 'argv = ["vllm", "--api-key",\n  "hunter2-hunter2", 5]\n'
    assert draw(at(2, 22, 1), text)[3:] == [' 2 |   "***", 5]', "   |          ^ no"]


def test_a_long_line_is_cut_around_the_fault() -> None:
    """The fault of a line of any length is on the screen."""
    line = "x" * 300 + "FAULT" + "y" * 300
    drawn = draw(at(1, 301, 5), line)
    assert max(map(len, drawn)) < 120
    assert drawn[4].index("^^^^^") == drawn[3].index("FAULT")


def test_colour_is_only_in_the_head() -> None:
    """Colour repeats the severity and nothing else; without it the text is the same."""
    plain, coloured = render([TYPING_ERROR, WARNING]), render([TYPING_ERROR, WARNING], color=True)
    assert coloured.startswith("\x1b[1;31merror[E104]\x1b[0m: ")
    assert "\x1b[1;33mwarning[W310]\x1b[0m" in coloured
    assert coloured.replace("\x1b[1;31m", "").replace("\x1b[1;33m", "").replace("\x1b[0m", "") == plain


def test_the_summary_counts() -> None:
    """Errors, then warnings, then files; none of both is said in words."""
    assert summary([TYPING_ERROR, TYPING_ERROR, WARNING], 3) == "2 errors, 1 warning in 3 files. Nothing was changed."
    assert summary([WARNING], 1) == "1 warning in 1 file. Nothing was changed."
    assert summary([], 0) == "No problem in 0 files. Nothing was changed."


def test_json_says_null_for_unknown() -> None:
    """A field that nobody knows is null, never empty or zero."""
    shown = as_json(Finding("E102", "m", "", "", "w"))
    assert [shown[name] for name in ("key", "found", "hint", "file", "line", "column")] == [None] * 6
    assert as_json(TYPING_ERROR)["line"] == 3
