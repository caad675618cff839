"""How connections came over a restart: counted, recorded with the change, told."""

from dataclasses import replace
from typing import Any

import pytest

from examples import example_change, example_status
from fakes import MemoryLedger
from house import house, settings
from vllmd.act.tally import Tally
from vllmd.model.decision import Outcome
from vllmd.model.handover import Handover, Handovers, RestartKind
from vllmd.model.settings import Slo
from vllmd.model.status import DecisionRecord
from vllmd.report.handover_text import handover_text
from vllmd.report.status_json import decision_document

PLANNED = Handover(held=37, most_held=37, longest_wait_s=12.25, cut=0, refused=1)
PLAIN = Handover(plain="net.ipv4.tcp_migrate_req is 0", cut=2)


def test_the_longest_wait_is_that_of_the_first_in_the_queue() -> None:
    """It begins when the queue is no longer empty, and ends with the queue or the restart."""
    tally = Tally()
    for now_s, waiting in ((0.0, 0), (1.0, 2), (4.0, 5), (5.0, 0), (6.0, 1)):
        tally.look(waiting, now_s)
    handover = tally.end(3, 7.5)
    assert (handover.held, handover.most_held, handover.longest_wait_s) == (3, 5, 4.0)
    assert handover.kind is RestartKind.PLANNED


def test_what_was_refused_had_waited_too() -> None:
    """Those that got 503 are among those that were held."""
    tally = Tally(gated=True)
    tally.look(4, 0.0)
    tally.refused, tally.cut = 4, 1
    handover = tally.end(2, 30.0)
    assert (handover.held, handover.refused, handover.cut, handover.longest_wait_s) == (6, 4, 1, 30.0)
    assert handover.kind is RestartKind.GATED


def test_of_a_plain_restart_only_what_was_cut_can_be_known() -> None:
    """Connections that the kernel refused are counted by nobody."""
    tally = Tally("a UNIX socket")
    assert tally.end(0, 9.0) == Handover(plain="a UNIX socket")
    assert tally.end(0, 9.0).kind is RestartKind.PLAIN


def test_sums_leave_out_what_is_not_known() -> None:
    """An unknown count adds nothing, and each kind is counted."""
    both = Handovers().with_one(PLANNED).with_one(PLAIN)
    assert (both.held, both.cut, both.refused, both.last) == (37, 2, 1, PLAIN)
    assert both.kinds == {RestartKind.PLANNED: 1, RestartKind.PLAIN: 1}
    assert replace(PLANNED, gated=True).kind is RestartKind.GATED


def test_the_change_that_serves_carries_how_its_restart_went() -> None:
    """What was told with readiness is recorded with the outcome, and counted once."""
    found = house(settings(Slo()))
    found.loop.begin()
    found.ready()
    found.server.handover = PLANNED
    found.loop.restart()
    found.drained()
    found.ready()
    outcome = found.told[-1].decisions[-1].outcome
    assert outcome is not None
    assert outcome.handover == PLANNED
    assert found.told[-1].handovers == Handovers().with_one(PLANNED)


def test_a_restart_that_no_server_came_of_is_told_with_the_launch_that_failed() -> None:
    """The server is held; those that waited got 503, and the last outcome says so."""
    ledger = MemoryLedger()
    found = house(settings(Slo()), ledger=ledger)
    found.loop.begin()
    found.ready()
    found.server.handover = PLANNED
    found.loop.restart()
    found.drained()
    found.dies(1, "ValueError: Model architectures ['Nonsense'] are not supported for now.")
    assert found.state == "held"
    last = ledger.recent()[-1].outcome
    assert last is not None
    assert (last.served, last.handover) == (False, PLANNED)
    assert found.told[-1].handovers.refused == 1


def told(handover: Handover) -> dict[str, Any]:
    """Return the document of a change whose restart went like this."""
    change = example_change()
    return decision_document(
        "qwen", DecisionRecord(change, Outcome(change, 6, served=True, outage_s=8.0, handover=handover))
    )


@pytest.mark.parametrize(
    ("handover", "said"),
    [
        (
            PLANNED,
            "planned restart: 37 connections waited, 12.3 s at most; no request cut, 1 refused with 503",
        ),
        (PLAIN, "plain restart, connections were refused meanwhile: net.ipv4.tcp_migrate_req is 0; 2 requests cut"),
        (
            Handover(gated=True, held=0, most_held=0, longest_wait_s=0.0, cut=None, refused=0),
            "gated restart: no connection had to wait; requests cut: not known",
        ),
        (
            Handover(held=9, most_held=4, longest_wait_s=95.0, cut=0, refused=0),
            "planned restart: 9 connections waited (4 at once), 95 s at most; no request cut",
        ),
    ],
)
def test_a_restart_is_told_in_one_line(handover: Handover, said: str) -> None:
    """What waited, for how long, what was cut and refused; why it was plain; unknown is said to be."""
    assert handover_text(told(handover)) == said


def test_a_change_without_a_restart_tells_nothing() -> None:
    """A document of an earlier vllmd, or of a recovery, has no such part."""
    assert handover_text({}) == ""
    _, recovered, _ = example_status().decisions
    assert handover_text(decision_document("qwen", recovered)) == ""
