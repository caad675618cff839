"""A ledger of an instance's past, for every test that asks for its history."""

from dataclasses import replace
from pathlib import Path

from examples import BASELINE, NOW_S, example_change, example_failure
from vllmd.model.decision import Action, Change, Effect, Hold, HoldReason, Outcome, Verification
from vllmd.model.failure import FailureClass
from vllmd.model.server import Launch, ProcessId
from vllmd.model.tried import Good
from vllmd.report.ledger import SqliteLedger, open_ledger

HERE = "H200 143771 MiB; vLLM 0.28.0; Qwen/Qwen3-32B; tp1 pp1 dp1"
SECRET = "planted-secret-value"  # noqa: S105 - what must not come back


def a_launch(generation: int, at_s: float) -> Launch:
    """Return a launch on the hardware of these tests, with its log."""
    log = f"/var/lib/vllmd/qwen/logs/engine-{generation:04}.log"
    return Launch(generation, ("vllm", "serve", "m"), BASELINE, at_s, log, ProcessId(7, 8), fingerprint=HERE)


def recovery(number: int, at_s: float) -> Change:
    """Return the change that answers `example_failure`."""
    change = example_change(
        number,
        {"gpu-memory-utilization": "0.88"},
        action=Action.RECOVER,
        trigger=FailureClass.UTILIZATION_TOO_HIGH,
        reason="125.1 of 140.4 GiB are free: 0.88 fits",
    )
    return replace(change, at_s=at_s)


def write_past(folder: Path) -> None:
    """Write what an instance did in an hour: a failed start, its recovery, a hold, a change that did harm, a rollback.

    Rows of decisions: 1 is D1 (recover), 2 a hold, 3 is D2 (restart), 4 a hold, 5 is D3 (rollback).
    """
    ledger = open_ledger(folder, lambda text: text.replace(SECRET, "***"))
    try:
        _first_start(ledger)
        _tuning(ledger)
    finally:
        ledger.close()


def _first_start(ledger: SqliteLedger) -> None:
    began_s = NOW_S - 3600
    recover = recovery(1, began_s + 31)
    ledger.record(a_launch(1, began_s), began_s)
    ledger.record(replace(example_failure(), generation=1), began_s + 30)
    ledger.record(recover, recover.at_s)
    ledger.record(a_launch(2, began_s + 32), began_s + 32)
    ledger.record(Outcome(recover, 2, served=True, outage_s=None), began_s + 90)
    ledger.record(Good(2, began_s + 90), began_s + 90)
    ledger.record(Verification("D1", began_s + 90, Effect.SERVING, "serving again as generation 2"), began_s + 90)


def _tuning(ledger: SqliteLedger) -> None:
    change = replace(example_change(2), at_s=NOW_S - 1800)
    undo = replace(
        example_change(3, action=Action.ROLLBACK, reason="D2 did harm: 97.1 % to 80.0 % within 0.1 s"),
        at_s=NOW_S - 600,
        flags_before=change.flags_after,
        flags_after=change.flags_before,
    )
    ledger.record(Hold(HoldReason.THIN_EVIDENCE, f"12 requests, {SECRET}"), NOW_S - 2400)
    ledger.record(change, change.at_s)
    ledger.record(a_launch(3, NOW_S - 1790), NOW_S - 1790)
    ledger.record(Outcome(change, 3, served=True, outage_s=85.0, took_s={"config": 21.0, "loading": 6.0}), NOW_S - 1715)
    ledger.record(Hold(HoldReason.VERIFYING, "D2 is being verified", NOW_S - 800), NOW_S - 1700)
    ledger.record(Verification("D2", NOW_S - 601, Effect.WORSE, "80.0 % within 0.1 s", 0.971, 0.8), NOW_S - 601)
    ledger.record(undo, undo.at_s)
    ledger.record(a_launch(4, NOW_S - 590), NOW_S - 590)
