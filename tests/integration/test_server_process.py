"""Real processes under `ServerProcess`: proof of readiness, stalls, stops, and whom it never touches."""

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from e2e.vllmd_process import free_port
from vllmd.act.launcher import Launcher
from vllmd.act.server_file import ServerRecord, leftovers, write_record
from vllmd.act.server_process import ServerProcess
from vllmd.clock import SystemClock
from vllmd.model.flags import Flags
from vllmd.model.server import Exited, Hung, Launch, LaunchRefused, ProcessId, Ready, ServerEvent, Spawned, StartStalled
from vllmd.observe.processes import boot_id, identify

LIMIT_S = 20.0
SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")
# Ignores SIGTERM and leaves a child that outlives it, as an engine does.
STUBBORN_CODE = """
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(['sleep', '60'])
print('up', flush=True)
time.sleep(60)
"""
STUBBORN = (sys.executable, "-c", STUBBORN_CODE)

ORPHANING_CODE = """
import os, signal, subprocess
print(subprocess.Popen(['sleep', '60']).pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
ORPHANING = (sys.executable, "-c", ORPHANING_CODE)

# Listens on the port of its argument, and ignores SIGTERM.
LISTENING_CODE = """
import signal, socket, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))
time.sleep(60)
"""


class NoGpu:
    """A host without NVML."""

    async def read(self) -> None:
        """Return nothing."""


async def always() -> bool:
    """Answer every health check well."""
    return True


def server(folder: Path, port: int, start_timeout_s: float = 60.0) -> ServerProcess:
    """Return a server whose health check is always answered well: only the proof of ownership is left."""
    launcher = Launcher(
        folder,
        dict(os.environ),
        "127.0.0.1",
        port,
        start_timeout_s,
        60.0,
        drain_timeout_s=0.1,
        hold_timeout_s=5.0,
        keep_logs=3,
        mask=str,
    )
    return ServerProcess(launcher, SystemClock(), NoGpu(), always)


def launch_of(argv: tuple[str, ...], folder: Path) -> Launch:
    """Return a launch of any program."""
    return Launch(1, argv, Flags(), 0.0, str(folder / "logs" / "engine-0001.log"))


def run(body: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine within the limit."""

    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await body()

    asyncio.run(limited())


async def event_of(process: ServerProcess, within_s: float = LIMIT_S) -> ServerEvent:
    """Return the next event that is not the spawn."""
    async with asyncio.timeout(within_s):
        while isinstance(event := await process.events(), Spawned):
            continue
    return event


def test_a_healthy_stranger_on_the_port_proves_nothing(tmp_path: Path) -> None:
    """While our child lives and another process answers on the port, the launch is not ready."""

    async def body() -> None:
        port = free_port()
        process = server(tmp_path, port)
        process.launch(launch_of(SLEEP, tmp_path))
        assert isinstance(await process.events(), Spawned)
        stranger = HTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler)
        try:
            event = None
            try:
                event = await event_of(process, within_s=1.5)
            except TimeoutError:
                process.stop()
            assert event is None
            assert await event_of(process) == Exited(1, -signal.SIGTERM, asked=True)
        finally:
            stranger.server_close()

    run(body)


def test_a_start_without_progress_is_ended(tmp_path: Path) -> None:
    """A child that prints nothing, reads nothing and burns nothing is stalled after the limit."""

    async def body() -> None:
        process = server(tmp_path, free_port(), start_timeout_s=1.0)
        process.launch(launch_of(SLEEP, tmp_path))
        event = await event_of(process)
        assert isinstance(event, StartStalled)
        assert event.silent_s > 1.0

    run(body)


def test_what_ignores_sigterm_is_killed_with_its_whole_session(tmp_path: Path) -> None:
    """After the grace period SIGKILL goes to every process of the session, and only then is the end told."""

    async def body() -> None:
        process = server(tmp_path, free_port())
        process.launch(launch_of(STUBBORN, tmp_path))
        log = tmp_path / "logs" / "engine-0001.log"
        assert isinstance(await process.events(), Spawned)
        while "up" not in log.read_text():  # noqa: ASYNC110 - a file sends no event
            await asyncio.sleep(0.05)
        process.note_members()
        assert process.session.record is not None
        members = process.session.members
        assert len(members) == 2
        process.stop()
        assert await event_of(process) == Exited(1, -signal.SIGKILL, asked=True)
        assert not [p for p in members if identify(p.pid) == p]

    run(body)


def test_a_hang_is_ended_also_where_its_evidence_cannot_be_written(tmp_path: Path) -> None:
    """With a folder where the file should be: no drain, no process left, and the hang is told as it was found."""

    async def body() -> None:
        port = free_port()
        (tmp_path / "logs" / "evidence-0001.txt").mkdir(parents=True)
        process = server(tmp_path, port)
        process.launch(launch_of((sys.executable, "-c", LISTENING_CODE, str(port)), tmp_path))
        assert await event_of(process) == Ready(1)
        members = process.session.members
        process.end(7.0, "it stands still")
        assert await event_of(process, within_s=5.0) == Hung(1, 7.0, "it stands still")
        assert not [p for p in members if identify(p.pid) == p]

    run(body)


def test_an_orphan_that_was_never_seen_is_ended(tmp_path: Path) -> None:
    """A leader that is killed right after it spawned an engine: the engine is in its session, and ends with it."""

    async def body() -> None:
        process = server(tmp_path, free_port())
        process.launch(launch_of(ORPHANING, tmp_path))
        assert await event_of(process) == Exited(1, -signal.SIGKILL, asked=False)
        orphan = int((tmp_path / "logs" / "engine-0001.log").read_text())
        assert identify(orphan) is None

    run(body)


def test_a_record_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    """With a folder where the file should be written the launch lives, is known, and can be stopped."""

    async def body() -> None:
        (tmp_path / "server.new").mkdir()
        process = server(tmp_path, free_port())
        process.launch(launch_of(SLEEP, tmp_path))
        spawned = await process.events()
        assert isinstance(spawned, Spawned)
        process.stop()
        assert await event_of(process) == Exited(1, -signal.SIGTERM, asked=True)
        assert identify(spawned.leader.pid) is None

    run(body)


def test_a_second_word_ends_the_drain(tmp_path: Path) -> None:
    """An operator who does not want to wait is heard: SIGKILL long before the grace period is over."""

    async def body() -> None:
        process = server(tmp_path, free_port())
        process.launch(launch_of(STUBBORN, tmp_path))
        assert isinstance(await process.events(), Spawned)
        process.stop()
        process.kill()
        assert isinstance(await event_of(process, within_s=5.0), Exited)

    run(body)


def test_a_command_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    """A missing executable is an event, not a crash of the daemon."""

    async def body() -> None:
        process = server(tmp_path, free_port())
        process.launch(launch_of(("/no/such/vllm", "serve"), tmp_path))
        event = await event_of(process)
        assert isinstance(event, LaunchRefused)
        assert event.kind == "spawn-failed"
        assert "/no/such/vllm" in event.reason

    run(body)


def test_a_taken_port_is_told_before_anything_is_spawned(tmp_path: Path) -> None:
    """The holder is named; nothing is launched beside it."""

    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            process = server(tmp_path, taken.getsockname()[1])
            process.launch(launch_of(SLEEP, tmp_path))
            event = await event_of(process)
        assert isinstance(event, LaunchRefused)
        assert event.kind == "port-taken"
        assert f"pid {os.getpid()}" in event.holder
        assert process.session.record is None

    run(body)


def test_a_pid_that_was_given_away_is_foreign() -> None:
    """A process with the recorded pid and another start time is not ours, nor is one of another boot."""
    child = subprocess.Popen(SLEEP, start_new_session=True)
    try:
        real = identify(child.pid)
        assert real is not None
        other = ProcessId(real.pid, real.start_ticks - 1)
        assert leftovers(ServerRecord(boot_id(), 1, real, (real,))) == (real,)
        assert leftovers(ServerRecord(boot_id(), 1, other, (other,))) == ()
        assert leftovers(ServerRecord("another-boot", 1, real, (real,))) == ()
    finally:
        child.kill()
        child.wait()


def test_an_unreadable_record_is_set_aside(tmp_path: Path) -> None:
    """A corrupt server.json names nobody, and is kept for whoever wants to know."""
    (tmp_path / "server.json").write_text("{half a rec")
    assert server(tmp_path, free_port()).session.record is None
    assert (tmp_path / "server.json.unreadable").exists()


def test_a_leftover_of_the_record_is_ended_before_a_launch(tmp_path: Path) -> None:
    """The state file of a killed daemon names a leader; it is gone before the new one is spawned."""
    old = subprocess.Popen(SLEEP, start_new_session=True)
    reaper = threading.Thread(target=old.wait, daemon=True)  # its parent here is this test, not an init
    reaper.start()
    identity = identify(old.pid)
    assert identity is not None
    write_record(tmp_path / "server.json", ServerRecord(boot_id(), 7, identity, (identity,)))

    async def body() -> None:
        process = server(tmp_path, free_port())
        process.launch(launch_of(SLEEP, tmp_path))
        spawned = await process.events()
        assert isinstance(spawned, Spawned)
        assert identify(old.pid) != identity
        process.stop()
        await event_of(process)

    run(body)


def mode_of(path: str) -> int | None:
    """Return a file's permissions, None where there is none."""
    return stat.S_IMODE(Path(path).stat().st_mode) if Path(path).exists() else None


def test_the_control_block_is_on_record_and_goes_with_its_server(tmp_path: Path) -> None:
    """The next vllmd finds it by the record, or, where that is lost or does not say, by the server's environment."""

    async def body() -> None:
        process = server(tmp_path, free_port())
        process.launch(launch_of(SLEEP, tmp_path))
        assert isinstance(await process.events(), Spawned)
        path = process.live.path
        assert mode_of(path) == 0o600
        by_record = server(tmp_path, free_port()).session.record
        older = json.loads((tmp_path / "server.json").read_text())
        del older["block"]
        (tmp_path / "server.json").write_text(json.dumps(older))
        by_leader = server(tmp_path, free_port()).session.record
        (tmp_path / "server.json").unlink()
        by_log = server(tmp_path, free_port()).session.record
        assert by_record is not None
        assert by_leader is not None
        assert by_log is not None
        assert [by_record.block, by_leader.block, by_log.block] == [path] * 3
        process.stop()
        await event_of(process)
        assert mode_of(path) is None

    run(body)
