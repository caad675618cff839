"""Starts that end the same way each time: a variable, a switch, or the operator; and what is tried once more."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from captures import GIB, diagnose_lines, failure_of, situation
from vllmd.decide.propose import propose
from vllmd.model.decision import Wish
from vllmd.model.failure import Failure, FailureClass
from vllmd.model.host_facts import HostFacts
from vllmd.model.server import Phase
from vllmd_policies import BUILT_IN
from vllmd_policies.no_flag_helps import no_flag_helps
from vllmd_policies.switched_off import switched_off
from vllmd_policies.variable_helps import variable_helps

ENGINE = "(EngineCore_DP0 pid=51) ERROR 12-02 11:20:14 [core.py:866] "
LOADING = "(EngineCore_DP0 pid=51) INFO 12-02 11:20:12 [gpu_model_runner.py:3467] Starting to load model /models/m..."
LOADED = (
    "(EngineCore_DP0 pid=51) INFO 12-02 11:20:12 [gpu_model_runner.py:3549] Model loading took 2.1 GiB and 9.1 seconds"
)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 594.00 MiB. GPU 1 has a total capacity of 44.53 GiB "
    "of which 448.00 KiB is free."
)
LINKS = "RuntimeError: NCCL error: remote process exited or there was a network error"


def _refused(lines: list[str]) -> Failure:
    return diagnose_lines(lines, exit_code=1)


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (["ValueError: Unheard of."], FailureClass.INVALID_COMBINATION),
        ([LOADING, f"{ENGINE}ValueError: Unheard of."], FailureClass.UNSUPPORTED_MODEL),
        ([LOADED, f"{ENGINE}ValueError: Unheard of."], FailureClass.INFRA_FAULT),
        (["RuntimeError: Unheard of."], FailureClass.INFRA_FAULT),
        (["TypeError: Unheard of."], FailureClass.INFRA_FAULT),
    ],
)
def test_an_unknown_error_is_taken_by_its_kind_and_phase(lines: list[str], kind: FailureClass) -> None:
    """A ValueError refuses arguments first, then the model; later, and of other kinds, it says nothing of either."""
    assert _refused(lines).kind is kind


def test_a_signal_says_more_than_an_error_above_it() -> None:
    """A server that was killed did not end by an error that it had survived."""
    lines = ["ValueError: Unheard of.", LOADING]
    assert diagnose_lines(lines, exit_code=-15).kind is FailureClass.EXTERNAL_STOP


def test_a_line_that_only_reports_a_death_says_less_than_the_refusal_above_it() -> None:
    """The last line of vLLM 0.8 is the same for whatever ended the engine."""
    lines = [LOADING, f"{ENGINE}ValueError: Unheard of.", "Got fatal signal from worker processes, shutting down."]
    failure = diagnose_lines(lines, exit_code=-9)
    assert failure.kind is FailureClass.UNSUPPORTED_MODEL
    assert failure.summary == "vLLM gave up while loading the weights: ValueError: Unheard of."


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ([LINKS, OOM], FailureClass.WARMUP_OOM),
        ([OOM, LINKS], FailureClass.WARMUP_OOM),
        ([LINKS, "RuntimeError: CUDA error: unspecified launch failure"], FailureClass.INFRA_FAULT),
    ],
)
def test_what_ended_a_rank_counts_before_the_links_of_the_others(lines: list[str], kind: FailureClass) -> None:
    """Ranks print in any order; the one whose neighbour is gone knows the least."""
    failure = _refused([LOADED, *(f"{ENGINE}{line}" for line in lines)])
    assert failure.kind is kind
    assert ("out of GPU memory" in failure.summary) == (OOM in lines)


def _failure(cause: str, kind: FailureClass = FailureClass.INFRA_FAULT) -> Failure:
    return replace(failure_of(kind, Phase.CONFIG), cause=cause)


@pytest.mark.parametrize(("repeats", "wish"), [(0, Wish.RETRY_UNCHANGED), (1, Wish.STOP)])
def test_an_unknown_refusal_is_tried_once_more(repeats: int, wish: Wish) -> None:
    """A server that vllmd keeps is not given up for words that nobody knows."""
    told = no_flag_helps(situation(_failure("guessed", FailureClass.INVALID_COMBINATION), repeats=repeats))
    assert told is not None
    assert told.wish is wish


@pytest.mark.parametrize(
    ("cause", "env"),
    [
        ("service-variable", {"VLLM_PORT": None}),
        ("compile-cache", {"VLLM_DISABLE_COMPILE_CACHE": "1"}),
        ("fork", {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}),
    ],
)
def test_a_variable_helps(cause: str, env: Mapping[str, str | None]) -> None:
    """The variable is named with its value."""
    told = variable_helps(situation(_failure(cause)))
    assert told is not None
    assert (told.wish, told.env) == (Wish.SET_ENV, env)


def test_a_variable_that_was_set_is_not_set_again() -> None:
    """What did not help is not proposed twice."""
    host = HostFacts(environ={"VLLM_DISABLE_COMPILE_CACHE": "1"})
    told = variable_helps(situation(_failure("compile-cache"), host=host))
    assert told is not None
    assert told.wish is Wish.STOP


@pytest.mark.parametrize(("cause", "name"), [("eager", "enforce-eager"), ("all-reduce", "disable-custom-all-reduce")])
def test_what_fails_is_switched_off_once_and_where_it_may_be(cause: str, name: str) -> None:
    """The switch is a flag like any other: only where the guard names it, and only once."""
    allowed = switched_off(situation(_failure(cause), bounds={name: (None, None)}))
    kept = switched_off(situation(_failure(cause), bounds={}))
    on = switched_off(situation(_failure(cause), {name: True}, bounds={name: (None, None)}))
    assert allowed is not None
    assert allowed.changes == {name: True}
    assert kept is not None
    assert on is not None
    assert [kept.wish, on.wish] == [Wish.STOP, Wish.STOP]
    assert "allow it in [guard]" in kept.reason


def test_other_failures_are_left_to_other_policies() -> None:
    """Neither policy speaks of a cause that it does not know."""
    other = situation(_failure("host"))
    assert variable_helps(other) is None
    assert switched_off(other) is None
    told = propose(other, BUILT_IN)
    assert told is not None
    assert told.wish is Wish.STOP


@pytest.mark.parametrize(
    ("line", "cause"),
    [("[16/96] /usr/local/cuda/bin/nvcc -c a.cu", "compiling"), ("[16/96] c++ -c b.cu", "compiling"), (LOADING, "")],
)
def test_a_compiler_at_work_is_what_filled_the_host(line: str, cause: str) -> None:
    """Fewer of them at once is the remedy, where the kernel ended what had just begun to compile."""
    failure = diagnose_lines([LOADED, line], exit_code=137, host=HostFacts(docker_oom_killed=True))
    assert (failure.kind, failure.cause) == (FailureClass.HOST_OOM, cause)


@pytest.mark.parametrize(("exit_code", "kind"), [(143, FailureClass.EXTERNAL_STOP), (1, FailureClass.INFRA_FAULT)])
def test_a_worker_that_was_stopped_with_its_server_did_not_die(exit_code: int, kind: FailureClass) -> None:
    """The same line is a death where the server itself got no signal."""
    died = "ERROR 03-21 23:28:45 multiproc_worker_utils.py:120] Worker VllmWorkerProcess pid 12 died, exit code: -15"
    assert diagnose_lines(["INFO:     Application startup complete.", died], exit_code=exit_code).kind is kind


def test_the_poorest_rank_decides_within_an_attempt() -> None:
    """The pools of several ranks are printed in any order; an earlier attempt's no longer count."""
    pools = [f"INFO 10-02 11:20:20 [gpu_worker.py:298] Available KV cache memory: {gib} GiB" for gib in (-2.9, -0.2)]
    refused = "ValueError: No available memory for the cache blocks."
    assert diagnose_lines([*pools, refused]).numbers["available_bytes"] == -2.9 * GIB
    again = "INFO 10-02 11:21:00 [utils.py:233] non-default args: {'model_tag': 'm'}"
    assert diagnose_lines([*pools, refused, again, pools[1], refused]).numbers["available_bytes"] == -0.2 * GIB


def test_a_gpu_off_the_bus_is_not_tried_again() -> None:
    """The kernel knows it where the log only has an unknown error of the device."""
    host = HostFacts(dmesg="NVRM: Xid (PCI:0000:41:00): 79, pid=900, GPU has fallen off the bus.")
    told = no_flag_helps(situation(_failure(""), host=host))
    assert told is not None
    assert told.wish is Wish.STOP
    assert no_flag_helps(situation(_failure(""))) is None
