"""The diagnosis withstands any log: it never raises, never leaks a secret or a control character, and is fast."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from captures import read_log
from vllmd.decide.diagnose import diagnose
from vllmd.decide.failure_texts import FACTS, ROWS
from vllmd.model.failure import Failure
from vllmd.model.launch_end import LaunchEnd
from vllmd.model.masking import Masker
from vllmd.model.server import Phase

SECRET = "hunter2-correct-horse"  # noqa: S105 - planted to be found nowhere
_REAL = [
    line
    for file in ("h200-vllm-0.26.0/runtime-oom.log", "cpu-vllm-0.32.0/fail-maxlen-gt-model.log")
    for line in read_log(file)
]
_PIECES = st.one_of(
    st.from_regex(
        r"Avg prompt throughput: [0-9.]{1,9} tokens/s, Avg generation throughput: [0-9.]{1,9} tokens/s", fullmatch=True
    ),
    st.text(max_size=40),
    st.sampled_from([row.pattern.pattern for row in ROWS]),
    st.sampled_from([fact.key for fact in FACTS]),
    st.sampled_from(_REAL),
    st.sampled_from(
        [SECRET, "\x1b[2J", "\u202e", "9" * 500, "-1.5/0.0", " GiB)", "\ud800", "{what}", "[type=x, input_"]
    ),
)
_LINES = st.lists(st.lists(_PIECES, max_size=4).map("".join), max_size=12)


def _diagnose(lines: list[str], exit_code: int | None, phase: Phase = Phase.CONFIG) -> Failure:
    return diagnose(lines, LaunchEnd(1, exit_code, phase), Masker([SECRET]))


@given(_LINES, st.one_of(st.none(), st.integers()), st.sampled_from(Phase))
@settings(max_examples=300)
def test_no_log_breaks_it_or_speaks_through_it(lines: list[str], exit_code: int | None, phase: Phase) -> None:
    """Whatever stands in the log, a failure comes back whose texts are short, printable and without the secret."""
    failure = _diagnose(lines, exit_code, phase)
    texts = [failure.summary] + ([failure.evidence.text] if failure.evidence else [])
    for text in texts:
        assert text.isprintable()
        assert SECRET not in text
        assert len(text) <= 400
    assert failure.summary
    assert failure.evidence is None or 1 <= failure.evidence.line <= len(lines)


@given(st.data())
def test_numbers_are_finite(data: st.DataObject) -> None:
    """Numbers that no computer has are not passed on to a policy."""
    digits = st.from_regex(r"-?[0-9]{1,400}(\.[0-9]{1,40})?", fullmatch=True)
    free, total, used = (data.draw(digits) for _ in range(3))
    line = (
        f"Free memory on device ({free}/{total} GiB) on startup is less than desired GPU memory utilization "
        f"(0.9, {used} GiB)."
    )
    assert all(abs(value) < 1e25 for value in _diagnose([line], 1).numbers.values())


def test_a_secret_in_the_deciding_line_is_masked() -> None:
    """A refusal repeats unknown arguments with their values."""
    failure = _diagnose([f"vllm: error: unrecognized arguments: --my-key {SECRET}"], 2)
    assert failure.summary == "vLLM does not know --my-key ***; remove it"
    assert failure.evidence is not None
    assert SECRET not in failure.evidence.text


def test_colours_inside_a_secret_do_not_hide_it() -> None:
    """A secret is masked also where escape sequences stand between its letters."""
    failure = _diagnose([f"vllm: error: unrecognized arguments: --x {SECRET[:7]}\x1b[0m{SECRET[7:]}"], 2)
    assert failure.evidence is not None
    assert SECRET not in failure.summary + failure.evidence.text


def test_a_secret_that_the_length_limit_would_cut_is_not_shown_in_part() -> None:
    """A line is cut between words, so that no half of a secret survives."""
    for padding in range(3900, 4000, 7):
        line = f"vllm: error: unrecognized arguments: --x {'y ' * (padding // 2)} {SECRET} z"
        failure = _diagnose([line], 2)
        assert failure.evidence is not None
        assert SECRET[:6] not in failure.summary + failure.evidence.text


def test_a_hundred_thousand_lines_take_less_than_a_second() -> None:
    """A long life full of requests is read in under a second of processor time."""
    served = [
        'INFO:     127.0.0.1:41884 - "POST /v1/completions HTTP/1.1" 200 OK',
        "(APIServer pid=1) INFO 11-29 16:49:53 [loggers.py:271] Engine 000: Avg generation throughput: 88.1 tokens/s",
    ]
    lines = read_log("h200-vllm-0.26.0/start-then-stop.log")[:90] + served * 50_000
    started = time.process_time()
    _diagnose(lines, 0)
    assert time.process_time() - started < 1.0


def test_a_crash_that_repeats_a_hundred_thousand_lines_takes_less_than_a_second() -> None:
    """Tracebacks, errors that every row is tried on, and dumps are read as fast as requests."""
    log = read_log("h200-vllm-0.26.0/runtime-oom.log")
    trace = [line for line in log if 'File "' in line or "Error" in line or "Traceback" in line]
    for lines in (
        log[:150] + trace * (100_000 // len(trace)),
        [trace[-1]] * 100_000,
        ["ValueError: odd max_x"] * 100_000,
    ):
        started = time.process_time()
        _diagnose(lines, 1)
        assert time.process_time() - started < 1.0


def test_long_errors_without_a_blank_are_no_trap() -> None:
    """No pattern tries every place of a line against every other one: twice the length takes no four times as long."""
    half, whole = (min(_spent_s(_without_blanks(chars)) for _ in range(3)) for chars in (1900, 3800))
    assert whole < 3 * half


def _without_blanks(chars: int) -> list[str]:
    shapes = ("x", "/a", "a: ", "-", "1", " ", "(1")
    bodies = [(shape * chars)[:chars] for shape in shapes]
    return [f"ValueError: {n}{body} max_ [type= emory KV cache " for n in range(30) for body in bodies]


def _spent_s(lines: list[str]) -> float:
    started = time.process_time()
    _diagnose(lines, 1)
    return time.process_time() - started
