"""The documents of the past: `vllmd.history/v1` and `vllmd.explain/v1`, read from the ledger of a state folder.

The daemon makes them for the control socket, and the command line itself where no daemon answers.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from vllmd.model.decision import Hold
from vllmd.report.ask import ANSWER_LIMIT
from vllmd.report.ledger_history import Asked, Before, Page, Told, before, last_hold, one, page, reading
from vllmd.report.reading import Fields, parts
from vllmd.report.status_json import Document, decision_document, failure_document, hold_document
from vllmd.report.wording import rfc3339

HISTORY_SCHEMA = "vllmd.history/v1"
EXPLAIN_SCHEMA = "vllmd.explain/v1"

_ROOM = ANSWER_LIMIT - 65536  # for decisions in one answer; the rest of it is far below 64 KiB
# What of the present an explanation needs; the keys of the status document.
_PRESENT = ("state", "message", "problem", "paused", "mode", "flags", "budget", "last_decision", "holds", "data")


def history(folder: Path, name: str, asked: Asked) -> Document:
    """Return a page of the history; `decisions` is null where the decision to begin before is not known.

    LedgerError and PermissionError as `ledger_history.reading` raises them.
    """
    with reading(folder) as connection:
        found = page(connection, asked)
    return history_document(name, found)


def history_document(name: str, found: Page | None) -> Document:
    """Return the document of a page, cut where an answer would be too long."""
    if found is None:
        return {"schema": HISTORY_SCHEMA, "name": name, "decisions": None}
    whole = [told_document(name, told) for told in found.decisions]
    shown = _fitting(whole)
    more = found.more or len(shown) < len(whole)
    return {
        "schema": HISTORY_SCHEMA,
        "name": name,
        "decisions": shown,
        "before": shown[-1]["id"] if more and shown else None,
        "hidden_holds": found.hidden_holds,
        "unreadable": found.unreadable,
    }


def _fitting(decisions: Sequence[Document]) -> list[Document]:
    """Return the newest decisions that one answer of the control socket can hold."""
    shown, size = [], 0
    for decision in decisions:
        size += len(json.dumps(decision))
        if size > _ROOM:
            break
        shown.append(decision)
    return shown


def told_document(name: str, told: Told) -> Document:
    """Return one decision of the past; a hold has the number of its row as its id."""
    if isinstance(told.decision, Hold):
        return {**hold_document(name, told.decision), "id": told.id, "time": rfc3339(told.at_s)}
    return decision_document(name, told.decision)


def explanation(folder: Path, name: str, decision_id: str | None, status: Fields) -> Document:
    """Return all that is known of one decision, or, without an id, of why nothing is done now.

    `status` is the newest status document of the instance, empty where there is none; `decision` is null for an id
    that is not known. LedgerError and PermissionError as `ledger_history.reading` raises them.
    """
    with reading(folder) as connection:
        found = last_hold(connection) if decision_id is None else one(connection, decision_id)
        known = Before() if found is None else before(connection, found)
    instances = parts(status, "instances")
    present = instances[0] if instances else {}
    return {
        "schema": EXPLAIN_SCHEMA,
        "name": name,
        "time": status.get("time"),
        "live": True,
        "asked": decision_id,
        "decision": None if found is None else told_document(name, found),
        **_known(known),
        "present": {key: present.get(key) for key in _PRESENT},
    }


def _known(known: Before) -> Document:
    """Return what was known when the decision was made."""
    launch, failure, log = known.launch, known.failure, known.launch.log_path if known.launch else None
    at = None if known.failed_at_s is None else rfc3339(known.failed_at_s)
    told = failure_document(failure, log)
    return {
        "failure": None if told is None else {**told, "time": at},
        "launch_before": None if launch is None else {"generation": launch.generation, "log": log},
        "fingerprint": (launch.fingerprint or None) if launch else None,
        "bans": [{"class": b.kind.value, "generation": b.generation, "summary": b.summary} for b in known.bans],
        "banned": known.banned,
    }
