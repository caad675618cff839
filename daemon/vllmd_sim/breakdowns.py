"""How an engine breaks though its memory suffices: the device, a worker, the links between GPUs, silence.

Templates: vLLM 0.26 (multiproc_executor.py, shm_broadcast.py), torch 2.9 and the CUDA runtime.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vllmd_sim.failures import CACHES, EXECUTOR, MEASURING, STEPPING, EngineError, Frame, ProcessEndError
from vllmd_sim.host import Fault, Host
from vllmd_sim.worker_errors import RPC

_HINTS = 5  # in a silence: vLLM complains every minute and gives up after five
_SIGABRT = -6
_DEVICE_ERRORS = {
    Fault.ILLEGAL_ACCESS: ("an illegal memory access was encountered", "cudaErrorIllegalAddress"),
    Fault.DEVICE_ASSERT: ("device-side assert triggered", "cudaErrorAssert"),
    Fault.LAUNCH_FAILURE: ("unspecified launch failure", "cudaErrorLaunchFailure"),
    Fault.ECC: ("uncorrectable ECC error encountered", "cudaErrorECCUncorrectable"),
    Fault.OFF_THE_BUS: ("GPU has fallen off the bus", "cudaErrorUnknown"),
}


@dataclass(frozen=True, slots=True)
class Moment:
    """Something printed after a pause: at INFO from `place`, or as it is where there is no place."""

    pause_s: float
    place: str = ""
    text: str = ""


def course(host: Host, *, serving: bool) -> Iterator[Moment]:
    """Yield what is printed until the fault ends the engine, then raises EngineError, or never.

    ProcessEndError ends a process on the spot: the last worker's or, with one GPU, the engine's own.
    """
    frames = STEPPING if serving else (*CACHES, MEASURING)
    match Fault(host.fault or ""):
        case Fault.HANG:
            while True:
                yield Moment(host.silence_s)
        case Fault.HANG_WITH_HINTS:
            while True:
                yield _hint(host)
        case Fault.RPC_TIMEOUT:
            yield from unanswered(host, "execute_model" if serving else "determine_available_memory", frames)
        case Fault.NCCL_TIMEOUT:
            yield Moment(0.0, text=_watchdog(host.silence_s))
            raise ProcessEndError(_SIGABRT)
        case Fault.PROCESS_DIES:
            raise ProcessEndError(host.fault_code)
        case fault:
            raise device_error(fault, frames)


def unanswered(host: Host, method: str, frames: Sequence[Frame]) -> Iterator[Moment]:
    """Yield what the engine says while its workers do not answer; raises EngineError when its patience ends."""
    yield from [_hint(host)] * (_HINTS - 1)
    yield Moment(host.silence_s / _HINTS)
    raise EngineError(f"TimeoutError: RPC call to {method} timed out.", *frames, RPC)


def device_error(fault: Fault, frames: Sequence[Frame]) -> EngineError:
    """Return the CUDA runtime's error as torch raises it."""
    what, name = _DEVICE_ERRORS[fault]
    text = (
        f"CUDA error: {what}\n"
        f"Search for `{name}' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
        "information.\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )
    return EngineError(f"torch.AcceleratorError: {text}", *frames)


def driver_too_old() -> EngineError:
    """Return torch's complaint about the driver."""
    text = (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your GPU "
        "driver by downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx "
        "Alternatively, go to: https://pytorch.org to install a PyTorch version that has been compiled with your "
        "version of the CUDA driver."
    )
    return EngineError(text, *EXECUTOR, Frame("torch/cuda/__init__.py", 417, "_lazy_init", "torch._C._cuda_init()"))


def bfloat16_unsupported(gpu: str, capability: float) -> EngineError:
    """Return vLLM's refusal of a type that the device does not compute with (platforms/cuda.py)."""
    text = (
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your "
        f"{gpu} GPU has compute capability {capability:.1f}. You can use float16 instead by explicitly setting the "
        "`dtype` flag in CLI, for example: --dtype=half."
    )
    frame = Frame("vllm/platforms/cuda.py", 480, "check_if_supports_dtype", "raise ValueError(")
    return EngineError(text, *EXECUTOR, frame)


def weights_damaged() -> EngineError:
    """Return what safetensors says of a file that was cut short."""
    what = "incomplete metadata, file not fully covered"
    text = f"safetensors_rust.SafetensorError: Error while deserializing header: {what}"
    frame = Frame(
        "vllm/model_executor/model_loader/weight_utils.py",
        701,
        "safetensors_weights_iterator",
        'with safe_open(st_file, framework="pt") as f:',
    )
    return EngineError(text, *EXECUTOR, frame)


def _hint(host: Host) -> Moment:
    text = (
        "No available shared memory broadcast block found in 60 seconds. This typically happens when some processes "
        "are hanging or doing some time-consuming work (e.g. compilation, weight/kv cache quantization)."
    )
    return Moment(host.silence_s / _HINTS, "shm_broadcast.py:681", text)


def _watchdog(silence_s: float) -> str:
    """Return the lines of torch's NCCL watchdog, which have no prefix of vLLM's."""
    limit_ms = int(silence_s * 1000)
    caught = (
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=134217728, "
        f"NumelOut=134217728, Timeout(ms)={limit_ms}) ran for {limit_ms + 59} milliseconds before timing out."
    )
    return (
        f"[rank0]:[E ProcessGroupNCCL.cpp:685] [Rank 0] {caught}\n"
        "[rank0]:[E ProcessGroupNCCL.cpp:2252] [PG ID 2 PG GUID 3 Rank 0] failure detected by watchdog at work "
        "sequence id: 42 PG status: last enqueued work: 42, last completed work: 41\n"
        "[rank0]:[E ProcessGroupNCCL.cpp:739] [Rank 0] To avoid data inconsistency, we are taking the entire process "
        "down.\n"
    )
