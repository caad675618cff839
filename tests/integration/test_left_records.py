"""What an earlier vllmd left, told apart: the server, and what was prepared beside it."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from vllmd.act.launch_logs import log_path
from vllmd.act.server_file import ServerRecord, left_records, write_record
from vllmd.model.server import ProcessId
from vllmd.observe.processes import boot_id, identify


@contextmanager
def launched(folder: Path, generation: int) -> Iterator[ProcessId]:
    """Let a process be a launch: it leads a session, and its output is the launch's log."""
    with log_path(folder, generation).open("wb") as output:
        process = subprocess.Popen(("sleep", "60"), stdout=output, start_new_session=True)
    try:
        identity = identify(process.pid)
        assert identity is not None
        yield identity
    finally:
        process.kill()
        process.wait()


def record(folder: Path, name: str, generation: int, leader: ProcessId) -> None:
    """Write a record as vllmd does."""
    write_record(folder / name, ServerRecord(boot_id(), generation, leader, (leader,)))


def left(folder: Path) -> tuple[tuple[int, ProcessId] | None, tuple[int, ProcessId] | None]:
    """Return the generation and the leader of the server, and of what is beside it."""
    found = left_records(folder / "server.json", folder / "candidate.json", folder)
    server, beside = ((one.generation, one.leader) if one is not None else None for one in found)
    return server, beside


def test_each_is_what_it_is_on_record_as(tmp_path: Path) -> None:
    """Both live; neither takes the other's processes for its own."""
    with launched(tmp_path, 1) as one, launched(tmp_path, 2) as two:
        record(tmp_path, "server.json", 1, one)
        record(tmp_path, "candidate.json", 2, two)
        assert left(tmp_path) == ((1, one), (2, two))
        server, beside = left_records(tmp_path / "server.json", tmp_path / "candidate.json", tmp_path)
        assert server is not None
        assert beside is not None
        assert (server.members, beside.members) == ((one,), (two,))


def test_one_that_is_on_no_record_is_beside_a_server_that_lives(tmp_path: Path) -> None:
    """The disk was full when it was spawned: no other launch is made while one lives."""
    with launched(tmp_path, 1) as one, launched(tmp_path, 2) as two:
        record(tmp_path, "server.json", 1, one)
        assert left(tmp_path) == ((1, one), (2, two))


def test_one_that_outlived_its_server_is_ended_not_taken_over(tmp_path: Path) -> None:
    """SIGKILL of vllmd between the server's end and the handing over."""
    with ExitStack() as lives:
        two = lives.enter_context(launched(tmp_path, 2))
        with launched(tmp_path, 1) as one:
            record(tmp_path, "server.json", 1, one)
        record(tmp_path, "candidate.json", 2, two)
        assert left(tmp_path) == ((1, one), (2, two))


def test_one_that_took_the_servers_place_is_the_server(tmp_path: Path) -> None:
    """SIGKILL of vllmd between the two records."""
    with launched(tmp_path, 2) as two:
        record(tmp_path, "server.json", 2, two)
        record(tmp_path, "candidate.json", 2, two)
        assert left(tmp_path) == ((2, two), None)


def test_a_server_whose_record_is_lost_is_known_by_its_log(tmp_path: Path) -> None:
    """What is beside it is still on record as that."""
    with launched(tmp_path, 1) as one, launched(tmp_path, 2) as two:
        record(tmp_path, "candidate.json", 2, two)
        assert left(tmp_path) == ((1, one), (2, two))


def test_a_launch_after_one_that_has_ended_is_the_server(tmp_path: Path) -> None:
    """The disk was full, so that the record is of the launch before."""
    with ExitStack() as lives:
        with launched(tmp_path, 1) as one:
            record(tmp_path, "server.json", 1, one)
        two = lives.enter_context(launched(tmp_path, 2))
        assert left(tmp_path) == ((2, two), None)
