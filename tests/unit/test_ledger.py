"""The ledger: what it acknowledged is there again, whatever happened in between."""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from examples import BASELINE, HANDOVER, NOW_S, example_change, example_failure, example_status
from vllmd.model.decision import Action, Effect, Hold, HoldReason, Outcome, Verification
from vllmd.model.flags import Flags
from vllmd.model.masking import Masker
from vllmd.model.orders import Forget, Pause, Resume, SetLive
from vllmd.model.server import Launch, Phase, ProcessId
from vllmd.model.start_times import Started
from vllmd.model.status import DecisionRecord
from vllmd.model.tried import Good, Tried
from vllmd.ports import Ledger
from vllmd.report.ledger import SqliteLedger, open_ledger
from vllmd.report.ledger_file import MIGRATIONS, LedgerError
from vllmd.report.status_file import write_status
from vllmd.report.status_json import status_document
from vllmd.report.steady_ledger import SteadyLedger


def unmasked(text: str) -> str:
    """Return a text that holds no secret."""
    return text


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    """Give an empty ledger."""
    opened = open_ledger(tmp_path, unmasked)
    yield opened
    opened.close()


def a_launch(generation: int = 1, flags: Flags = BASELINE) -> Launch:
    """Return a launch."""
    return Launch(generation, ("vllm", "serve", "m"), flags, NOW_S, "/x/engine.log", ProcessId(7, 8))


def test_it_is_the_port(ledger: SqliteLedger) -> None:
    """The SQLite ledger is what the loop asks for."""
    port: Ledger = SteadyLedger(ledger)
    assert port.next_generation() == 1


def test_changes_come_back_whole(ledger: SqliteLedger) -> None:
    """A change that was recorded comes back equal, oldest first, and only since the time asked for."""
    first, second = example_change(1), example_change(2, {"enforce-eager": True, "dtype": None}, action=Action.RECOVER)
    ledger.record(first, NOW_S - 10)
    ledger.record(second, NOW_S)
    assert ledger.changes(0) == [first, second]
    assert ledger.changes(NOW_S - 5) == [second]


def test_holds_are_kept_and_are_no_changes(ledger: SqliteLedger) -> None:
    """A hold is recorded beside the changes and never taken for one."""
    ledger.record(Hold(HoldReason.BUDGET, "used up", NOW_S), NOW_S)
    assert ledger.changes(0) == []


def test_what_moved_flags_and_what_did_harm_come_back(ledger: SqliteLedger) -> None:
    """Of all changes those that were carried out, and of these the restarts that failed since the operator's word."""
    actions = (Action.ADVISE, Action.RESTART, Action.RECOVER, Action.RETRY, Action.RESTART, Action.REMEMBER)
    changes = [example_change(n, action=action, age_s=100 - n) for n, action in enumerate(actions, start=1)]
    for change in changes:
        ledger.record(change, change.at_s)
    for change_id in ("D2", "D3", "D5"):
        ledger.record(Verification(change_id, NOW_S, Effect.FAILED, "an OOM"), NOW_S)
    assert ledger.moves() == [changes[1], changes[2], changes[4]]
    assert ledger.harmed() == [changes[1], changes[4]]
    ledger.record(Forget(changes[3].at_s, "anna"), changes[3].at_s)
    assert ledger.harmed() == [changes[4]]


def test_what_was_called_off_moved_nothing(ledger: SqliteLedger) -> None:
    """Nor did a restart whose launch did not serve: neither is why a flag is where it is."""
    done, called_off, failed = (example_change(number, age_s=10 - number) for number in (1, 2, 3))
    for change in (done, called_off, failed):
        ledger.record(change, change.at_s)
    ledger.record(Verification(called_off.id, NOW_S, Effect.CALLED_OFF, "paused"), NOW_S)
    ledger.record(Outcome(failed, 3, served=False, outage_s=None), NOW_S)
    assert ledger.changes(0) == [done, called_off, failed]
    assert ledger.moves() == [done]


def test_launches_come_back_whole(ledger: SqliteLedger) -> None:
    """A launch comes back equal, with its process."""
    ledger.record(a_launch(3), NOW_S)
    assert ledger.launch_of(3) == a_launch(3)
    assert ledger.launch_of(4) is None


def test_failures_come_back_with_their_time(ledger: SqliteLedger) -> None:
    """A failure comes back equal, beside its time."""
    ledger.record(example_failure(), NOW_S)
    assert ledger.failures_since(NOW_S - 1) == [(NOW_S, example_failure())]


def test_what_was_tried_comes_back_with_how_it_ended(ledger: SqliteLedger) -> None:
    """Launches of one fingerprint, newest first: which were found good, and what each failed with first."""
    good, bad, elsewhere = (replace(a_launch(n), fingerprint=f) for n, f in ((1, "here"), (2, "here"), (3, "there")))
    first, second = (replace(example_failure(), generation=2, summary=text) for text in ("a cause", "what followed"))
    for entry in (good, bad, elsewhere, Good(1, NOW_S + 5), first, second):
        ledger.record(entry, NOW_S)
    assert ledger.tried("here") == [Tried(bad, None, first), Tried(good, NOW_S, None)]


def test_what_is_to_be_forgotten_does_not_come_back(ledger: SqliteLedger) -> None:
    """Launches from before the operator's word are no longer among those tried."""
    ledger.record(replace(a_launch(1), fingerprint="here"), NOW_S)
    ledger.record(Forget(NOW_S + 1, "anna"), NOW_S + 1)
    later = replace(a_launch(2), fingerprint="here", started_at_s=NOW_S + 2)
    ledger.record(later, NOW_S + 2)
    assert ledger.tried("here") == [Tried(later)]


def test_live_values_are_kept_with_their_generation(ledger: SqliteLedger) -> None:
    """Those of one launch, oldest first; none of another one's."""
    first = SetLive(NOW_S, "anna", "max-num-seqs", 8, NOW_S + 60, 3)
    last = SetLive(NOW_S + 1, "its end", "max-num-seqs", None, None, 3)
    for order in (first, SetLive(NOW_S, "anna", "max-num-seqs", 4, None, 2), last):
        ledger.record(order, order.at_s)
    assert ledger.live_orders(3) == [first, last]
    assert ledger.live_orders(1) == []
    assert ledger.pause() is None


def test_what_was_decided_live_outlives_its_generation_until_it_is_forgotten(ledger: SqliteLedger) -> None:
    """A later launch is told of it; after the operator's word only the launch that it was set in."""
    decided = SetLive(NOW_S, "D3", "max-num-batched-tokens", 1024, None, 2, decided=True)
    ledger.record(decided, NOW_S)
    assert ledger.live_orders(5) == [decided]
    ledger.record(Forget(NOW_S + 1, "anna"), NOW_S + 1)
    assert ledger.live_orders(5) == []
    assert ledger.live_orders(2) == [decided]


def test_a_live_change_that_did_harm_is_remembered(ledger: SqliteLedger) -> None:
    """Like a restart that did."""
    change = replace(example_change(1), action=Action.LIVE)
    ledger.record(change, NOW_S)
    assert ledger.harmed() == []
    ledger.record(Verification(change.id, NOW_S, Effect.WORSE, ""), NOW_S)
    assert ledger.harmed() == [change]


def test_a_pause_outlives_the_daemon_until_it_is_ended(ledger: SqliteLedger) -> None:
    """The last order counts."""
    pause = Pause(NOW_S, NOW_S + 60, "anna", "driver upgrade", keeps_recovery=True)
    assert ledger.pause() is None
    ledger.record(pause, NOW_S)
    ledger.record(Forget(NOW_S, "anna"), NOW_S)
    assert ledger.pause() == pause
    ledger.record(Resume(NOW_S + 1, "anna"), NOW_S + 1)
    assert ledger.pause() is None


def test_recent_changes_carry_what_became_of_them(ledger: SqliteLedger) -> None:
    """The last changes come back with their latest outcome and verification, newest last."""
    changes = [example_change(n) for n in range(1, 4)]
    for change in changes:
        ledger.record(change, NOW_S)
    outcome = Outcome(changes[1], 5, served=True, outage_s=2.5)
    verification = Verification("D2", NOW_S, Effect.BETTER, "faster", 0.9, 0.99)
    ledger.record(outcome, NOW_S)
    ledger.record(Verification("D2", NOW_S, Effect.UNKNOWN, "thin"), NOW_S)
    ledger.record(verification, NOW_S)
    assert ledger.recent(2) == (DecisionRecord(changes[1], outcome, verification), DecisionRecord(changes[2]))


def test_starts_are_those_of_their_fingerprint(ledger: SqliteLedger) -> None:
    """Newest first, no more than asked for, and the phases as they were."""
    for generation, device in ((1, "A"), (2, "B"), (3, "A"), (4, "A")):
        ledger.record(replace(a_launch(generation), fingerprint=device), NOW_S)
        ledger.record(Started(generation, {Phase.CONFIG: 20.0 + generation, Phase.LOADING: 5.0}), NOW_S)
    assert [started.generation for started in ledger.starts("A", 2)] == [4, 3]
    assert ledger.starts("B", 5) == [Started(2, {Phase.CONFIG: 22.0, Phase.LOADING: 5.0})]
    assert ledger.starts("C", 5) == []


def test_a_ledger_from_before_starts_were_kept_is_brought_forward(tmp_path: Path) -> None:
    """Its launches stay, and no start of theirs is known."""
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        for script in MIGRATIONS[:2]:
            connection.executescript(script)
        connection.execute("PRAGMA user_version=2")
    connection.close()
    opened = open_ledger(tmp_path, unmasked)
    assert opened.starts("A", 5) == []
    opened.record(Started(1, {Phase.CONFIG: 1.0}), NOW_S)
    opened.close()


def test_a_restart_is_kept_with_the_outcome_of_its_change(tmp_path: Path, ledger: SqliteLedger) -> None:
    """It comes back whole; an outcome of a vllmd that did not record it comes back without."""
    change = example_change(1)
    outcome = Outcome(change, 5, served=True, outage_s=2.5, handover=HANDOVER)
    ledger.record(change, NOW_S)
    ledger.record(outcome, NOW_S)
    assert ledger.recent() == (DecisionRecord(change, outcome),)
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("UPDATE outcomes SET payload = json_remove(payload, '$.handover')")
    assert ledger.recent() == (DecisionRecord(change, replace(outcome, handover=None)),)


def test_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    """Generations and decision ids never repeat, also those that nothing was recorded for."""
    first = open_ledger(tmp_path, unmasked)
    assert [first.next_generation(), first.next_generation()] == [1, 2]
    assert first.next_decision_id() == "D1"
    first.close()
    second = open_ledger(tmp_path, unmasked)
    assert (second.next_generation(), second.next_decision_id()) == (3, "D2")
    second.close()


flag_values = st.text(max_size=8) | st.booleans() | st.lists(st.text(max_size=4), max_size=3).map(tuple)


@given(st.dictionaries(st.text(max_size=8), flag_values, max_size=4))
def test_any_flags_come_back_equal(items: dict[str, str | bool | tuple[str, ...]]) -> None:
    """Whatever an operator's flags hold, they come back equal, in their order."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(MIGRATIONS[0])
    memory = SqliteLedger(connection, unmasked)
    flags = Flags(tuple(items.items()))
    memory.record(a_launch(1, flags), NOW_S)
    launch = memory.launch_of(1)
    assert launch is not None
    assert launch.flags == flags
    memory.close()


def test_secrets_are_not_stored(tmp_path: Path) -> None:
    """A secret in argv, flags or log text is in no byte of the folder."""
    masker = Masker(["s3cr3t-value"])
    masked = open_ledger(tmp_path, masker.mask)
    launch = Launch(1, ("serve", "--api-key=s3cr3t-value"), Flags((("api-key", "s3cr3t-value"),)), NOW_S, "x")
    masked.record(launch, NOW_S)
    masked.record(example_change(reason="key s3cr3t-value was shown"), NOW_S)
    stored = masked.launch_of(1)
    assert stored is not None
    assert stored.argv == ("serve", "--api-key=***")
    masked.close()
    assert not [file for file in tmp_path.iterdir() if b"s3cr3t-value" in file.read_bytes()]


WRITER = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from examples import example_change, NOW_S
from vllmd.report.ledger import open_ledger
ledger = open_ledger(Path(sys.argv[1]), str)
for number in range(1, 21):
    ledger.record(example_change(number), NOW_S)
    print(ledger.next_generation(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    """After SIGKILL right behind the last acknowledgement everything is there, and the numbers go on."""
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-c", WRITER, str(tmp_path), str(tests)]
    writer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert writer.returncode == -signal.SIGKILL, writer.stderr
    assert writer.stdout.split() == [str(n) for n in range(1, 21)]
    reader = open_ledger(tmp_path, unmasked)
    assert [change.id for change in reader.changes(0)] == [f"D{n}" for n in range(1, 21)]
    assert reader.next_generation() == 21
    reader.close()


@pytest.mark.parametrize("content", [b"not a database at all", b"SQLite format 3\x00" + b"\xff" * 4096])
def test_an_unreadable_file_is_set_aside_and_named(tmp_path: Path, content: bytes) -> None:
    """A file that SQLite cannot read is kept under another name, said in a warning, and a new one begins."""
    (tmp_path / "ledger.db").write_bytes(content)
    with capture_logs() as logs:
        fresh = open_ledger(tmp_path, unmasked)
    (aside,) = tmp_path.glob("ledger.db.unreadable-*")
    assert aside.read_bytes() == content
    assert [(line["log_level"], line["path"]) for line in logs] == [("warning", str(aside))]
    assert fresh.changes(0) == []
    fresh.close()


def test_a_damaged_page_is_found_at_the_start(tmp_path: Path) -> None:
    """A database whose pages were overwritten is set aside before anything is decided on it."""
    ledger = open_ledger(tmp_path, unmasked)
    for number in range(1, 200):
        ledger.record(example_change(number), NOW_S)
    ledger.close()
    path = tmp_path / "ledger.db"
    content = bytearray(path.read_bytes())
    content[4096 * 8 : 4096 * 16] = b"\xff" * (4096 * 8)
    path.write_bytes(content)
    with capture_logs():
        fresh = open_ledger(tmp_path, unmasked)
    assert list(tmp_path.glob("ledger.db.unreadable-*"))
    fresh.close()


@pytest.mark.parametrize("left", [b"lost", b""])
def test_numbers_do_not_repeat_after_a_lost_ledger(tmp_path: Path, left: bytes) -> None:
    """When the ledger is lost, or a crash left nothing in it, numbering goes on from what status.json told last."""
    write_status(tmp_path / "status.json", status_document(example_status()))
    (tmp_path / "ledger.db").write_bytes(left)
    with capture_logs():
        fresh = open_ledger(tmp_path, unmasked)
    assert (fresh.next_generation(), fresh.next_decision_id()) == (8, "D22")
    fresh.close()


def test_a_newer_ledger_is_left_alone(tmp_path: Path) -> None:
    """A file of a later vllmd is neither changed nor set aside: the error says what to do."""
    open_ledger(tmp_path, unmasked).close()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute(f"PRAGMA user_version={len(MIGRATIONS) + 1}")
    connection.close()
    with pytest.raises(LedgerError, match="written by a newer vllmd"):
        open_ledger(tmp_path, unmasked)
    assert not list(tmp_path.glob("*.unreadable-*"))


def test_an_entry_that_cannot_be_read_is_skipped(tmp_path: Path, ledger: SqliteLedger) -> None:
    """One entry of an unknown form costs that entry only, with a warning."""
    ledger.record(example_change(1), NOW_S)
    with sqlite3.connect(tmp_path / "ledger.db") as other:
        other.execute("INSERT INTO decisions (at_s, id, action, payload) VALUES (?, 'D2', 'new', '{}')", (NOW_S,))
    other.close()
    with capture_logs() as logs:
        assert [change.id for change in ledger.changes(0)] == ["D1"]
    assert [line["log_level"] for line in logs] == ["warning"]


def test_a_write_that_fails_is_an_error_of_ours(tmp_path: Path, ledger: SqliteLedger) -> None:
    """What SQLite refuses is told as LedgerError: the loop catches that, and goes on serving."""
    with sqlite3.connect(tmp_path / "ledger.db") as other:
        other.execute("DROP TABLE launches")
    other.close()
    with pytest.raises(LedgerError, match="the ledger failed"):
        ledger.record(a_launch(), NOW_S)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A state folder that cannot be had says which one."""
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match=r"cannot open .*ledger\.db"):
        open_ledger(tmp_path / "file" / "x", unmasked)


def test_only_the_group_may_read_it(ledger: SqliteLedger, tmp_path: Path) -> None:
    """The ledger is readable for its owner and group only."""
    ledger.next_generation()
    assert {file.stat().st_mode & 0o007 for file in tmp_path.iterdir()} == {0}
