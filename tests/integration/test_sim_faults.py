"""Every fault of the simulated host as a real process: vLLM's exit code, and the class that its lines are read as."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from captures import diagnose_lines
from vllmd.model.failure import FailureClass
from vllmd_sim.host import Fault

LIMIT_S = 30.0
BY_SIGNAL = {"fault": Fault.PROCESS_DIES}
TWO = ("--tensor-parallel-size", "2")
OF_THE_START = (
    (Fault.MODEL_GATED, FailureClass.MODEL_ACCESS, "set HF_TOKEN"),
    (Fault.MODEL_UNKNOWN, FailureClass.MODEL_ACCESS, "does not know the model m"),
    (Fault.MODEL_NOT_CACHED, FailureClass.MODEL_ACCESS, "may not be asked"),
    (Fault.MODEL_WITHOUT_CONFIG, FailureClass.MODEL_ACCESS, "no model at m"),
    (Fault.HUB_SILENT, FailureClass.MODEL_ACCESS, "cannot be reached"),
    (Fault.ARCHITECTURE, FailureClass.UNSUPPORTED_MODEL, "UnheardOfForCausalLM"),
    (Fault.WEIGHTS_DAMAGED, FailureClass.MODEL_ACCESS, "damaged or cut short"),
    (Fault.DRIVER_TOO_OLD, FailureClass.NO_DEVICE, "driver on your system is too old"),
    (Fault.CLEAN_EXIT, FailureClass.INFRA_FAULT, "ended in order"),
)
OF_THE_ENGINE: tuple[tuple[tuple[str, ...], dict[str, Any], FailureClass, str], ...] = (
    ((), {"fault": Fault.ILLEGAL_ACCESS}, FailureClass.INFRA_FAULT, "an illegal memory access was encountered"),
    (TWO, {"fault": Fault.DEVICE_ASSERT}, FailureClass.INFRA_FAULT, "device-side assert triggered"),
    ((), {"fault": Fault.LAUNCH_FAILURE}, FailureClass.INFRA_FAULT, "unspecified launch failure"),
    ((), {"fault": Fault.ECC}, FailureClass.INFRA_FAULT, "uncorrectable ECC error"),
    ((), {"fault": Fault.OFF_THE_BUS}, FailureClass.INFRA_FAULT, "the host must be restarted"),
    ((), {"fault": Fault.RPC_TIMEOUT}, FailureClass.HANG, "a worker did not answer"),
    (TWO, {"fault": Fault.NCCL_TIMEOUT}, FailureClass.INFRA_FAULT, "NCCL watchdog"),
    (TWO, {**BY_SIGNAL, "fault_code": -11}, FailureClass.INFRA_FAULT, "worker VllmWorker-1 died"),
    ((), {**BY_SIGNAL, "fault_code": -6}, FailureClass.INFRA_FAULT, "the engine"),
    ((), {**BY_SIGNAL, "fault_code": -9}, FailureClass.INFRA_FAULT, "the engine"),
)
# A hang has no end, and a neighbour needs memory to leave: both are shown to the daemon.
WITHOUT_AN_END = {Fault.HANG, Fault.HANG_WITH_HINTS, Fault.NEIGHBOUR_LEAVES}


def end_of(argv: tuple[str, ...], values: dict[str, Any]) -> tuple[int, str]:
    """Run a simulated server until it ends by itself; return its exit code and all that it printed."""
    given = {"start_s": 0.05, "fault_after_requests": 0, "silence_s": 0.05, **values}
    ended = subprocess.run(
        [sys.executable, "-m", "vllmd_sim", "serve", "m", "--port", "0", *argv],
        env={**os.environ, "VLLMD_SIM": json.dumps(given)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return ended.returncode, ended.stdout


@pytest.mark.parametrize(("fault", "kind", "words"), OF_THE_START)
def test_a_fault_of_the_start(fault: Fault, kind: FailureClass, words: str) -> None:
    """Code 1 and a text that names the cause, or code 0 without one."""
    code, text = end_of((), {"fault": fault})
    failure = diagnose_lines(text.splitlines(), exit_code=code, stop_requested=False)
    assert code == (0 if fault is Fault.CLEAN_EXIT else 1)
    assert failure.kind is kind
    assert words in failure.summary


@pytest.mark.parametrize("at", ["start", "serving"])
@pytest.mark.parametrize(
    ("argv", "values", "kind", "words"),
    OF_THE_ENGINE,
    ids=lambda value: str(value.get("fault")) + str(value.get("fault_code", "")) if isinstance(value, dict) else "",
)
def test_a_fault_of_the_engine(
    argv: tuple[str, ...], values: dict[str, Any], kind: FailureClass, words: str, at: str
) -> None:
    """In a start the server ends with code 1, with 0 once it served; the cause is found above what follows from it."""
    code, text = end_of(argv, {**values, "fault_at": at})
    assert code == (1 if at == "start" else 0)
    last = "Engine core initialization failed" if at == "start" else "EngineDeadError: EngineCore encountered"
    assert last in text
    failure = diagnose_lines(text.splitlines(), exit_code=code, stop_requested=False)
    assert failure.kind is kind
    assert words in failure.summary


@pytest.mark.parametrize(
    ("argv", "values", "kind", "words"),
    [
        (("--tensor-parallel-size", "4"), {"gpu_count": 2}, FailureClass.INVALID_COMBINATION, "available GPUs (2)"),
        (("--gpu-memory-utilization", "1.5"), {}, FailureClass.INVALID_FLAG, "less than or equal to 1"),
        (("--gpu-memory-utilization", "0"), {}, FailureClass.INVALID_FLAG, "greater than 0"),
        (
            ("--max-num-active-seqs", "512", "--max-num-seqs", "256"),
            {},
            FailureClass.INVALID_COMBINATION,
            "max_num_active_seqs (512) cannot be greater than max_num_seqs (256)",
        ),
        (
            ("--max-model-len", "1024", "--long-prefill-token-threshold", "2048"),
            {},
            FailureClass.INVALID_COMBINATION,
            "long_prefill_token_threshold (2048) cannot be greater",
        ),
        (
            ("--dtype", "bfloat16"),
            {"compute_capability": 7.5, "gpu": "Tesla T4"},
            FailureClass.UNSUPPORTED_MODEL,
            "Tesla T4 GPU has compute capability 7.5",
        ),
        (TWO, {"shm_mib": 64, "version": "0.33.0"}, FailureClass.INFRA_FAULT, "160.0 MiB required, 64.0 MiB free"),
        (TWO, {"shm_mib": 64}, FailureClass.INFRA_FAULT, "SIGBUS"),
        (("--kv-offloading-size", "600"), {}, FailureClass.HOST_OOM, "the host's memory ran out"),
        (("--cpu-offload-gb", "600"), {}, FailureClass.HOST_OOM, "the host's memory ran out"),
        (("--kv-offloading-size", "90"), {"host_limit_gib": 64}, FailureClass.INFRA_FAULT, "runs out of memory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_numbers_that_do_not_go_together(
    argv: tuple[str, ...], values: dict[str, Any], kind: FailureClass, words: str
) -> None:
    """What the host's numbers do not allow ends the start with code 1, with the numbers in what is said of it."""
    code, text = end_of(argv, values)
    failure = diagnose_lines(text.splitlines(), exit_code=code, stop_requested=False)
    assert code == 1
    assert failure.kind is kind
    assert words in failure.summary


def test_every_fault_is_tried() -> None:
    """A new fault needs its words and its class here."""
    tried = {row[0] for row in OF_THE_START} | {row[1]["fault"] for row in OF_THE_ENGINE}
    assert tried | WITHOUT_AN_END == set(Fault)
