"""Whether a server that lives has stopped getting on, by its log."""

import pytest

from captures import diagnose_lines
from vllmd.model.failure import FailureClass
from vllmd.model.launch_end import ProcessState

SERVING = "(APIServer pid=1) INFO:     Application startup complete."
UNHEARD = (
    "(EngineCore pid=5) INFO 07-12 11:21:20 [shm_broadcast.py:681] No available shared memory broadcast block found in "
    "60 seconds. This typically happens when some processes are hanging"
)
NCCL = "(Worker_TP0 pid=7) INFO 09-16 13:10:18 [pynccl.py:103] vLLM is using nccl==2.27.3"
SHARDS = "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:08<00:08,  4.11s/it]"


def statistics(tokens: float, running: int, waiting: int = 0) -> str:
    """Return a statistics line."""
    return (
        f"INFO 07-15 21:00:52 [loggers.py:271] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation "
        f"throughput: {tokens} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: 3.1%"
    )


@pytest.mark.parametrize(
    ("lines", "stands"),
    [
        ([SERVING, UNHEARD], False),
        ([SERVING, UNHEARD, UNHEARD], True),
        ([SERVING, UNHEARD, UNHEARD, statistics(9.1, 2)], False),  # it went on
        ([UNHEARD] * 4, False),  # a long compilation
        ([UNHEARD] * 5, True),
        ([UNHEARD] * 4 + [SHARDS] + [UNHEARD] * 4, False),
        ([NCCL, UNHEARD, UNHEARD], True),
        ([NCCL, SHARDS, UNHEARD, UNHEARD], False),
        ([SERVING] + [statistics(0.0, 3)] * 3, True),
        ([SERVING] + [statistics(0.0, 0, waiting=57)] * 3, True),
        ([SERVING] + [statistics(0.0, 3)] * 2, False),
        ([SERVING] + [statistics(0.0, 0)] * 9, False),  # nobody asks anything
        ([SERVING] + [statistics(0.0, 3)] * 3 + [statistics(0.1, 3)], False),
    ],
)
@pytest.mark.parametrize("state", [ProcessState.RUNNING, ProcessState.STARTING])
def test_only_what_goes_on_for_long_is_a_hang(lines: list[str], state: ProcessState, *, stands: bool) -> None:
    """A pause, a compilation and an idle server are none."""
    kind = FailureClass.HANG if stands else FailureClass.NONE
    assert diagnose_lines(lines, exit_code=None, state=state).kind is kind


def test_statistics_that_are_no_numbers_count_for_nothing() -> None:
    """A line that was cut or overwritten breaks nothing."""
    odd = statistics(0.0, 3).replace("0.0 tokens/s", "1.2.3. tokens/s")
    endless = statistics(0.0, 3).replace("Running: 3", f"Running: {'9' * 3000}")
    assert diagnose_lines([SERVING, odd, endless], exit_code=None, state=ProcessState.RUNNING).kind is FailureClass.NONE


def test_the_line_that_began_it_is_shown() -> None:
    """However much was printed since."""
    access = '(APIServer pid=1) INFO:     10.0.0.9:40010 - "GET /health HTTP/1.1" 200 OK'
    failure = diagnose_lines([SERVING, UNHEARD, UNHEARD, *[access] * 99], exit_code=None, state=ProcessState.RUNNING)
    assert failure.evidence is not None
    assert failure.evidence.line == 2


def test_a_server_that_was_ended_while_it_stood_still_hung() -> None:
    """The signal came from whoever lost patience."""
    lines = [SERVING, statistics(9.1, 2), UNHEARD, UNHEARD, UNHEARD]
    assert diagnose_lines(lines, exit_code=137).kind is FailureClass.HANG
    assert diagnose_lines(lines, exit_code=137, stop_requested=True).kind is FailureClass.CLEAN_EXIT


def test_a_dead_engine_behind_a_living_server_is_no_hang() -> None:
    """Its own word, or the health check's, says so."""
    dead = '(APIServer pid=1) INFO:     10.0.0.9:40010 - "GET /health HTTP/1.1" 503 Service Unavailable'
    assert diagnose_lines([SERVING, dead], exit_code=None, state=ProcessState.RUNNING).kind is FailureClass.INFRA_FAULT


@pytest.mark.parametrize(
    ("times", "stands"),
    [
        (("09:30:02", "09:30:12"), False),
        (("09:30:02", "09:31:02"), True),
        (("23:59:32", "00:00:32"), True),
    ],
)
def test_two_statistics_far_apart_are_as_good_as_many(times: tuple[str, str], *, stands: bool) -> None:
    """A log may hold only some of them; a minute without a token is one, also over midnight."""
    lines = [SERVING, *(statistics(0.0, 1).replace("21:00:52", time) for time in times)]
    kind = diagnose_lines(lines, exit_code=None, state=ProcessState.RUNNING).kind
    assert (kind is FailureClass.HANG) == stands
