"""Diagnosis of ends that the log does not explain: codes, signals, and what the host saw."""

import pytest

from captures import diagnose_lines, read_log
from vllmd.model.failure import FailureClass
from vllmd.model.host_facts import HostFacts
from vllmd.model.launch_end import ProcessState
from vllmd.model.server import Phase

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has a total capacity of 139.80 "
    "GiB of which 63.56 MiB is free."
)
SERVING = "(APIServer pid=1) INFO:     Application startup complete."


@pytest.mark.parametrize(
    ("exit_code", "kind", "words"),
    [
        (0, FailureClass.CLEAN_EXIT, "ended in order"),
        (-9, FailureClass.INFRA_FAULT, "SIGKILL from outside"),
        (137, FailureClass.INFRA_FAULT, "the host runs out of memory"),
        (-15, FailureClass.EXTERNAL_STOP, "SIGTERM from outside"),
        (-11, FailureClass.INFRA_FAULT, "SIGSEGV ended vLLM"),
        (-7, FailureClass.INFRA_FAULT, "shm may be too small"),
        (132, FailureClass.INFRA_FAULT, "instructions that the processor lacks"),
        (-99, FailureClass.INFRA_FAULT, "signal 99"),
        (3, FailureClass.INFRA_FAULT, "exit code 3"),
        (None, FailureClass.INFRA_FAULT, "unknown exit code"),
    ],
)
def test_without_a_cause_in_the_log_the_exit_code_decides(
    exit_code: int | None, kind: FailureClass, words: str
) -> None:
    """A signal, an orderly end and anything else are told apart by the code alone."""
    failure = diagnose_lines([SERVING, "INFO:     127.0.0.1:1 - 200 OK"], exit_code=exit_code)
    assert failure.kind is kind
    assert words in failure.summary
    assert failure.phase is Phase.SERVING


def test_an_end_that_was_asked_for_is_clean_whatever_the_log_says() -> None:
    """Our own stop may end in a signal and in error lines."""
    failure = diagnose_lines([SERVING, OOM], exit_code=-9, stop_requested=True)
    assert (failure.kind, failure.evidence) == (FailureClass.CLEAN_EXIT, None)


def test_an_orderly_end_that_we_did_not_ask_for_is_somebody_elses() -> None:
    """The daemon knows that it asked for nothing: a shutdown was a stop from outside, silence is a fault."""
    stopped = diagnose_lines([SERVING, "INFO:     Shutting down"], exit_code=0, stop_requested=False)
    silent = diagnose_lines([SERVING], exit_code=0, stop_requested=False)
    assert (stopped.kind, silent.kind) == (FailureClass.EXTERNAL_STOP, FailureClass.INFRA_FAULT)


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        (HostFacts(cgroup_oom_kill=1), FailureClass.HOST_OOM),
        (HostFacts(docker_oom_killed=True), FailureClass.HOST_OOM),
        (HostFacts(k8s_terminated_reason="OOMKilled"), FailureClass.HOST_OOM),
        (HostFacts(dmesg="Out of memory: Killed process 17 (python3)"), FailureClass.HOST_OOM),
        (HostFacts(dmesg="NVRM: Check failed: Out of memory"), FailureClass.INFRA_FAULT),
        (HostFacts(cgroup_oom_kill=0), FailureClass.EXTERNAL_STOP),
        (HostFacts(), FailureClass.INFRA_FAULT),
    ],
)
def test_a_kill_is_the_kernels_only_where_somebody_saw_it(host: HostFacts, kind: FailureClass) -> None:
    """SIGKILL alone says nothing about memory; what the host counted does."""
    assert diagnose_lines([SERVING], exit_code=137, host=host).kind is kind


@pytest.mark.parametrize(
    ("state", "kind"),
    [(ProcessState.STARTING, FailureClass.NONE), (ProcessState.EXITED, FailureClass.EXTERNAL_STOP)],
)
def test_the_answer_to_our_own_sigterm_is_no_stop_from_outside(state: ProcessState, kind: FailureClass) -> None:
    """A start that stood still is ended by us, which leaves the traceback of a SIGTERM in its log."""
    begun, told = "(EngineCore pid=2) Starting to load model m...", "(APIServer pid=1) KeyboardInterrupt: terminated"
    assert diagnose_lines([begun, told], exit_code=None, state=state, stop_requested=False).kind is kind


def test_an_orderly_shutdown_with_an_unknown_code_is_clean() -> None:
    """A server that was adopted is no child, so that only its log tells of its end."""
    lines = read_log("cpu-vllm-0.32.0/sigterm.log")
    assert diagnose_lines(lines, exit_code=None).kind is FailureClass.CLEAN_EXIT
