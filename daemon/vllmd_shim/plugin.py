"""The entry point of vLLM's general plugins: governs the scheduler, shares the port, counts requests, builds the gate.

It is never the reason for a server not starting: whatever fails leaves vLLM as it was, and one line in the log.
"""

import functools
import importlib
import os
import sys
from contextlib import suppress
from typing import Any

from vllmd_shim.block import VARIABLE, Block, BlockError, Word, opened
from vllmd_shim.drain import ask_for_middleware
from vllmd_shim.gate import REPORTED, build_gate
from vllmd_shim.governor import Governor, log
from vllmd_shim.port import share_port

_HOOK = "get_scheduler_cls"  # of vllm.config.SchedulerConfig, from vLLM 0.12
_MARK = "vllmd_governed"


def register() -> None:
    """Do all of it. vLLM calls this in each of its processes, maybe more than once, first before it reads options."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    try:
        share_port()
        ask_for_middleware(sys.argv)
    except Exception as error:  # noqa: BLE001 - of whatever vLLM: the server must start without us
        log.warning("vllmd_shim does not share the port: %s: %s", type(error).__name__, error)
    try:
        config = importlib.import_module("vllm.config").SchedulerConfig
        chosen = getattr(config, _HOOK, None)
        if chosen is None:
            _say_off(path, f"this vLLM has no SchedulerConfig.{_HOOK} (0.12 and later have it)")
        elif not hasattr(chosen, _MARK):
            setattr(config, _HOOK, _governing(chosen, path))
    except Exception as error:  # noqa: BLE001 - of whatever vLLM: the server must start without us
        log.warning("vllmd_shim is off, nothing was changed: %s: %s", type(error).__name__, error)
    try:
        if reason := build_gate(path):
            _say_off(path, reason, (REPORTED,))
    except Exception as error:  # noqa: BLE001 - likewise
        log.warning("vllmd_shim has no gate: %s: %s", type(error).__name__, error)


def _governing(chosen: Any, path: str) -> Any:  # noqa: ANN401 - vLLM's own function
    """Return the function that chooses a class, with that class governed."""

    @functools.wraps(chosen)
    def choose(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever this vLLM passes
        base = chosen(*args, **kwargs)
        try:
            return governed(base, path)
        except Exception as error:  # noqa: BLE001 - whatever vLLM chose: it gets that
            _give_up(path, error)
            return base

    setattr(choose, _MARK, True)
    return choose


@functools.lru_cache(maxsize=8)
def governed(base: type[Any], path: str) -> type[Any]:
    """Return a subclass of a scheduler's class whose instances are governed through the block at this path."""

    class Governed(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - whatever this vLLM passes
            super().__init__(*args, **kwargs)
            self.vllmd_governor = governor_of(self, path)

        def schedule(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - it gained an argument in 0.24
            governor = self.vllmd_governor
            if governor is None:
                return super().schedule(*args, **kwargs)
            try:
                governor.before()
            except Exception as error:  # noqa: BLE001 - the step must be made without us
                self.vllmd_governor = None
                governor.give_up(error)
                return super().schedule(*args, **kwargs)
            output = super().schedule(*args, **kwargs)
            try:
                governor.after(output)
            except Exception as error:  # noqa: BLE001 - likewise
                self.vllmd_governor = None
                governor.give_up(error)
            return output

    Governed.__name__, Governed.__qualname__, Governed.__module__ = base.__name__, base.__qualname__, base.__module__
    return Governed


def governor_of(scheduler: Any, path: str) -> "Governor | None":  # noqa: ANN401 - vLLM's own class
    """Return what governs a new scheduler; None where it cannot be governed, which is said."""
    try:
        engines = int(scheduler.vllm_config.parallel_config.data_parallel_size)
        if engines > 1:
            _say_off(path, f"{engines} engines serve: the block is of one")
            return None
        block = opened(path)
        if other := other_engine(block):
            _say_off(path, f"several engines serve: the block is of the one with pid {other}")
            return None
        return Governor(scheduler, block)
    except Exception as error:  # noqa: BLE001 - the engine must start without us
        _give_up(path, error)
        return None


def other_engine(block: Block) -> int:
    """Return the pid of another live process whose engine has this block already; 0 for none.

    Each engine of a dense model's data parallel takes itself for the only one: vLLM sets its data_parallel_size to 1
    (reconfigure_for_independent_dp_rank in config/parallel.py of 0.32).
    """
    pid = block.words[Word.ENGINE_PID]
    if pid in (0, os.getpid()):
        return 0
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return 0
    except PermissionError:
        pass  # it lives, as another user's
    return pid


def _give_up(path: str, error: Exception) -> None:
    """Say in the log and in the block that the scheduler is left alone. It never raises: the engine would end."""
    with suppress(Exception):  # an error's own text may be what fails
        reason = f"{type(error).__name__}: {error}"
        log.warning("vllmd_shim is off, the scheduler is as it was launched: %s", reason)
        _say_off(path, reason)


def _say_off(path: str, reason: str, names: "tuple[str, ...]" = ("budget", "seqs", "heartbeat")) -> None:
    """Write into the block why these are off: all that is live, unless others are named."""
    try:
        block = opened(path)
    except (BlockError, OSError) as error:
        log.warning("vllmd_shim cannot use its block: %s", error)
        return
    block.write_report(dict.fromkeys(names, reason))
    block.close()
