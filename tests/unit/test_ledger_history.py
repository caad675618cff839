"""What the ledger tells of the past: pages, single decisions, and what belongs to each."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples import NOW_S, example_change, example_failure, example_status
from past_ledger import SECRET, a_launch, recovery, write_past
from vllmd.model.decision import Action, Hold, HoldReason, Outcome
from vllmd.model.failure import FailureClass
from vllmd.model.orders import Forget
from vllmd.report.ask import ANSWER_LIMIT
from vllmd.report.history_json import explanation, history
from vllmd.report.ledger import LEDGER_NAME, open_ledger
from vllmd.report.ledger_file import MIGRATIONS, LedgerError
from vllmd.report.ledger_history import Asked, Before, Told, before, one, page, reading
from vllmd.report.status_json import status_document


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give the state folder of an instance with a past."""
    write_past(tmp_path)
    return tmp_path


def ids(folder: Path, **asked: Any) -> list[str]:
    """Return the ids of a page."""
    with reading(folder) as connection:
        found = page(connection, Asked(**asked))
    assert found is not None
    return [told.id for told in found.decisions]


def known(folder: Path, decision_id: str) -> tuple[Told, Before]:
    """Return a decision and what was known when it was made."""
    with reading(folder) as connection:
        told = one(connection, decision_id)
        assert told is not None
        return told, before(connection, told)


def test_changes_come_newest_first_without_holds(folder: Path) -> None:
    """A page holds the changes, newest first, and says how many holds it leaves out."""
    assert ids(folder) == ["D3", "D2", "D1"]
    assert history(folder, "qwen", Asked())["hidden_holds"] == 2


def test_holds_come_when_asked_for(folder: Path) -> None:
    """With holds each decision of the hour comes, a hold under the number of its row."""
    assert ids(folder, holds=True) == ["D3", "H4", "D2", "H2", "D1"]
    assert history(folder, "qwen", Asked(holds=True))["hidden_holds"] == 0


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({"since_s": NOW_S - 1800}, ["D3", "D2"]),
        ({"until_s": NOW_S - 1800}, ["D2", "D1"]),
        ({"trigger": "utilization-too-high"}, ["D1"]),
        ({"trigger": "nothing"}, []),
        ({"trigger": "\udcff\x1b[31m"}, []),
        ({"before": "D3"}, ["D2", "D1"]),
        ({"before": "H4", "holds": True, "limit": 2}, ["D2", "H2"]),
    ],
)
def test_a_page_is_what_was_asked_for(folder: Path, asked: dict[str, Any], wanted: list[str]) -> None:
    """Time, trigger, place and number bound a page."""
    assert ids(folder, **asked) == wanted


def test_pages_follow_each_other(folder: Path) -> None:
    """Each page names the decision that the next one begins before; the last names none."""
    first = history(folder, "qwen", Asked(limit=2))
    assert (first["before"], first["hidden_holds"]) == ("D2", 1)
    second = history(folder, "qwen", Asked(limit=2, before="D2"))
    assert [decision["id"] for decision in second["decisions"]] == ["D1"]
    assert (second["before"], second["hidden_holds"]) == (None, 1)


@pytest.mark.parametrize("unknown", ["D9", "H1", "D", "", "H0", "D1; DROP TABLE decisions", "H99999999999999999999"])
def test_an_unknown_id_is_told(folder: Path, unknown: str) -> None:
    """An id that is none, or that nobody gave, finds nothing and breaks nothing."""
    assert history(folder, "qwen", Asked(before=unknown))["decisions"] is None
    assert explanation(folder, "qwen", unknown, {})["decision"] is None


def test_a_decision_carries_what_became_of_it(folder: Path) -> None:
    """Outcome and verification come with their change, in the words of the status document."""
    decision = history(folder, "qwen", Asked())["decisions"][1]
    assert decision["outage_seconds"] == 85.0
    assert decision["verification"]["effect"] == "worse"
    assert decision["changes"] == [{"flag": "max-num-batched-tokens", "from": "8192", "to": "2048"}]


def test_the_failure_is_that_of_the_launch_before(folder: Path) -> None:
    """A recovery answers the failure of its class of the launch before it; later ones and other classes are not it."""
    ledger = open_ledger(folder, str)
    ledger.record(replace(example_failure(), generation=1, summary="later"), NOW_S)
    ledger.record(replace(example_failure(), generation=1, kind=FailureClass.HANG), NOW_S - 3570)
    ledger.close()
    _, found = known(folder, "D1")
    assert found.failure == replace(example_failure(), generation=1)
    assert found.failed_at_s == NOW_S - 3570
    assert found.launch == a_launch(1, NOW_S - 3600)


def test_a_change_for_a_target_answers_no_failure(folder: Path) -> None:
    """What a slipping target set off has no failure, also where one of an earlier launch is known."""
    assert known(folder, "D2")[1].failure is None


def test_a_rollback_answers_whatever_the_launch_failed_with(folder: Path) -> None:
    """A change that is taken back keeps its trigger; the failure of its launch is the reason all the same."""
    ledger = open_ledger(folder, str)
    failure = replace(example_failure(), generation=3, kind=FailureClass.RUNTIME_OOM)
    ledger.record(failure, NOW_S - 605)
    ledger.close()
    assert known(folder, "D3")[1].failure == failure


def test_bans_are_those_that_held_then(folder: Path) -> None:
    """A failure of flags on this fingerprint forbids until the operator's word; one of another fingerprint does not."""
    ledger = open_ledger(folder, str)
    ledger.record(replace(a_launch(5, NOW_S), fingerprint="elsewhere"), NOW_S)
    ledger.record(replace(example_failure(), generation=5), NOW_S + 1)
    ledger.record(replace(recovery(4, NOW_S + 2)), NOW_S + 2)
    ledger.record(Forget(NOW_S + 3, "anna"), NOW_S + 3)
    ledger.record(a_launch(6, NOW_S + 4), NOW_S + 4)
    ledger.record(replace(example_change(5), at_s=NOW_S + 5), NOW_S + 5)
    ledger.close()
    assert known(folder, "D2")[1].banned == 1
    assert known(folder, "D4")[1].bans[0].generation == 5
    assert known(folder, "D5")[1].banned == 0


def test_secrets_are_not_in_the_ledger_and_so_not_here(folder: Path) -> None:
    """What was masked on its way in stays masked."""
    told = json.dumps([history(folder, "qwen", Asked(holds=True)), explanation(folder, "qwen", "H2", {})])
    assert SECRET not in told
    assert "12 requests, ***" in told


def test_a_page_fits_into_one_answer(tmp_path: Path) -> None:
    """However long the reasons are, a page stays below the limit of an answer, and the next one goes on."""
    ledger = open_ledger(tmp_path, str)
    for number in range(1, 31):
        ledger.record(example_change(number, reason="é" * 20_000), NOW_S)
    ledger.close()
    first = history(tmp_path, "qwen", Asked(limit=200))
    assert len(json.dumps(first)) < ANSWER_LIMIT
    second = history(tmp_path, "qwen", Asked(limit=200, before=first["before"]))
    shown = [decision["id"] for decision in (*first["decisions"], *second["decisions"])]
    assert shown == [f"D{number}" for number in range(30, 30 - len(shown), -1)]
    assert second["decisions"]


def test_entries_of_another_version_are_counted(folder: Path) -> None:
    """A decision that this version cannot read is left out and counted."""
    with closing(sqlite3.connect(folder / LEDGER_NAME)) as connection, connection:
        connection.execute("UPDATE decisions SET payload = '{}' WHERE id = 'D2'")
    found = history(folder, "qwen", Asked())
    assert ([decision["id"] for decision in found["decisions"]], found["unreadable"]) == (["D3", "D1"], 1)


def test_the_present_is_told_with_the_explanation(folder: Path) -> None:
    """An explanation carries what of the present it needs; without a status that is unknown."""
    found = explanation(folder, "qwen", "D1", status_document(example_status()))
    assert found["present"]["budget"]["restarts_hour"] == {"used": 1, "limit": 2}
    assert found["failure"]["log"] == "/var/lib/vllmd/qwen/logs/engine-0001.log"
    assert found["failure"]["time"] == "2026-09-24T16:17:18Z"
    assert explanation(folder, "qwen", "D1", {})["present"]["budget"] is None


def test_without_an_id_the_last_hold_is_told(folder: Path) -> None:
    """Why nothing is done now: the hold that was recorded last."""
    assert explanation(folder, "qwen", None, {})["decision"]["id"] == "H4"


def test_reading_writes_nothing(folder: Path) -> None:
    """The connection refuses to write."""
    with pytest.raises(LedgerError, match="readonly"), reading(folder) as connection:
        connection.execute("DELETE FROM decisions")
    assert ids(folder) == ["D3", "D2", "D1"]


def test_it_is_read_beside_the_daemon(folder: Path) -> None:
    """While the daemon has the ledger open, its last entry is read."""
    ledger = open_ledger(folder, str)
    ledger.record(recovery(4, NOW_S), NOW_S)
    assert ids(folder)[0] == "D4"
    ledger.close()


def test_it_is_read_after_a_killed_daemon(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a killed daemon left in the write-ahead log is read, without the daemon's next start."""
    ledger = open_ledger(folder, str)
    ledger.record(recovery(4, NOW_S), NOW_S)
    left = tmp_path_factory.mktemp("left")
    for file in folder.glob(f"{LEDGER_NAME}*"):
        (left / file.name).write_bytes(file.read_bytes())
    ledger.close()
    assert (left / f"{LEDGER_NAME}-wal").stat().st_size > 0
    assert ids(left)[0] == "D4"


def newer(folder: Path) -> None:
    """Make the ledger one of a later version."""
    with closing(sqlite3.connect(folder / LEDGER_NAME)) as connection:
        connection.execute(f"PRAGMA user_version={len(MIGRATIONS) + 1}")


def older(folder: Path) -> None:
    """Make the ledger one of an earlier version."""
    with closing(sqlite3.connect(folder / LEDGER_NAME)) as connection:
        connection.execute("PRAGMA user_version=1")


def broken(folder: Path) -> None:
    """Overwrite the ledger."""
    (folder / LEDGER_NAME).write_bytes(b"this is no database, but long enough to be taken for one" * 100)


def gone(folder: Path) -> None:
    """Remove the ledger."""
    (folder / LEDGER_NAME).unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (newer, "of a newer vllmd"),
        (older, "of an older vllmd"),
        (broken, "not a database"),
        (gone, "No such file"),
    ],
)
def test_what_cannot_be_read_is_named(folder: Path, damage: Callable[[Path], None], words: str) -> None:
    """A ledger of another schema, a broken one and a missing one are told apart, with their path."""
    damage(folder)
    with pytest.raises(LedgerError, match=words) as caught, reading(folder):
        pass
    assert str(folder / LEDGER_NAME) in str(caught.value)


def test_a_question_that_takes_too_long_is_ended(folder: Path) -> None:
    """The daemon is never kept from its server by a long history."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(LedgerError, match="not within 1 s"), reading(folder) as connection:
        connection.execute(endless).fetchall()


def test_a_hold_has_no_failure(folder: Path) -> None:
    """A hold is told with its reason and its end alone."""
    told, found = known(folder, "H4")
    assert told.decision == Hold(HoldReason.VERIFYING, "D2 is being verified", NOW_S - 800)
    assert found.failure is None


def test_the_launch_before_is_known_by_the_outcome(tmp_path: Path) -> None:
    """Where the clock gave launch and decision the same time, the generation of the outcome tells them apart."""
    ledger = open_ledger(tmp_path, str)
    change = replace(example_change(1, action=Action.REMEMBER, trigger="first"), at_s=NOW_S)
    for entry in (a_launch(1, NOW_S - 9), change, a_launch(2, NOW_S), Outcome(change, 2, served=True, outage_s=None)):
        ledger.record(entry, NOW_S)
    ledger.close()
    assert known(tmp_path, "D1")[1].launch == a_launch(1, NOW_S - 9)
