"""The daemon is killed two hundred times: what it had acknowledged is there, and the next one goes on from it."""

import os
import random
import shutil
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from e2e.vllmd_process import alive, free_port, running
from integration.daemon_lives import Due, Life, Lives, never
from simulated import host, serve
from vllmd.act.launch_logs import last_generation
from vllmd.errors import ControlError
from vllmd.report.ledger import LEDGER_NAME, open_ledger

# The same moments every time; others with VLLMD_TEST_SEED=7.
SEED = int(os.environ.get("VLLMD_TEST_SEED", "1"))
SERVE_LIMIT_S = 60.0


class Moment(StrEnum):
    """When a daemon is killed."""

    WRITE = "during a write"  # an order was sent, and the write-ahead log has just changed
    SPAWN = "during a spawn"  # the log of a new server has just been made
    ANY = "at any time"


MOMENTS = (*[Moment.WRITE] * 100, *[Moment.SPAWN] * 30, *[Moment.ANY] * 70)
ANY_S = (0.0, 0.7)  # from before it has read its settings until its server serves
SPAWN_S = (0.0, 0.004)  # a fork, an exec, and the note of who was born
BEFORE_A_WRITE = 2  # orders at most that are answered before the one that is cut off
AT_ANY_TIME = 3
KINDS = {"restart": "D", "pause": "Pause", "resume": "Resume", "forget": "Forget"}  # how their entries begin


@dataclass(frozen=True, slots=True)
class Stored:
    """What a ledger holds: changes by id, orders by kind and reason, launches by number, failures by class."""

    decisions: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()
    generations: tuple[int, ...] = (0,)
    failures: tuple[str, ...] = ()
    paused: bool = False


class Driver:
    """Lets one daemon after the other live, asks it, kills it, and compares the ledger with what was acknowledged."""

    def __init__(self, state: Path, chance: random.Random) -> None:
        self._state = state
        self._chance = chance
        self._numbers = iter(range(1, 10_000))
        self._restarted = False  # in this life
        self._answered: list[str] = []  # in this life, as `Stored` names them
        self._unanswered: str | None = None  # the command that the kill cut off: done or not, both are right
        self.known = Stored()
        self.cut_off: Counter[tuple[Moment, bool]] = Counter()  # unanswered, and whether the ledger has it

    def live(self, life: Life, moment: Moment) -> None:
        """Let a daemon live to its moment."""
        self._restarted, self._answered, self._unanswered = False, [], None
        due = self._due(moment)
        if moment is Moment.SPAWN:
            life.kill_when(due)
            return
        status = life.until_it_answers(due)
        if status is not None:
            assert tuple(d["id"] for d in status["decisions"]) == self.known.decisions[-20:]
            assert status["generation"] >= self.known.generations[-1]
            for _ in range(self._chance.randint(0, BEFORE_A_WRITE if moment is Moment.WRITE else AT_ANY_TIME)):
                if not life.killed:
                    self._order(life, due, self._chance.choice(tuple(KINDS)))
        if moment is Moment.WRITE:
            self._cut_off_a_write(life)
        elif not life.killed:
            life.kill_when(due)

    def check(self, moment: Moment, copy: Path) -> None:
        """Assert that all that was acknowledged is stored, once and in order, and nothing that was not asked for."""
        stored, known = stored_in(self._state, copy), self.known
        decisions = [entry for entry in self._answered if entry.startswith("D")]
        orders = [entry for entry in self._answered if not entry.startswith("D")]
        extra = [
            *beyond(stored.decisions, (*known.decisions, *decisions)),
            *beyond(stored.orders, (*known.orders, *orders)),
        ]
        wanted = KINDS.get(self._unanswered or "", "none")
        assert len(extra) <= 1
        assert all(entry.startswith(wanted) for entry in extra)
        assert increasing([int(i.removeprefix("D")) for i in stored.decisions])
        assert increasing(stored.generations)
        assert stored.failures == ()
        if self._unanswered is not None:
            self.cut_off[moment, bool(extra)] += 1
        self.known = stored

    def _due(self, moment: Moment) -> Due:
        match moment:
            case Moment.ANY:
                at_s = time.monotonic() + self._chance.uniform(*ANY_S)
                return lambda: time.monotonic() >= at_s
            case Moment.SPAWN:
                return self._spawning(self._chance.uniform(*SPAWN_S))
            case Moment.WRITE:
                return never

    def _spawning(self, after_s: float) -> Due:
        """Return what is due a moment after the log of a new server appears."""
        logs = self._state / "logs"
        before, at_s = last_generation(logs), float("inf")

        def due() -> bool:
            nonlocal at_s
            if at_s == float("inf") and last_generation(logs) > before:
                at_s = time.monotonic() + after_s
            return time.monotonic() >= at_s

        return due

    def _cut_off_a_write(self, life: Life) -> None:
        """Send an order that writes, and kill the daemon at the first sign of it in the write-ahead log."""
        paused = self._paused()
        writing = [c for c in KINDS if (c != "resume" or paused) and (c != "restart" or not self._restarted)]
        log = self._state / f"{LEDGER_NAME}-wal"
        before = signs(log)
        self._order(life, lambda: signs(log) != before, self._chance.choice(writing))
        if not life.killed:
            life.kill()

    def _order(self, life: Life, due: Due, command: str) -> None:
        """Give an order, and take note of what was acknowledged. What is refused must be wrong to ask."""
        reason = f"no. {next(self._numbers)}"
        arguments = {"for_s": None, "reason": reason} if command == "pause" else {}
        self._unanswered = command
        try:
            answer = life.ask(due, command, **arguments)
        except ControlError as error:
            wrong = {"resume": not self._paused(), "restart": self._restarted}
            if not wrong.get(command):
                raise AssertionError(f"{command} was refused: {error}") from error
            self._unanswered = None
            return
        if answer is None:
            return
        assert command != "resume" or self._paused()
        self._unanswered = None
        self._restarted |= command == "restart"
        kind = KINDS[command]
        self._answered.append({"restart": answer.get("id", ""), "pause": f"{kind} {reason}"}.get(command, kind))

    def _paused(self) -> bool:
        """Whether a pause is in force, by what was acknowledged: what an earlier life was told binds this one."""
        told = [entry.startswith("Pause") for entry in self._answered if entry.startswith(("Pause", "Resume"))]
        return told[-1] if told else self.known.paused


@pytest.mark.timeout(300)  # 55 s on two cores, 90 s on busy ones
def test_two_hundred_kills_lose_nothing_and_never_leave_two_servers(tmp_path: Path) -> None:
    """Each kill at another moment, half of them in a write; each next daemon goes on where the last one was.

    No failure is ever stored: a second server would find the port or the memory of the simulated GPU taken.
    """
    print("seed", SEED)  # noqa: T201 - pytest shows it with a failure
    chance, port = random.Random(SEED), free_port()  # noqa: S311 - moments, no secrets
    argv, environ = serve(port), host(start_s=0.1, gpu_dir=str(tmp_path / "gpu"))
    state = tmp_path / "state" / "default"
    driver = Driver(state, chance)
    with bystander() as foreign, nothing_left(port), running(tmp_path, argv, environ=environ) as first:
        first.wait_serving(1, SERVE_LIMIT_S)
        first.process.kill()
        first.process.wait()
        with Lives(tmp_path / "vllmd.toml", state / "control.sock", first.log_path, environ) as lives:
            for number, moment in enumerate(chance.sample(MOMENTS, len(MOMENTS))):
                if moment is Moment.SPAWN:  # else the server is taken over, and none is spawned
                    end(servers(port))
                try:
                    driver.live(lives.next(), moment)
                    driver.check(moment, tmp_path / "copy")
                    assert len(servers(port)) <= 1
                except AssertionError as error:
                    raise AssertionError(first.story(f"life {number}, killed {moment}: {error}", {})) from error
        with running(tmp_path, argv, environ=environ) as last:
            last.wait_serving(driver.known.generations[-1], SERVE_LIMIT_S)
            assert len(servers(port)) == 1
        assert alive(foreign)
    print(dict(driver.cut_off))  # noqa: T201 - ditto
    assert not [*state.glob("*unreadable*")]
    assert "Traceback" not in first.log()
    # Half of the kills fell between a request and its answer, on both sides of a commit.
    assert sum(driver.cut_off.values()) >= 80
    assert {stored for moment, stored in driver.cut_off if moment is Moment.WRITE} == {True, False}


@contextmanager
def bystander() -> Iterator[psutil.Process]:
    """Run a server of the same kind that is nobody's, on another port, for as long as the block runs."""
    environ = {**os.environ, **host()}
    with subprocess.Popen(
        serve(free_port()), env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(SERVE_LIMIT_S)


@contextmanager
def nothing_left(port: int) -> Iterator[None]:
    """Assert that the block leaves no server on a port; end what a block that failed leaves."""
    try:
        yield
        assert not servers(port)
    finally:
        end(servers(port))


def end(processes: Iterable[psutil.Process]) -> None:
    """Kill processes and wait until they are dead."""
    for process in processes:
        process.kill()
        process.wait(SERVE_LIMIT_S)


def servers(port: int) -> list[psutil.Process]:
    """Return the live API servers on a port: each leads a session. Its engine has the same words until it is exec'd."""
    words = {p: p.info["cmdline"] or () for p in psutil.process_iter(["cmdline"])}
    found = [p for p, said in words.items() if "vllmd_sim" in said and str(port) in said]
    return [p for p in found if leads_a_session(p) and alive(p)]


def leads_a_session(process: psutil.Process) -> bool:
    """Whether a process is the first of its session, as each launch is."""
    try:
        return os.getsid(process.pid) == process.pid
    except ProcessLookupError:
        return False


def stored_in(state: Path, copy: Path) -> Stored:
    """Return what the ledger of a dead daemon holds, from a copy: the next daemon shall find it as it was left."""
    copy.mkdir(exist_ok=True)
    for name in (LEDGER_NAME, f"{LEDGER_NAME}-wal"):
        (copy / name).unlink(missing_ok=True)
        if (state / name).exists():
            shutil.copyfile(state / name, copy / name)
    with closing(open_ledger(copy, str)) as ledger:
        with closing(sqlite3.connect(copy / LEDGER_NAME)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            orders = connection.execute("SELECT kind, payload ->> 'reason' FROM orders ORDER BY seq").fetchall()
            launches = connection.execute("SELECT generation FROM launches ORDER BY seq").fetchall()
        return Stored(
            tuple(change.id for change in ledger.changes(0)),
            tuple(" ".join(filter(None, row)) for row in orders),
            tuple(generation for (generation,) in launches),
            tuple(failure.summary for _, failure in ledger.failures_since(0)),
            paused=ledger.pause() is not None,
        )


def beyond(stored: Sequence[str], acknowledged: Sequence[str]) -> Sequence[str]:
    """Return what is stored and was not acknowledged; AssertionError where something acknowledged is not there."""
    assert tuple(stored[: len(acknowledged)]) == tuple(acknowledged), "an acknowledged entry is lost"
    return stored[len(acknowledged) :]


def increasing(numbers: Sequence[int]) -> bool:
    """Whether every number is above the one before it."""
    return all(a < b for a, b in pairwise(numbers))


def signs(file: Path) -> Any:
    """Return what changes when a file is written."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns
