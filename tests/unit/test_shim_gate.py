"""The shim's gate: who waits there, for how long, what is told, and that nothing of vLLM breaks by it."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vllmd_shim.block import Block, Word, fresh_bytes, opened
from vllmd_shim.gate import PASSED, RANKS, WAITS, build_gate, local_rank_of, wait_at_gate

LIMIT_S = 10.0


class Worker:
    """A worker as vLLM makes it: it knows its rank on the host."""

    def __init__(self, local_rank: int | None) -> None:
        self.local_rank = local_rank


def wrapper_class() -> type[Any]:
    """Make a class like vLLM's WorkerWrapperBase."""

    class WorkerWrapperBase:
        def __init__(self, rpc_rank: int = 0, worker: Worker | None = None) -> None:
            self.rpc_rank = rpc_rank
            self.worker = worker
            self.devices: list[str] = []

        def init_device(self, name: str = "cuda") -> str:
            self.devices.append(name)
            return f"{name} taken"

    return WorkerWrapperBase


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Make a block's file."""
    file = tmp_path / "block"
    file.write_bytes(fresh_bytes())
    return str(file)


@pytest.fixture
def place() -> Iterator[ModuleType]:
    """Give the module in which vLLM from 0.12 has the class."""
    names = ("vllm", "vllm.v1", "vllm.v1.worker", "vllm.v1.worker.worker_base")
    modules = [ModuleType(name) for name in names]
    sys.modules.update(zip(names, modules, strict=True))
    yield modules[-1]
    for name in names:
        del sys.modules[name]


def ranks_of(block: Block) -> list[int]:
    """Return the words of the first two ranks."""
    return [block.words[Word.AT_GATE], block.words[Word.AT_GATE + 1]]


def until(block: Block, words: list[int]) -> None:
    """Wait until the first two ranks say this."""
    deadline = time.monotonic() + LIMIT_S
    while ranks_of(block) != words:
        assert time.monotonic() < deadline, ranks_of(block)


def test_a_launch_without_a_candidate_never_waits(path: str) -> None:
    """Its gate word is 0: it passes at once, and says so."""
    block = opened(path)
    began_s = time.monotonic()
    wait_at_gate(block, 1)
    assert time.monotonic() - began_s < 1.0
    assert ranks_of(block) == [0, PASSED]


def test_each_worker_waits_until_the_gate_opens(path: str, place: ModuleType) -> None:
    """In `init_device`, before the device is taken; what vLLM passes and gets is its own."""
    place.WorkerWrapperBase = made = wrapper_class()  # type: ignore[attr-defined]
    assert (build_gate(path), build_gate(path)) == ("", "")
    block, workers = opened(path), [made(0, Worker(1)), made(0, None)]
    block.words[Word.GATE] = 60
    threads = [threading.Thread(target=one.init_device, args=("cpu",)) for one in workers]
    for thread in threads:
        thread.start()
    until(block, [WAITS, WAITS])
    assert [one.devices for one in workers] == [[], []]
    block.words[Word.GATE] = 0
    for thread in threads:
        thread.join(LIMIT_S)
    assert ranks_of(block) == [PASSED, PASSED]
    assert [one.devices for one in workers] == [["cpu"], ["cpu"]]
    assert workers[0].init_device() == "cuda taken"


def test_nobody_waits_longer_than_the_gate_says(path: str) -> None:
    """The daemon may have died: past the limit the worker goes on."""
    block = opened(path)
    block.words[Word.GATE] = 1
    began_s = time.monotonic()
    wait_at_gate(block, 0)
    assert 0.9 < time.monotonic() - began_s < LIMIT_S
    assert ranks_of(block) == [PASSED, 0]


def test_a_rank_without_a_word_goes_on(path: str) -> None:
    """Nobody could tell that it waits."""
    block = opened(path)
    block.words[Word.GATE] = 60
    wait_at_gate(block, RANKS)
    wait_at_gate(block, -1)
    assert bytes(block.words[Word.AT_GATE :]).strip(b"\0") == b""


def test_an_older_vllm_has_it_elsewhere(path: str, place: ModuleType) -> None:
    """0.10 and 0.11: the module of later ones is there, without the class."""
    older, base = ModuleType("vllm.worker"), ModuleType("vllm.worker.worker_base")
    base.WorkerWrapperBase = made = wrapper_class()  # type: ignore[attr-defined]
    sys.modules.update({"vllm.worker": older, "vllm.worker.worker_base": base})
    try:
        assert build_gate(path) == ""
    finally:
        del sys.modules["vllm.worker"], sys.modules["vllm.worker.worker_base"]
    made(1).init_device()
    assert ranks_of(opened(path)) == [0, PASSED]
    assert not hasattr(place, "WorkerWrapperBase")


def test_a_vllm_without_it_has_no_gate(path: str, place: ModuleType) -> None:
    """The reason says what is missing."""
    assert "no WorkerWrapperBase.init_device" in build_gate(path)
    place.WorkerWrapperBase = object  # type: ignore[attr-defined]
    assert "no WorkerWrapperBase.init_device" in build_gate(path)


def test_a_worker_whose_block_is_gone_starts(path: str, place: ModuleType) -> None:
    """An error at the gate is one line in the log."""
    place.WorkerWrapperBase = made = wrapper_class()  # type: ignore[attr-defined]
    build_gate(path)
    Path(path).unlink()
    assert made().init_device() == "cuda taken"


def test_a_rank_is_the_workers_own() -> None:
    """As it knows itself, or else as its executor numbers it."""
    made = wrapper_class()
    assert [local_rank_of(made(3, worker)) for worker in (Worker(1), Worker(None), None)] == [1, 3, 3]
