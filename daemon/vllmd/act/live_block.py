"""The daemon's side of the shim: each launch gets the folder and a block of its own, which tells and takes orders.

Where they cannot be had the server is launched without, and that is said.
"""

import math
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import structlog

from vllmd.act.shim_folder import kept_out, with_shim, write_shim
from vllmd.model.flags import BATCHED_TOKENS, DATA_PARALLEL, MAX_NUM_SEQS, Flags
from vllmd.model.live import Gate, Heartbeat, Knob, Live, Traffic
from vllmd_shim.block import VARIABLE, Block, BlockError, Word, fresh_bytes, opened
from vllmd_shim.gate import PASSED, RANKS, REPORTED, WAITS
from vllmd_shim.port import ADDRESS

_MEMORY = Path("/dev/shm")  # noqa: S108 - tmpfs: an engine's step must not wait for a disk; the file's name is random
_PREFIX = "vllmd-"
_NS = 1e-9
_OFF = "engine.shim is off"
_NOT_LOADED = "the server has not loaded vllmd_shim"
# For each flag its name in the report, and the words for: asked, launched, looked at, in force.
_WORDS = {
    BATCHED_TOKENS: ("budget", Word.ASK_BUDGET, Word.LAUNCHED_BUDGET, Word.SEEN_BUDGET, Word.BUDGET),
    MAX_NUM_SEQS: ("seqs", Word.ASK_SEQS, Word.LAUNCHED_SEQS, Word.SEEN_SEQS, Word.SEQS),
}

log = structlog.get_logger()


class LiveBlock:
    """The block of the last launch."""

    def __init__(self) -> None:
        self.path = ""  # empty: none
        self._block: Block | None = None
        self._off = _NOT_LOADED  # why there is no block, or nobody comes to it

    def prepare(
        self, environment: Mapping[str, str], flags: Flags, folder: Path, former: str, *, address: str, wanted: bool
    ) -> Mapping[str, str]:
        """Return the environment of a new launch that binds this address (HOST:PORT).

        `former` is the block of the launch before, which is removed.
        """
        self.remove(self.path)  # of a launch that could not be spawned
        self.remove(former)
        reason = _of_several(flags) or kept_out(environment) if wanted else _OFF
        self._off = reason or _NOT_LOADED
        if reason:
            return environment
        try:
            write_shim(folder)
            self.path = _new_file()
            self._block = opened(self.path)
        except (OSError, BlockError) as error:
            self.remove(self.path)
            self._off = f"vllmd_shim cannot be prepared: {error}"
            log.warning("the server is launched without vllmd_shim", reason=str(error))
            return environment
        return with_shim(environment, folder, {VARIABLE: self.path, ADDRESS: address})

    def take_over(self, path: str) -> None:
        """Go on with the block of a launch by an earlier vllmd."""
        self._off = "it was launched without vllmd_shim"
        if not path:
            return
        try:
            self._block, self.path = opened(path), path
        except (OSError, BlockError) as error:
            self._off = f"its block is lost, so that only a restart of the server ends what was set: {error}"
            log.warning("the server's block cannot be read", reason=str(error))
        self.drain(on=False)  # of a restart that the earlier vllmd did not come to carry out
        self.open_gate()

    def succeed(self, other: "LiveBlock") -> None:
        """Go on with the block of a launch that was prepared with another one, which is left without."""
        self.remove(self.path)
        self._block, self.path = other.give_away()
        self._off = _NOT_LOADED

    def give_away(self) -> tuple[Block | None, str]:
        """Be without a block; return what it was, and its path."""
        given = self._block, self.path
        self._block, self.path = None, ""
        return given

    def remove(self, path: str) -> None:
        """Leave the present block, and remove the file of one whose server has ended."""
        if self._block is not None:
            self._block.close()
        self._block, self.path, self._off = None, "", "its server has ended"
        remove_block(path)

    def read(self) -> Live:
        """Return what engine and API server tell now."""
        return replace(self._read_engine(), traffic=self.traffic())

    def _read_engine(self) -> Live:
        block = self._block
        if block is None:
            return Live.nothing(self._off)
        words, report = block.words, block.read_report()
        if not words[Word.ENGINE_PID]:
            reasons = "; ".join(
                sorted({reason for name, reason in (report or {}).items() if reason and name != REPORTED})
            )
            return Live.nothing(reasons or self._off)
        knobs = {flag: _knob(block, report or {}, flag) for flag in _WORDS}
        beats = bool(words[Word.STEPS]) and not (report or {}).get("heartbeat")
        return Live(knobs, _heartbeat(block) if beats else None)

    def ask(self, flag: str, value: int | None) -> None:
        """Ask for a value from the next step on; None is what was launched."""
        if self._block is not None:
            _, asked, *_ = _WORDS[flag]
            self._block.words[asked] = value or 0

    def drain(self, *, on: bool) -> None:
        """Let every connection end with its next answer, or no longer."""
        if self._block is not None:
            self._block.words[Word.DRAIN] = int(on)

    def close_gate(self, limit_s: float) -> None:
        """Let the workers of a launch that is still to be spawned wait before their device, within a limit."""
        if self._block is not None:
            self._block.words[Word.GATE] = math.ceil(limit_s)

    def open_gate(self) -> None:
        """Let the workers go on."""
        if self._block is not None:
            self._block.words[Word.GATE] = 0

    def gate(self) -> Gate:
        """Return what the workers tell of their gate."""
        block = self._block
        if block is None:
            return Gate(off=self._off)
        told = [block.words[Word.AT_GATE + rank] for rank in range(RANKS)]
        return Gate(told.count(WAITS), told.count(PASSED), (block.read_report() or {}).get(REPORTED, ""))

    def traffic(self) -> Traffic | None:
        """Return what the API server tells of its requests now; None where it does not."""
        words = self._block.words if self._block is not None else None
        if words is None or not words[Word.API_PID]:
            return None
        in_flight = words[Word.IN_FLIGHT]  # before what it writes before it
        return Traffic(in_flight, words[Word.KEPT_NS] * _NS, shared_port=bool(words[Word.SHARED]))


def _of_several(flags: Flags) -> str | None:
    """Return why no block is given to a launch of several engines, which would share it; None for one of one."""
    engines = flags.number(DATA_PARALLEL) or 1
    return f"--{DATA_PARALLEL} is {engines:.0f}: a block is of one engine" if engines > 1 else None


def remove_block(path: str) -> None:
    """Remove a block's file; what is none of ours, or gone, is left alone."""
    if Path(path).parent == _MEMORY and Path(path).name.startswith(_PREFIX):
        with suppress(OSError):
            Path(path).unlink()


def _new_file() -> str:
    """Make a block's file, which only our own user can open. OSError where it cannot be written; nothing is left."""
    descriptor, path = tempfile.mkstemp(prefix=_PREFIX, suffix=".block", dir=_MEMORY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(fresh_bytes())
    except OSError:
        remove_block(path)
        raise
    return path


def _knob(block: Block, report: Mapping[str, str], flag: str) -> Knob:
    name, asked, launched, seen, in_force = _WORDS[flag]
    words, off = block.words, report.get(name, "its report cannot be read")
    if off or not words[launched]:
        return Knob(off or _NOT_LOADED)
    return Knob("", words[launched], words[asked] or None, words[seen] or None, words[in_force])


def _heartbeat(block: Block) -> Heartbeat:
    words = block.words
    return Heartbeat(
        steps=words[Word.STEPS],
        step_s=words[Word.STEP_NS] * _NS,
        longest_s=words[Word.LONGEST_NS] * _NS,
        running=words[Word.RUNNING],
        waiting=words[Word.WAITING],
        tokens=words[Word.TOKENS],
        own_s=words[Word.OWN_NS] * _NS,
        pid=words[Word.ENGINE_PID],
    )
