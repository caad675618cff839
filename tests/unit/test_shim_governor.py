"""A governed scheduler: it obeys the block within its limits, tells what it does, and is left alone on any error."""

import os
from pathlib import Path
from typing import Any

import pytest

from scheduler_stand_in import BareScheduler, NewScheduler, OldScheduler, Output
from vllmd_shim.block import Block, Word, fresh_bytes, opened
from vllmd_shim.plugin import governed

NOBODY = 2**22 + 1  # above every pid that Linux gives (proc(5), pid_max)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Make a block's file."""
    (tmp_path / "block").write_bytes(fresh_bytes())
    return str(tmp_path / "block")


@pytest.fixture
def block(path: str) -> Block:
    """Map it as the daemon does."""
    return opened(path)


def made(kind: Any, path: str, **settings: object) -> Any:
    """Return a governed scheduler of a kind."""
    return governed(kind, path)(**settings)


@pytest.mark.parametrize("kind", [OldScheduler, NewScheduler])
def test_what_is_asked_for_holds_from_the_next_step_and_back(path: str, block: Block, kind: type[Any]) -> None:
    """Budget and cap go down and return to what was launched; each step tells what it found and what is in force."""
    scheduler = made(kind, path, waiting=[1])
    scheduler.schedule()
    assert [block.words[w] for w in (Word.BUDGET, Word.SEQS, Word.SEEN_BUDGET)] == [2048, 64, 0]
    block.words[Word.ASK_BUDGET] = 256
    block.words[Word.ASK_SEQS] = 4
    scheduler.schedule()
    assert scheduler.max_num_scheduled_tokens == 256
    assert [block.words[w] for w in (Word.BUDGET, Word.SEQS)] == [256, 4]
    assert [block.words[w] for w in (Word.SEEN_BUDGET, Word.SEEN_SEQS)] == [256, 4]
    block.words[Word.ASK_BUDGET] = 0
    block.words[Word.ASK_SEQS] = 0
    scheduler.schedule()
    assert [block.words[w] for w in (Word.BUDGET, Word.SEQS)] == [2048, 64]
    assert [scheduler.max_num_scheduled_tokens, scheduler.max_num_running_reqs] == [2048, 64]


@pytest.mark.parametrize("counted", ["speculative", "num_spec_tokens"])
@pytest.mark.parametrize("kind", [OldScheduler, NewScheduler])
def test_vllms_assertions_hold_whatever_is_asked_for(path: str, block: Block, kind: type[Any], counted: str) -> None:
    """With 20 running and 3 speculative tokens, a budget and a cap of 1 schedule what runs and admit nobody."""
    scheduler = made(kind, path, running=list(range(20)), waiting=[1, 2, 3], **{counted: 3})
    block.words[Word.ASK_BUDGET] = 1
    block.words[Word.ASK_SEQS] = 1
    assert scheduler.schedule() == Output(80)
    assert len(scheduler.waiting) == 3
    del scheduler.running[5:]
    scheduler.schedule()
    assert block.words[Word.BUDGET] == 20


@pytest.mark.parametrize("kind", [OldScheduler, NewScheduler])
def test_the_first_request_is_never_starved(path: str, block: Block, kind: type[Any]) -> None:
    """A budget of 1 leaves room for one padded prefill of one token where nothing runs."""
    scheduler = made(kind, path, waiting=[1], speculative=3, cached=True)
    block.words[Word.ASK_BUDGET] = 1
    assert scheduler.schedule() == Output(4)
    assert scheduler.waiting == []


def test_a_step_is_told(path: str, block: Block) -> None:
    """Its number, its time, what runs and waits, its tokens, and what the shim itself took."""
    scheduler = made(NewScheduler, path, running=[1, 2], waiting=[3], max_num_active_reqs=3)
    assert block.words[Word.ENGINE_PID] > 0
    assert block.read_report() == {"budget": "", "seqs": "", "heartbeat": ""}
    scheduler.schedule()
    scheduler.schedule(throttle_prefills=True)
    assert scheduler.arguments == [False, True]
    assert [block.words[w] for w in (Word.STEPS, Word.RUNNING, Word.WAITING)] == [2, 3, 0]
    assert [block.words[w] for w in (Word.TOKENS, Word.TOKENS_TOTAL)] == [3, 1005]
    assert block.words[Word.LONGEST_NS] > 0
    assert 0 < block.words[Word.OWN_NS] < block.words[Word.STEP_NS]


def test_time_without_a_request_is_no_long_step(path: str, block: Block) -> None:
    """An idle engine makes no step: the time between requests is not the length of one."""
    scheduler = made(NewScheduler, path)
    scheduler.schedule()
    scheduler.schedule()
    assert block.words[Word.LONGEST_NS] == 0


@pytest.mark.parametrize(
    ("settings", "budget", "seqs"),
    [
        ({"chunked": False}, "chunked prefill", ""),
        ({"whole_inputs": True}, "multimodal", ""),
        ({"hybrid": True}, "Mamba", "Mamba"),
        ({"has_mamba_layers": True}, "Mamba", "Mamba"),
        ({"attention_free": True}, "Mamba", "Mamba"),
        ({"diffusion": True}, "diffusion", "diffusion"),
    ],
)
def test_what_could_starve_a_request_is_off(
    path: str, block: Block, settings: dict[str, Any], budget: str, seqs: str
) -> None:
    """The reason is told, what is asked for is not done, the heartbeat stays."""
    scheduler = made(NewScheduler, path, **settings)
    report = block.read_report()
    assert report is not None
    assert budget in report["budget"]
    assert seqs in report["seqs"]
    assert report["heartbeat"] == ""
    block.words[Word.ASK_BUDGET] = 16
    scheduler.schedule()
    assert scheduler.max_num_scheduled_tokens == 2048
    assert [block.words[w] for w in (Word.LAUNCHED_BUDGET, Word.BUDGET, Word.STEPS)] == [0, 0, 1]


@pytest.mark.parametrize(("kind", "settings"), [(BareScheduler, {}), (NewScheduler, {"engines": 2})])
def test_an_unknown_scheduler_is_left_alone(path: str, block: Block, kind: type[Any], settings: dict[str, Any]) -> None:
    """One without the names, and one of several engines, work as vLLM made them; the block says why."""
    scheduler = made(kind, path, **settings)
    assert scheduler.schedule().total_num_scheduled_tokens == 0
    report = block.read_report()
    assert report is not None
    assert report["budget"]
    assert block.words[Word.STEPS] == 0


@pytest.mark.parametrize(
    ("pid", "left_alone"),
    [(os.getppid(), True), (os.getpid(), False), (NOBODY, False)],
    ids=["another", "our own", "ended"],
)
def test_a_block_that_another_engine_has_is_left_to_it(path: str, block: Block, pid: int, *, left_alone: bool) -> None:
    """Of two that live neither is live; one of an engine that has ended, or our own former one, is taken."""
    block.words[Word.ENGINE_PID] = pid
    scheduler = made(NewScheduler, path, waiting=[1])
    assert scheduler.schedule() == Output(1000)
    assert (block.words[Word.STEPS] == 0) is left_alone
    report = block.read_report()
    assert report is not None
    assert ("several engines" in report["budget"]) is left_alone


def test_without_its_block_a_scheduler_works(tmp_path: Path) -> None:
    """A block that is gone is told in the log alone."""
    scheduler = made(NewScheduler, str(tmp_path / "gone"), waiting=[1])
    assert scheduler.schedule() == Output(1000)


class Changed(NewScheduler):
    """One of a version in which the step is made otherwise, after the governing has begun."""

    output: Output | None = Output(7)

    def schedule(self, throttle_prefills: bool = False) -> Any:  # noqa: ARG002, FBT001, FBT002 - vLLM's signature
        """Return what the test says."""
        return self.output


@pytest.mark.parametrize("broken", ["running", "output"])
def test_an_error_in_a_step_ends_the_governing_and_not_the_step(
    path: str, block: Block, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The step is made, the launched values are back, the reason is told once."""
    scheduler = made(Changed, path)
    block.words[Word.ASK_BUDGET] = 256
    assert scheduler.schedule() == Output(7)
    assert scheduler.max_num_scheduled_tokens == 256
    setattr(scheduler, broken, None)
    assert scheduler.schedule() is scheduler.output
    assert scheduler.schedule() is scheduler.output
    assert scheduler.max_num_scheduled_tokens == 2048
    report = block.read_report()
    assert report is not None
    assert set(report.values()) == {report["budget"]}
    assert "given up" in report["budget"]
    assert len(caplog.records) == 1


class Sealed(NewScheduler):
    """One some of whose numbers can only be read."""

    sealed: tuple[str, ...] = ()
    sealed_when_made: tuple[str, ...] = ()

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse what is sealed."""
        if name in self.sealed:
            raise AttributeError(name)
        super().__setattr__(name, value)

    def __post_init__(self) -> None:
        """Make the configuration; from here on it is sealed."""
        super().__post_init__()
        self.sealed = self.sealed_when_made


class SealedWhenMade(Sealed):
    """One whose budget can only be read from the start."""

    sealed_when_made = ("max_num_scheduled_tokens",)


def test_a_number_that_can_only_be_read_is_off_from_the_start(path: str, block: Block) -> None:
    """Its knob alone: the other one and the heartbeat work."""
    scheduler = made(SealedWhenMade, path)
    report = block.read_report()
    assert report is not None
    assert "max_num_scheduled_tokens of this vLLM's scheduler cannot be set" in report["budget"]
    assert (report["seqs"], report["heartbeat"]) == ("", "")
    block.words[Word.ASK_BUDGET], block.words[Word.ASK_SEQS] = 16, 4
    scheduler.schedule()
    assert [block.words[w] for w in (Word.BUDGET, Word.SEQS, Word.STEPS)] == [0, 4, 1]


def test_a_number_that_cannot_be_set_back_ends_no_step(path: str, block: Block) -> None:
    """The step is made, what can be set back is, and the reason is told."""
    scheduler = made(Sealed, path)
    block.words[Word.ASK_BUDGET], block.words[Word.ASK_SEQS] = 16, 4
    scheduler.schedule()
    scheduler.sealed = ("max_num_scheduled_tokens",)
    block.words[Word.ASK_BUDGET] = 32
    assert scheduler.schedule() == Output(0)
    assert [scheduler.max_num_scheduled_tokens, scheduler.max_num_active_reqs] == [16, 64]
    report = block.read_report()
    assert report is not None
    assert "given up: AttributeError" in report["seqs"]


class UnspeakableError(Exception):
    """One whose text cannot be had."""

    def __str__(self) -> str:
        """Fail."""
        raise ValueError


def test_an_error_without_words_ends_no_step(path: str) -> None:
    """Not even the report of a failure may be a failure of the engine."""
    scheduler = made(NewScheduler, path)
    scheduler.vllmd_governor.give_up(UnspeakableError())
    assert scheduler.schedule() == Output(0)


def test_a_class_is_governed_once(path: str) -> None:
    """Asked again, vLLM gets the same class, under the name of its own."""
    assert governed(NewScheduler, path) is governed(NewScheduler, path)
    assert issubclass(governed(NewScheduler, path), NewScheduler)
    assert governed(NewScheduler, path).__qualname__ == "NewScheduler"
