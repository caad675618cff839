"""The simulated faults: which launch they strike, what they print, how they end an engine."""

from itertools import islice
from pathlib import Path

import pytest

from vllmd_sim import failures, worker_errors
from vllmd_sim.breakdowns import Moment, course
from vllmd_sim.failures import STEPPING, EngineError, ProcessEndError
from vllmd_sim.host import Fault, Host, HostError, parse_host
from vllmd_sim.scenario import of_this_launch


def ends_of(host: Host) -> tuple[list[Moment], Exception]:
    """Return what a fault prints, and what it raises."""
    moments: list[Moment] = []
    try:
        moments.extend(course(host, serving=True))
    except (EngineError, ProcessEndError) as error:
        return moments, error
    raise AssertionError("it ended in order")


def test_a_fault_strikes_the_first_launches_only(tmp_path: Path) -> None:
    """Two of three, counted over launches by the file; without a number every one."""
    host = Host(fault=Fault.ECC, fault_launches=2, fault_file=str(tmp_path / "count"))
    assert [of_this_launch(host, ()).fault for _ in range(3)] == [Fault.ECC, Fault.ECC, None]
    assert [of_this_launch(Host(fault=Fault.ECC), ()).fault for _ in range(3)] == [Fault.ECC] * 3


def test_an_option_keeps_a_fault_away(tmp_path: Path) -> None:
    """Neither struck nor counted where the option is set."""
    host = Host(
        fault=Fault.ILLEGAL_ACCESS,
        fault_unless="enforce-eager",
        fault_launches=1,
        fault_file=str(tmp_path / "count"),
    )
    assert of_this_launch(host, {"enforce_eager"}).fault is None
    assert of_this_launch(host, {"port"}).fault == Fault.ILLEGAL_ACCESS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"fault": "gremlins"}', "unknown fault 'gremlins'; known: model-gated, "),
        ('{"fault_at": "noon"}', "start or serving, found 'noon'"),
        ('{"fault": "ecc", "fault_launches": 1}', "fault_launches needs fault_file"),
        ('{"fault_code": 0}', "an exit code or the negative of a signal"),
        ('{"version": "seven"}', "version must be like 0.26.0, found 'seven'"),
    ],
)
def test_a_fault_that_cannot_be_meant_is_refused(text: str, words: str) -> None:
    """With the key and what it may be."""
    with pytest.raises(HostError, match=words):
        parse_host(text)


def test_a_fault_strikes_in_its_own_place() -> None:
    """Faults of the model and of loading are no faults of a step, wherever fault_at points."""
    for fault_at in ("start", "serving"):
        assert not Host(fault=Fault.WEIGHTS_DAMAGED, fault_at=fault_at).strikes_at_start
        assert not Host(fault=Fault.MODEL_GATED, fault_at=fault_at).strikes_while_serving
    assert Host(fault=Fault.PROCESS_DIES, fault_at="start").strikes_at_start
    assert Host(fault=Fault.PROCESS_DIES).strikes_while_serving


def test_a_process_that_dies_has_its_code() -> None:
    """The fault says how a process ends, whosever it is."""
    _, error = ends_of(Host(fault=Fault.PROCESS_DIES, fault_code=-11))
    assert isinstance(error, ProcessEndError)
    assert error.code == -11


@pytest.mark.parametrize(("version", "code"), [("0.26.0", " (exit code: -11)"), ("0.25.1", "")])
def test_a_lost_worker_is_named(version: str, code: str) -> None:
    """With its code where vLLM tells it; what the engine makes of it depends on whether it waited for an answer."""
    waiting, idle = (worker_errors.lost(1, -11, version, calling) for calling in (STEPPING[:1], ()))
    assert waiting.notices[0].text == f"Worker proc VllmWorker-1 died unexpectedly{code}, shutting down executor."
    assert waiting.notices == idle.notices
    assert (waiting.text, idle.text) == ("RuntimeError: cancelled", "RuntimeError: Executor failed.")


def test_what_fails_in_a_worker_is_told_by_each_and_passed_on() -> None:
    """A failure of its start and one of a call have words of their own; those of the engine itself are not changed."""
    refused = worker_errors.passed_on(failures.free_memory_low(1, 2, 0.9, 2), 2)
    assert [(notice.rank, notice.text.split("\n", 1)[0]) for notice in refused.notices] == [
        (0, "WorkerProc failed to start."),
        (1, "WorkerProc failed to start."),
    ]
    assert "Free memory on device" in refused.notices[0].text
    assert refused.text.startswith("Exception: WorkerProc initialization failed due to an exception")
    own = failures.no_cache_memory()
    assert worker_errors.passed_on(own, 2) is own
    alone = failures.free_memory_low(1, 2, 0.9, 2)
    assert worker_errors.passed_on(alone, 1) is alone


def test_a_call_that_is_not_answered_times_out_after_hints() -> None:
    """Four hints and the timeout share the silence."""
    moments, error = ends_of(Host(fault=Fault.RPC_TIMEOUT, silence_s=5.0))
    assert [moment.pause_s for moment in moments] == [1.0] * 5
    assert ["broadcast block found" in moment.text for moment in moments] == [True] * 4 + [False]
    assert "RPC call to execute_model timed out." in str(error)


def test_the_nccl_watchdog_aborts() -> None:
    """Its lines carry the milliseconds; the process ends by SIGABRT."""
    moments, error = ends_of(Host(fault=Fault.NCCL_TIMEOUT, silence_s=600.0))
    assert "OpType=ALLREDUCE" in moments[0].text
    assert "Timeout(ms)=600000) ran for 600059 milliseconds" in moments[0].text
    assert isinstance(error, ProcessEndError)
    assert error.code == -6


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault.ILLEGAL_ACCESS, "an illegal memory access was encountered"),
        (Fault.DEVICE_ASSERT, "device-side assert triggered"),
        (Fault.LAUNCH_FAILURE, "unspecified launch failure"),
        (Fault.ECC, "uncorrectable ECC error encountered"),
        (Fault.OFF_THE_BUS, "GPU has fallen off the bus"),
    ],
)
def test_a_device_error_is_the_runtimes(fault: Fault, words: str) -> None:
    """Raised by torch with one GPU, passed on from a worker with more."""
    _, alone = ends_of(Host(fault=fault))
    assert isinstance(alone, EngineError)
    passed_on = worker_errors.passed_on(alone, 2)
    assert passed_on.notices[1].text.startswith("WorkerProc hit an exception.\nTraceback")
    assert str(alone).startswith(f"torch.AcceleratorError: CUDA error: {words}\n")
    assert str(passed_on).startswith(f"RuntimeError: Worker failed with error 'CUDA error: {words}\n")


@pytest.mark.parametrize(("fault", "says"), [(Fault.HANG, False), (Fault.HANG_WITH_HINTS, True)])
def test_a_hang_never_ends(fault: Fault, *, says: bool) -> None:
    """With hints or without a word."""
    moments = list(islice(course(Host(fault=fault), serving=True), 20))
    assert len(moments) == 20
    assert all(bool(moment.text) is says for moment in moments)
