"""The daemon's side of the control block: made for a launch, read, written, found again, and removed."""

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from scheduler_stand_in import NewScheduler
from vllmd.act.live_block import LiveBlock
from vllmd.model.flags import BATCHED_TOKENS, DATA_PARALLEL, MAX_NUM_SEQS, Flags
from vllmd.model.live import LIVE_FLAGS, Gate
from vllmd_shim.block import BLOCK_BYTES, VARIABLE, Word, opened
from vllmd_shim.gate import PASSED, REPORTED, WAITS
from vllmd_shim.plugin import governed


@pytest.fixture
def block() -> Iterator[LiveBlock]:
    """Make a daemon's side, whose file goes away after the test."""
    made = LiveBlock()
    yield made
    made.remove(made.path)


def prepared(block: LiveBlock, folder: Path, former: str = "", *, wanted: bool = True, **environment: str) -> str:
    """Prepare a launch; return the path that the server is told, empty for none."""
    return block.prepare(environment, Flags(), folder, former, address="", wanted=wanted).get(VARIABLE, "")


def test_a_value_goes_to_the_engine_and_comes_back_confirmed(block: LiveBlock, tmp_path: Path) -> None:
    """Asked, looked at in the next step, in force; then what was launched again."""
    scheduler = governed(NewScheduler, prepared(block, tmp_path))(waiting=[1])
    block.ask(BATCHED_TOKENS, 256)
    asked = block.read().knobs[BATCHED_TOKENS]
    assert (asked.launched, asked.asked, asked.in_force, asked.settled) == (2048, 256, 2048, False)
    scheduler.schedule()
    done = block.read().knobs[BATCHED_TOKENS]
    assert (done.in_force, done.settled, done.off) == (256, True, "")
    block.ask(BATCHED_TOKENS, None)
    scheduler.schedule()
    assert block.read().knobs[BATCHED_TOKENS].in_force == 2048
    assert block.read().knobs[MAX_NUM_SEQS].launched == 64


def test_a_heartbeat_is_read(block: LiveBlock, tmp_path: Path) -> None:
    """None before the first step; then its number, its load and its time."""
    scheduler = governed(NewScheduler, prepared(block, tmp_path))(waiting=[1])
    assert block.read().heartbeat is None
    scheduler.schedule()
    beat = block.read().heartbeat
    assert beat is not None
    assert (beat.steps, beat.running, beat.waiting, beat.tokens) == (1, 1, 0, 1000)
    assert beat.step_s > 0


def test_why_nothing_is_live_is_told(block: LiveBlock, tmp_path: Path) -> None:
    """Switched off, kept out by VLLM_PLUGINS, not loaded, or refused by the engine: four different reasons."""
    reasons = []
    assert prepared(block, tmp_path, wanted=False) == ""
    reasons.append(block.read().knobs[BATCHED_TOKENS].off)
    assert prepared(block, tmp_path, VLLM_PLUGINS="other") == ""
    reasons.append(block.read().knobs[BATCHED_TOKENS].off)
    path = prepared(block, tmp_path)
    reasons.append(block.read().knobs[BATCHED_TOKENS].off)
    governed(NewScheduler, path)(engines=2)
    reasons.append(block.read().knobs[BATCHED_TOKENS].off)
    wanted = ("engine.shim", "VLLM_PLUGINS", "not loaded", "2 engines")
    assert all(word in reason for word, reason in zip(wanted, reasons, strict=True))
    assert set(block.read().knobs) == set(LIVE_FLAGS)


@pytest.mark.parametrize(("size", "told"), [("1", True), ("2", False)])
def test_engines_that_would_share_a_block_get_none(block: LiveBlock, tmp_path: Path, size: str, *, told: bool) -> None:
    """Data parallel engines of a dense model do not know of each other; the launch's flags do."""
    environment = block.prepare({}, Flags(((DATA_PARALLEL, size),)), tmp_path, "", address="", wanted=True)
    assert (VARIABLE in environment) is told
    assert ("a block is of one engine" in block.read().knobs[BATCHED_TOKENS].off) is not told


def test_one_knob_may_be_off_alone(block: LiveBlock, tmp_path: Path) -> None:
    """Without chunked prefill the cap is live and the budget is not."""
    governed(NewScheduler, prepared(block, tmp_path))(chunked=False)
    knobs = block.read().knobs
    assert "chunked prefill" in knobs[BATCHED_TOKENS].off
    assert knobs[MAX_NUM_SEQS].off == ""


def test_the_next_daemon_finds_the_block_again(block: LiveBlock, tmp_path: Path) -> None:
    """By its path; what was asked for is still there."""
    scheduler = governed(NewScheduler, prepared(block, tmp_path))()
    block.ask(MAX_NUM_SEQS, 8)
    later = LiveBlock()
    later.take_over(block.path)
    scheduler.schedule()
    assert later.read().knobs[MAX_NUM_SEQS].in_force == 8


@pytest.mark.parametrize("name", ["", "gone.block"])
def test_a_server_without_a_block_is_taken_over_all_the_same(tmp_path: Path, name: str) -> None:
    """It was launched by an earlier vllmd, or its block is gone: nothing is live, and the reason is told."""
    later = LiveBlock()
    later.take_over(str(tmp_path / name) if name else "")
    off = later.read().knobs[BATCHED_TOKENS].off
    assert ("only a restart of the server ends what was set" in off) == bool(name)
    assert off
    later.ask(BATCHED_TOKENS, 1)  # goes nowhere
    assert later.read().heartbeat is None


def test_a_block_goes_with_its_server(block: LiveBlock, tmp_path: Path) -> None:
    """The file of the launch before is removed at the next; one that is no block of ours is left alone."""
    first = prepared(block, tmp_path)
    later = LiveBlock()
    second = prepared(later, tmp_path, former=first)
    assert not Path(first).exists()
    third = prepared(later, tmp_path)
    assert not Path(second).exists()
    assert Path(third).exists()
    stranger = tmp_path / "vllmd-x.block"
    stranger.write_text("")
    prepared(block, tmp_path, former=str(stranger))
    assert stranger.exists()
    later.remove(later.path)
    assert not Path(third).exists()


def test_where_the_folder_cannot_be_written_the_server_is_launched_without(block: LiveBlock, tmp_path: Path) -> None:
    """A file in the folder's place: no variable, no changed path, and the reason."""
    (tmp_path / "taken").write_text("")
    assert block.prepare({"A": "1"}, Flags(), tmp_path / "taken", "", address="", wanted=True) == {"A": "1"}
    assert "cannot be prepared" in block.read().knobs[BATCHED_TOKENS].off


def blocks_cut_short() -> set[str]:
    """Return the blocks that lack their last byte."""
    found = set()
    for path in Path("/dev/shm").glob("vllmd-*.block"):  # noqa: S108 - where blocks are
        with suppress(FileNotFoundError):
            found |= {path.name} if path.stat().st_size == BLOCK_BYTES - 1 else set()
    return found


def test_a_block_that_cannot_be_written_leaves_no_file(block: LiveBlock, tmp_path: Path) -> None:
    """A full memory, here a file's limit: the server is launched without, and nothing stays behind."""
    prepared(block, tmp_path)
    block.remove(block.path)
    before = blocks_cut_short()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with capture_logs():  # which would be written to a file
        resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK_BYTES - 1, hard))
        try:
            assert prepared(block, tmp_path) == ""
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot be prepared" in block.read().knobs[BATCHED_TOKENS].off
    assert blocks_cut_short() <= before


def test_the_gate_is_closed_opened_and_told_of(block: LiveBlock, tmp_path: Path) -> None:
    """Whole seconds for the workers; what they tell, rank by rank, and why there may be none."""
    server = opened(prepared(block, tmp_path))
    assert (server.words[Word.GATE], block.gate()) == (0, Gate())
    block.close_gate(99.5)
    assert server.words[Word.GATE] == 100
    server.words[Word.AT_GATE], server.words[Word.AT_GATE + 15] = WAITS, PASSED
    assert block.gate() == Gate(waiting=1, passed=1)
    block.open_gate()
    server.write_report({REPORTED: "no such place"})
    assert (server.words[Word.GATE], block.gate().off) == (0, "no such place")
    assert "no such place" not in block.read().knobs[BATCHED_TOKENS].off


def test_a_launch_beside_the_server_hands_its_block_over(block: LiveBlock, tmp_path: Path) -> None:
    """The server's own is removed, the other one is its block from then on; whoever gave it has none."""
    other = LiveBlock()
    own, given = prepared(block, tmp_path), prepared(other, tmp_path)
    block.succeed(other)
    assert (block.path, other.path) == (given, "")
    assert not Path(own).exists()
    block.drain(on=True)
    assert opened(given).words[Word.DRAIN] == 1
    assert other.gate().off


def test_a_gate_of_an_earlier_vllmd_is_opened(block: LiveBlock, tmp_path: Path) -> None:
    """It was killed between the record and the opening: the launch is the server, and must not wait for its limit."""
    path = prepared(block, tmp_path)
    block.close_gate(100)
    LiveBlock().take_over(path)
    assert opened(path).words[Word.GATE] == 0
