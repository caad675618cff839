"""The end of processes: an engine with nothing to do is not waited for, and one end follows the other."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vllmd.act.candidate import Candidate
from vllmd.act.ending import ended_by_leader, ended_process
from vllmd.act.session import Session
from vllmd.clock import SystemClock
from vllmd.model.server import ProcessId, ServerEvent

# A leader that ends when its engine has, and an engine that calls itself as vLLM's does and takes a minute to end.
_SERVER = """
import ctypes, os, signal, sys, time
engine = os.fork()
if not engine:
    ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)
    print("there", flush=True)
    time.sleep(60)
    os._exit(0)
signal.signal(signal.SIGTERM, lambda *_: None)
os.waitpid(engine, 0)
"""


@contextmanager
def server(folder: Path, title: str) -> Iterator[Session]:
    """Run a server whose engine has this title, as a session on record."""
    command = (sys.executable, "-c", _SERVER, title)
    child = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"there\n"
        session = Session(folder / "server.json", None, SystemClock())
        session.begin(1, command, "", child.pid)
        session.note_members()
        yield session
    finally:
        asyncio.run(session.clear())
        child.wait(10)


async def took_s(session: Session, answers: Iterator[bool], grace_s: float) -> float:
    """End the server, which answers so whenever it is asked whether it is empty; return how long that took (s)."""
    assert session.record is not None
    clock = SystemClock()
    ended = asyncio.ensure_future(ended_process(session.record.leader))
    began_s = clock.monotonic_s()
    await ended_by_leader(session, ended, asyncio.Event(), grace_s, asked=False, empty=lambda: next(answers))
    return clock.monotonic_s() - began_s


def test_the_engine_of_an_empty_server_is_not_waited_for(tmp_path: Path) -> None:
    """Its leader ends by itself, then, as vLLM's does."""
    with server(tmp_path, "VLLM::EngineCore") as session:
        assert 0.5 <= asyncio.run(took_s(session, iter((True, True)), 30)) < 5


@pytest.mark.parametrize(
    ("title", "answers"),
    [("VLLM::EngineCore", (False,)), ("VLLM::EngineCore", (True, False)), ("engine", (True, True))],
    ids=["it has requests", "one came meanwhile", "no process of a name that is known"],
)
def test_any_other_server_has_its_time(tmp_path: Path, title: str, answers: tuple[bool, ...]) -> None:
    """Until its grace is over."""
    with server(tmp_path, title) as session:
        assert asyncio.run(took_s(session, iter(answers), 2)) >= 2


class SlowSession(Session):
    """A session that takes a while to be cleared, and tells how many clear it at once."""

    at_once = most = 0

    async def clear(self) -> tuple[ProcessId, ...]:
        """Take a while."""
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0.2)
        self.at_once -= 1
        return ()


def test_what_is_given_up_twice_is_ended_by_one_after_the_other(tmp_path: Path) -> None:
    """And `settled` waits for all of it."""

    async def give_up_twice() -> None:
        session = SlowSession(tmp_path / "candidate.json", None, SystemClock())
        told: list[ServerEvent | BaseException] = []
        candidate = Candidate(session, SystemClock(), told.append)
        for _ in range(3):
            candidate.give_up()
            await asyncio.sleep(0.05)  # while the one before is under way
        await candidate.settled()
        assert (session.at_once, session.most, told) == (0, 1, [])

    asyncio.run(give_up_twice())
