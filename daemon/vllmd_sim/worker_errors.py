"""What an engine says when one of its workers ends, or fails and tells it: the same cause twice, once for each rank.

Templates: vLLM 0.26 (multiproc_executor.py, core.py).
"""

from vllmd_sim.failures import EXECUTOR, STEPPING, EngineError, Frame, Notice, engine_traceback
from vllmd_sim.versions import at_least

RPC = Frame(
    "vllm/v1/executor/multiproc_executor.py", 394, "get_response", "status, result = mq.dequeue(timeout=timeout)"
)
_PLACE = "multiproc_executor.py:949"
_OF_A_WORKER = Frame(
    "vllm/v1/executor/multiproc_executor.py", 921, "worker_busy_loop", "output = func(*args, **kwargs)"
)
_STARTING = Frame("vllm/v1/executor/multiproc_executor.py", 860, "worker_main", "worker = WorkerProc(*args, **kwargs)")
_NOT_READY = Frame("vllm/v1/executor/multiproc_executor.py", 742, "wait_for_ready", "raise e from None")
_TOLD = Frame("vllm/v1/engine/core.py", 1240, "_handle_client_request", 'raise RuntimeError("Executor failed.")')
_OF_THE_ENGINE = ("vllm/v1/engine/", "vllm/v1/core/", "vllm/v1/executor/", "vllm/distributed/")
_SAYS_CODE = (0, 26)


def lost_unready(*notices: Notice) -> EngineError:
    """Say that a worker failed in its own start, or ended in it: which one and why is not told here."""
    text = (
        "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for "
        "root cause."
    )
    return EngineError(text, *EXECUTOR, _NOT_READY, notices=notices)


def lost(rank: int, code: int, version: str, calling: tuple[Frame, ...]) -> EngineError:
    """Say that a worker ended. `calling` leads to the call that its engine waits in, empty for an idle engine."""
    with_code = f" (exit code: {code})" if at_least(version, _SAYS_CODE) else ""
    died = Notice(
        "multiproc_executor.py:315",
        f"Worker proc VllmWorker-{rank} died unexpectedly{with_code}, shutting down executor.",
    )
    if calling:
        return EngineError("RuntimeError: cancelled", *calling, RPC, notices=[died])
    return EngineError("RuntimeError: Executor failed.", STEPPING[0], _TOLD, notices=[died])


def passed_on(failure: EngineError, ranks: int) -> EngineError:
    """Return what the engine makes of a failure that happened in its workers, in all of them alike.

    With one GPU it is the engine's own, and so is what engine and scheduler find by themselves.
    """
    if ranks == 1 or not failure.frames or failure.frames[-1].file.startswith(_OF_THE_ENGINE):
        return failure
    starting = failure.frames[: len(EXECUTOR)] == EXECUTOR
    inner = [frame for frame in failure.frames if not frame.file.startswith(_OF_THE_ENGINE)]
    told = EngineError(failure.text, _STARTING if starting else _OF_A_WORKER, *inner, cause=failure.cause)
    first = "WorkerProc failed to start." if starting else "WorkerProc hit an exception."
    text = f"{first}\n{engine_traceback(told)}"
    notices = [
        Notice(place, words, rank)
        for rank in range(ranks)
        for place, words in (*((notice.place, notice.text) for notice in failure.notices), (_PLACE, text))
    ]
    if starting:
        return lost_unready(*notices)
    what = failure.text.partition(": ")[2]
    words = f"RuntimeError: Worker failed with error '{what}', please check the stack trace above for the root cause"
    outer = [frame for frame in failure.frames if frame.file.startswith(_OF_THE_ENGINE)]
    return EngineError(words, *outer, RPC, notices=notices)
