"""What vllmd told, in its log, and whether its ledger holds all of it."""

import json
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

from chaos.violation import Violation
from vllmd.act.launch_logs import last_generation
from vllmd.report.status_file import read_status

_BUSY_LIMIT_S = 5.0
_TRACEBACK = "Traceback (most recent call last)"


class Told:
    """Reads vllmd's log as it grows. What was told while nothing could be stored is excused from the ledger."""

    def __init__(self, log: Path, state: Path) -> None:
        self._log = log
        self._state = state
        self._offset = 0
        self._decisions: set[str] = set()  # these three: what the ledger has to hold
        self._launches: set[int] = set()
        self._failures: set[tuple[int, str]] = set()
        self._last = {"decision": 0, "launch": 0}
        self._unstored: set[str] = set()  # decisions that were told while nothing could be stored
        self.excused = 0

    def read(self, *, excused: bool = False) -> None:
        """Take in what was told since the last time; Violation for a number that is not above the last one."""
        with self._log.open("rb") as log:
            log.seek(self._offset)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = whole.decode(errors="replace").splitlines()
        for line in lines:
            if _TRACEBACK in line:
                raise Violation("vllmd printed a traceback:\n" + "\n".join(lines[lines.index(line) :][:40]))
            if line.startswith("{"):
                self._take_in(json.loads(line), excused=excused)

    def _take_in(self, said: dict[str, Any], *, excused: bool) -> None:
        match said:
            case {"event": "decision", "id": str(name)}:
                self._number("decision", int(name.removeprefix("D")), excused=excused)
                known: set[Any] = self._decisions
                entry: Any = name
            case {"event": "launch", "generation": int(generation)}:
                self._number("launch", generation, excused=excused)
                known, entry = self._launches, generation
            case {"event": "failure", "generation": int(generation), "kind": str(kind)}:
                known, entry = self._failures, (generation, kind)
            case _:
                return
        if excused:
            self.excused += 1
            self._unstored.add(str(entry))
        else:
            known.add(entry)

    def _number(self, what: str, number: int, *, excused: bool) -> None:
        """Violation for a number that is not above the last one.

        What was numbered while nothing could be stored is known to that daemon alone: the next may give it again.
        """
        if number <= self._last[what]:
            raise Violation(f"{what} {number} was told after {what} {self._last[what]}")
        if not excused:
            self._last[what] = number

    def status_lost(self) -> None:
        """Take note that status.json was damaged: numbers are lost with it while a lost ledger was not opened again."""
        try:
            with closing(self._ledger()) as file:
                ((verdict,),) = file.execute("PRAGMA quick_check(1)").fetchall()
                kept = verdict == "ok" and file.execute("SELECT count(*) FROM counters").fetchone() != (0,)
        except sqlite3.DatabaseError:
            kept = False
        if not kept:
            self.ledger_lost()

    def ledger_lost(self) -> None:
        """Take note that the ledger was damaged: what it held is gone; numbers go on above those of status.json."""
        self._decisions.clear()
        self._launches.clear()
        self._failures.clear()
        document = read_status(self._state / "status.json").document
        instance: dict[str, Any] = document["instances"][0] if document else {}
        decisions = [int(d["id"].removeprefix("D")) for d in instance.get("decisions") or ()]
        generation = max(instance.get("generation") or 0, last_generation(self._state / "logs"))
        self._last["decision"] = min(self._last["decision"], max(decisions, default=0))
        self._last["launch"] = min(self._last["launch"], generation)

    def compare(self, instance: dict[str, Any]) -> None:
        """Compare with the ledger of a running daemon, and with its status; Violation for what the ledger lacks."""
        with closing(self._ledger()) as file:
            decisions = [d for (d,) in file.execute("SELECT id FROM decisions WHERE id IS NOT NULL ORDER BY seq")]
            launches = [g for (g,) in file.execute("SELECT generation FROM launches ORDER BY seq")]
            failures = set(file.execute("SELECT generation, kind FROM failures"))
        shown = {d["id"] for d in instance["decisions"]} - self._unstored
        lost = [
            *sorted((self._decisions | shown) - set(decisions)),
            *(f"launch {g}" for g in sorted(self._launches - set(launches))),
            *(f"failure {kind} of launch {g}" for g, kind in sorted(self._failures - failures)),
        ]
        if lost:
            raise Violation(f"told, and not in the ledger: {', '.join(lost)}")
        for what, numbers in (("decisions", [int(d[1:]) for d in decisions]), ("launches", launches)):
            if any(a >= b for a, b in pairwise(numbers)):
                raise Violation(f"the numbers of the ledger's {what} do not increase: {numbers[-30:]}")

    def _ledger(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self._state}/ledger.db?mode=ro", timeout=_BUSY_LIMIT_S, uri=True)
