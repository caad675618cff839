"""The evidence of a hang, as a file beside the server's log: it is gone with the processes that are ended next."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import structlog

from vllmd.act.launch_logs import evidence_path, log_path
from vllmd.model.plain import plain
from vllmd.model.server import Hung
from vllmd.model.snapshot import Gpu
from vllmd.observe.child_log import names_in, read_for_diagnosis
from vllmd.observe.process_states import ProcessReading

_LOG_LINES = 50
_LINE_CHARS = 1000
_PROCESSES = 64  # an API server, an engine and a worker a GPU; a tree of thousands is none of vLLM's
_THREAD_KINDS = 8
_MIB = 2**20

log = structlog.get_logger()


def keep_evidence(
    hung: Hung,
    at_s: float,
    processes: Sequence[ProcessReading],
    gpus: Sequence[Gpu] | None,
    log_dir: Path,
    mask: Callable[[str], str],
) -> None:
    """Write down what a server that hangs is doing, before nothing of it is left; a failure costs the file only.

    The file is readable by its owner alone.
    """
    lines, path = read_for_diagnosis(log_path(log_dir, hung.generation)), evidence_path(log_dir, hung.generation)
    text = evidence_text(hung, at_s, processes, gpus, lines, mask)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode=0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        log.warning("the evidence of a hang cannot be written", path=str(path), reason=str(error))
    else:
        log.warning("the server hangs and is ended", generation=hung.generation, evidence=str(path))


def evidence_text(
    hung: Hung,
    at_s: float,
    processes: Sequence[ProcessReading],
    gpus: Sequence[Gpu] | None,
    log_lines: Sequence[str],
    mask: Callable[[str], str],
) -> str:
    """Return what was seen of a server that hangs: its processes, the GPUs, the end of its log, masked and bounded.

    `log_lines` is all of the log that is at hand: its head says which rank a worker is, whose title is cut before that.
    """
    lines = [
        f"generation {hung.generation}: {hung.reason}",
        f"written {datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}, before it was ended",
        "",
        "processes: pid, title, state (proc(5)), where in the kernel it waits, CPU ticks so far, name in the log",
        *_process_lines(processes, names_in(log_lines)),
        "",
        *_gpu_lines(gpus),
        "",
        f"the last lines of the log, {_LOG_LINES} at most:",
        *[line for line in log_lines if line][-_LOG_LINES:],
    ]
    return "".join(f"{plain(mask(line), _LINE_CHARS)}\n" for line in lines)


def _process_lines(processes: Sequence[ProcessReading], names: Mapping[int, str]) -> Iterator[str]:
    for process in processes[:_PROCESSES]:
        waits, name = process.wchan or "-", names.get(process.pid, "-")
        yield f"  {process.pid} {process.title} {process.state} {waits} {process.busy_ticks} {name}"
        kinds = process.threads.most_common(_THREAD_KINDS)
        told = ", ".join(f"{count} {state} {wchan or '-'}" for (state, wchan), count in kinds)
        yield f"    {process.threads.total()} threads: {told}"
    if len(processes) > _PROCESSES:
        yield f"  {len(processes) - _PROCESSES} more"


def _gpu_lines(gpus: Sequence[Gpu] | None) -> Iterator[str]:
    if gpus is None:
        yield "GPUs: NVML does not answer, or there is none"
        return
    yield "GPUs: index, name, MiB used of total, and by whom"
    for gpu in gpus:
        yield f"  {gpu.index} {gpu.name} {gpu.used_bytes // _MIB} of {gpu.total_bytes // _MIB}"
        for process in gpu.processes[:_PROCESSES]:
            used = "?" if process.used_bytes is None else str(process.used_bytes // _MIB)
            yield f"    pid {process.pid} {used}{' (ours)' if process.ours else ''}"
