"""What an engine prints when it fails: notices, its own and its workers', then the traceback, in its version's way."""

from collections.abc import Sequence

from vllmd_sim import failures, v0, worker_errors
from vllmd_sim.config import EngineConfig
from vllmd_sim.failures import EngineError, Frame
from vllmd_sim.lines import Console
from vllmd_sim.memory import Pool
from vllmd_sim.scheduler import Request
from vllmd_sim.workers import WorkerLostError, Workers


class LastWords:
    """Speaks for one engine and its workers."""

    def __init__(self, config: EngineConfig, version: str, console: Console, workers: Workers) -> None:
        self._config = config
        self._version = version
        self._console = console
        self._workers = workers

    def of_a_loss(self, loss: WorkerLostError, calling: tuple[Frame, ...]) -> EngineError:
        """Return what the engine makes of a lost worker; `calling` leads to what it waits for, if it does."""
        if self._config.v0:
            return v0.worker_lost(loss.pid, loss.code)
        if not self._workers.ready:
            return worker_errors.lost_unready()
        return worker_errors.lost(loss.rank, loss.code, self._version, calling)

    def of_a_start(self, failure: EngineError) -> None:
        """Print what is printed when the engine does not start."""
        told = self._with_notices(failure)
        if self._config.v0:
            trace = v0.engine_traceback(told, serving=False)
            self._console.error("engine.py:389", f"{told.text.partition(': ')[2]}\n{trace}")
            self._console.raw("Process SpawnProcess-1:\n" + trace)
            return
        trace = failures.engine_traceback(told)
        self._console.error("core.py:1330", "EngineCore failed to start.\n" + trace)
        self._console.raw("Process EngineCore:\n" + trace)

    def of_a_step(self, failure: EngineError, pool: Pool, running: Sequence[Request]) -> None:
        """Print what is printed when a step fails."""
        told = self._with_notices(failure)
        if self._config.v0:
            self._console.error("engine.py:139", f"{_as_repr(told.text)}\n{v0.engine_traceback(told, serving=True)}")
            return
        inputs = f"model='{self._config.model}', max_seq_len={pool.max_model_len}, kv_cache_dtype=auto"
        self._console.error(
            "dump_input.py:72", f"Dumping input data for V1 LLM engine (v{self._version}) with config: {inputs}"
        )
        flying = ", ".join(f"NewRequestData(req_id={request.id})" for request in running)
        self._console.error(
            "dump_input.py:79",
            f"Dumping scheduler output for model execution: SchedulerOutput(scheduled_new_reqs=[{flying}])",
        )
        self._console.error("core.py:1332", "EngineCore encountered a fatal error.\n" + failures.engine_traceback(told))

    def _with_notices(self, failure: EngineError) -> EngineError:
        """Print what comes before the traceback; returns the failure as the engine itself tells it."""
        told = failure if self._config.v0 else worker_errors.passed_on(failure, self._config.tensor_parallel)
        for notice in told.notices:
            console = self._console if notice.rank is None else self._workers.console(notice.rank, self._console)
            console.error(notice.place, notice.text)
        return told


def _as_repr(text: str) -> str:
    """Return `RuntimeError: words` as `RuntimeError('words')`, in which V0 repeats an exception."""
    name, _, words = text.partition(": ")
    return f"{name.rpartition('.')[2]}({words!r})"
