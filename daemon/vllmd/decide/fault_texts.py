"""The texts about a host that broke: devices, drivers, links between GPUs, deadlines; and what follows from a cause.

Templates: vLLM 0.5 to 0.33 as read from its source, torch, the CUDA driver and NCCL.
"""

from vllmd.decide.text_row import Row, both, row
from vllmd.model.failure import FailureClass

# What a rank says whose neighbour failed: the neighbour's own words count, also below it.
LINKS = "links"

DEVICE: tuple[Row, ...] = (
    both(
        "rror",
        r"(?P<what>No (?:CUDA|HIP|XPU) (?:GPUs|devices) are available|Found no NVIDIA driver|"
        r"Failed to infer device type|Device string must not be empty|"
        r"Error \d+: (?:system not yet initialized|system has unsupported display driver|forward compatibility was "
        r"attempted)|CUDA driver version is insufficient|"
        r"[Nn]o CUDA-capable device is detected|driver on your system is too old|Driver/library version mismatch|"
        r"libcuda\.so\.1: cannot open shared object|NVML Shared Library Not Found|CUDA initialization error)",
        "vLLM finds no usable device: {what}",
        FailureClass.NO_DEVICE,
    ),
    both(
        "rror",
        r"CUDA error: (?P<what>system not yet initialized|no CUDA-capable device|invalid device ordinal|"
        r"initialization error|CUDA-capable device\(s\) is/are busy or unavailable|"
        r"system has unsupported display driver|forward compatibility was attempted|"
        r"the provided PTX was compiled with an unsupported toolchain)",
        "vLLM finds no usable device: {what}",
        FailureClass.NO_DEVICE,
    ),
    both(
        "rror",
        r"(?:CUDA|HIP) error: (?P<what>no kernel image is available|device kernel image is invalid|"
        r"invalid device function)",
        "this vLLM was not built for this device: {what}",
        FailureClass.UNSUPPORTED_MODEL,
    ),
)

FAULTS: tuple[Row, ...] = (
    both(
        "rror",
        r"GPU has fallen off the bus",
        "the GPU has fallen off the bus: the host must be restarted",
        FailureClass.INFRA_FAULT,
        cause="host",
    ),
    both(
        "rror",
        r"(?:CUDA|HIP)(?: driver)? error: (?!out of memory)(?P<what>[\w -]{3,80})",
        "the GPU reported an error while {doing}: {what}",
        FailureClass.INFRA_FAULT,
    ),
    both(
        "by GPU node",
        r"(?P<what>Memory access fault|HW Exception) by GPU node",
        "the GPU reported an error while {doing}: {what}",
        FailureClass.INFRA_FAULT,
    ),
    both(
        "collective operation timeout",
        r"Watchdog caught collective operation timeout",
        "the GPUs stopped answering each other while {doing} (NCCL watchdog)",
        FailureClass.INFRA_FAULT,
        cause=LINKS,
    ),
    both(
        "Insufficient space in",
        r"Insufficient space in (?P<where>/\S+) for .*?: (?P<what>\S+ MiB required, \S+ MiB free)",
        "{where} is too small: {what}; enlarge it (--shm-size or --ipc=host)",
        FailureClass.INFRA_FAULT,
        cause="host",
    ),
    both(
        "creating shared memory segment",
        r"[Ee]rror while creating shared memory segment (?P<where>/\S+)",
        "no room in /dev/shm; enlarge it (--shm-size or --ipc=host)",
        FailureClass.INFRA_FAULT,
        cause="host",
    ),
    both(
        "No space left on device",
        r"No space left on device(?:: '(?P<file>[^']+)')?",
        "no space left on the disk[ for {file}]",
        FailureClass.INFRA_FAULT,
        cause="host",
    ),
    both(
        "NCCL",
        r"NCCL error(?: in)?: .*|ncclSystemError|ncclUnhandledCudaError|ncclRemoteError|ncclInternalError",
        "the GPUs could not talk to each other while {doing} (NCCL)",
        FailureClass.INFRA_FAULT,
        cause=LINKS,
    ),
    both(
        "heartbeat",
        r"No heartbeat received from MQLLMEngine",
        "the engine did not answer while {doing}",
        FailureClass.HANG,
    ),
    both(
        "rror",
        r"RPC call to (?P<method>\w+) timed out",
        "a worker did not answer {method} in time while {doing}",
        FailureClass.HANG,
    ),
    both(
        "ngine iteration timed out",
        r"[Ee]ngine iteration timed out",
        "the engine did not finish a step in time while {doing}",
        FailureClass.HANG,
    ),
    row(
        "emory",
        r"Error in memory profiling\. Initial free memory (?P<before_gib>[\d.]{1,20}) GiB,? "
        r"current free memory (?P<after_gib>[\d.]{1,20}) GiB",
        "free GPU memory went from {before} to {after} while vLLM measured it",
        FailureClass.PROFILING_RACE,
    ),
    row(
        "emory",
        r"Error in memory profiling\.",
        "free GPU memory grew while vLLM measured it: another process let go of some",
        FailureClass.PROFILING_RACE,
    ),
    row(
        "rror",
        r"[Tt]imed out waiting for engine",
        "the engine was not ready in the time that VLLM_ENGINE_READY_TIMEOUT_S allows",
        FailureClass.INFRA_FAULT,
        cause="deadline",
    ),
)

# What follows from a cause. Without one in the log it is all that is known.
FOLLOWING: tuple[Row, ...] = (
    both(
        "orker proc",
        r"Worker proc (?P<who>\S+) died unexpectedly \(exit code: (?P<code>-7)\)",
        "worker {who} was ended by SIGBUS while {doing}; /dev/shm may be too small (--shm-size or --ipc=host)",
        FailureClass.INFRA_FAULT,
        root=False,
        cause="host",
    ),
    both(
        "orker proc",
        r"Worker proc (?P<who>\S+) died unexpectedly(?: \(exit code: (?P<code>-?\d+)\))?",
        "worker {who} died while {doing}[ (exit code {code})]",
        FailureClass.INFRA_FAULT,
        root=False,
    ),
    both(
        "died, exit code",
        r"Worker (?P<who>\S+) pid \d+ died, exit code: (?P<code>-?\d+)",
        "worker {who} died while {doing} (exit code {code})",
        FailureClass.INFRA_FAULT,
        root=False,
    ),
    both(
        "ngine core",
        r"engine core exited unexpectedly|Engine core proc(?:ess)? \S+ died unexpectedly",
        "the engine died while {doing}, without a word why",
        FailureClass.INFRA_FAULT,
        root=False,
        quiet=True,
    ),
    row(
        "Failed core proc(s)",
        r"Failed core proc\(s\): \{.*?: (?P<code>-7)\b",
        "the engine was ended by SIGBUS while {doing}; /dev/shm may be too small (--shm-size or --ipc=host)",
        FailureClass.INFRA_FAULT,
        root=False,
        cause="host",
    ),
    row(
        "Failed core proc(s)",
        r"Failed core proc\(s\): \{.*?: (?P<code>-9)\b",
        "the engine was killed while {doing} (exit code {code}); the kernel does that when the host runs out of memory",
        FailureClass.INFRA_FAULT,
        root=False,
    ),
    row(
        "Failed core proc(s)",
        r"Failed core proc\(s\): \{.*?: (?P<code>-\d+)",
        "the engine was ended by a signal while {doing} (exit code {code})",
        FailureClass.INFRA_FAULT,
        root=False,
    ),
    both(
        "EngineCore encountered",
        r"EngineCore encountered (?:a fatal error|an issue)",
        "the engine died while {doing}",
        FailureClass.INFRA_FAULT,
        root=False,
    ),
    both(
        "ngine is already dead",
        r"ngine is already dead",
        "the engine died while {doing}",
        FailureClass.INFRA_FAULT,
        root=False,
    ),
    both(
        "ackground loop",
        r"[Bb]ackground loop (?:has errored already|is stopped)",
        "the engine died while {doing}",
        FailureClass.INFRA_FAULT,
        root=False,
    ),
    row(
        "rror",
        r"(?P<what>(?:ModuleNotFoundError|ImportError): .+)",
        "vLLM's installation is broken: {what}",
        FailureClass.INFRA_FAULT,
        root=False,
        cause="host",
    ),
    both(
        "fatal signal from worker",
        r"Got fatal signal from worker processes",
        "a worker died while {doing}",
        FailureClass.INFRA_FAULT,
        root=False,
    ),
    both(
        "/health HTTP/1.",
        r'"GET /health HTTP/1\.\d" 50[03]',
        "the server reports itself unhealthy while {doing}: its engine is dead",
        FailureClass.INFRA_FAULT,
        root=False,
        quiet=True,
    ),
    both(
        "us error",
        r"\b[Bb]us error\b",
        "the program was ended by SIGBUS while {doing}; /dev/shm may be too small (--shm-size or --ipc=host)",
        FailureClass.INFRA_FAULT,
        root=False,
        cause="host",
    ),
    both(
        "Engine process (pid",
        r"Engine process \(pid \d+\) died",
        "the engine died while {doing}",
        FailureClass.INFRA_FAULT,
        root=False,
    ),
    both(
        "egmentation fault",
        r"[Ss]egmentation fault",
        "the program crashed while {doing}: segmentation fault",
        FailureClass.INFRA_FAULT,
        root=False,
    ),
    both(
        "Segfault encountered",
        r"Segfault encountered",
        "the program crashed while {doing}: segmentation fault",
        FailureClass.INFRA_FAULT,
        root=False,
    ),
    row(
        "KeyboardInterrupt",
        r"(?:^|\s)KeyboardInterrupt: terminated",
        "somebody sent SIGTERM while vLLM was {doing}",
        FailureClass.EXTERNAL_STOP,
        root=False,
    ),
)
