"""The gate: the next server waits here beside the serving one, with everything done that needs no device.

Each worker comes through `WorkerWrapperBase.init_device`, by which vLLM takes its device and all of its memory. While
the block's gate word says so it waits before that, and says in the word of its local rank that it does. A launch whose
gate word is 0 never waits. A worker waits no longer than the gate word says, in seconds: the daemon may have died.
"""

import functools
import importlib
import time
from typing import Any

from vllmd_shim.block import Block, Word, opened
from vllmd_shim.governor import log

REPORTED = "gate"  # the name in the block's report of why there is no gate
RANKS = 16  # local ranks that have a word; one beyond them does not wait, and is never asked to
WAITS, PASSED = 1, 2  # what a rank's word says; 0: it has not come yet

_PLACES = ("vllm.v1.worker.worker_base", "vllm.worker.worker_base")  # from vLLM 0.12; 0.10 and 0.11
_CLASS, _HOOK = "WorkerWrapperBase", "init_device"
_MARK = "vllmd_gated"
_POLL_S = 0.02  # between looks at a word in memory, which sends no event


def build_gate(path: str) -> str:
    """Let this process's workers wait at the gate of the block at this path; return why not, empty where they will."""
    for name in _PLACES:
        try:
            wrapper = getattr(importlib.import_module(name), _CLASS, None)
        except ModuleNotFoundError:
            continue
        hook = getattr(wrapper, _HOOK, None)
        if hook is not None:
            if not hasattr(hook, _MARK):
                setattr(wrapper, _HOOK, _gated(hook, path))
            return ""
    return f"this vLLM has no {_CLASS}.{_HOOK} where it is known to be"


def _gated(hook: Any, path: str) -> Any:  # noqa: ANN401 - vLLM's own function
    """Return the function that takes the device, behind the gate."""

    @functools.wraps(hook)
    def init_device(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever this vLLM passes
        try:
            wait_at_gate(opened(path), local_rank_of(self))
        except Exception as error:  # noqa: BLE001 - the worker must start without us
            log.warning("vllmd_shim has no gate here, the worker goes on: %s: %s", type(error).__name__, error)
        return hook(self, *args, **kwargs)

    setattr(init_device, _MARK, True)
    return init_device


def local_rank_of(wrapper: Any) -> int:  # noqa: ANN401 - vLLM's WorkerWrapperBase
    """Return the rank of a worker on its host: as its worker knows it, or else as its executor numbers it."""
    rank = getattr(getattr(wrapper, "worker", None), "local_rank", None)
    return int(wrapper.rpc_rank if rank is None else rank)


def wait_at_gate(block: Block, *ranks: int) -> None:
    """Wait while the gate is closed, and tell it for these local ranks."""
    places = [Word.AT_GATE + rank for rank in ranks if 0 <= rank < RANKS]
    words, came_s = block.words, time.monotonic()
    while places and (limit_s := words[Word.GATE]) and time.monotonic() - came_s < limit_s:
        for place in places:
            words[place] = WAITS
        time.sleep(_POLL_S)  # a word in memory sends no event; limit_s ends it
    for place in places:
        words[place] = PASSED
