"""The commands about the past and the pause as processes: exit codes, terminals, permissions, which instance."""

import os
import pty
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from answering import while_answering
from examples import example_status
from past_ledger import write_past
from vllmd.errors import ControlError
from vllmd.operator import reading_commands
from vllmd.report.control import Command, Peer
from vllmd.report.ledger import LEDGER_NAME
from vllmd.report.status_file import write_status
from vllmd.report.status_json import status_document

ENTRY = "from vllmd.cli.{0} import {0}; {0}()"
# What is imported late is imported before: this interpreter's libraries may be closed to other users.
AS_NOBODY = """
import os
import vllmd.report.history_json
from vllmd.cli.{0} import {0}
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
{0}()
"""
LIMIT_S = 30.0
Run = subprocess.CompletedProcess[str]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give the folder above the state of `qwen`, an instance with a past; its name is short for the socket's sake."""
    with TemporaryDirectory(prefix="vllmd") as name:
        (Path(name) / "qwen").mkdir()
        write_past(Path(name) / "qwen")
        write_status(Path(name) / "qwen" / "status.json", status_document(example_status()))
        yield Path(name)


def vllmd(folder: Path, command: str, *args: str, entry: str = ENTRY, stdin: int = subprocess.DEVNULL) -> Run:
    """Return what a command printed about the instances of a folder, and its exit code."""
    environ = {name: value for name, value in os.environ.items() if name != "VLLMD_INSTANCE"}
    return subprocess.run(
        [sys.executable, "-c", entry.format(command), *args, "--state-dir", str(folder)],
        check=False,
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**environ, "LANG": "C.UTF-8"},
    )


def answering(folder: Path, commands: Mapping[str, Command], use: Callable[[], Run]) -> Run:
    """Return what a command gets from a daemon that knows these."""
    return while_answering(folder / "qwen" / "control.sock", commands, use)


def refusing(_request: Mapping[str, Any], _peer: Peer) -> Mapping[str, Any]:
    """Refuse."""
    raise ControlError("not now")


def forgetting(_request: Mapping[str, Any], _peer: Peer) -> Mapping[str, Any]:
    """Forget."""
    return {"message": "bans are forgotten"}


def forgetting_for_now(_request: Mapping[str, Any], _peer: Peer) -> Mapping[str, Any]:
    """Forget, on a full disk."""
    return {"message": "bans are forgotten", "not_stored": "the disk is \x1bfull"}


def test_an_order_that_was_not_stored_is_done_and_warns(folder: Path) -> None:
    """Whoever gave it must give it again to the next vllmd."""
    commands = {"forget": Command(forgetting_for_now, changing=True)}
    done = answering(folder, commands, lambda: vllmd(folder, "forget", "--yes"))
    assert (done.returncode, done.stderr) == (0, "vllmd: done, until vllmd is restarted: the disk is \\x1bfull\n")


@pytest.mark.parametrize("args", [("history",), ("explain", "D1"), ("explain",)])
def test_daemon_and_file_tell_the_same(folder: Path, args: tuple[str, ...]) -> None:
    """What the daemon answers is what the ledger says without it."""
    commands = reading_commands(folder / "qwen", "qwen", example_status)
    alive = answering(folder, commands, lambda: vllmd(folder, *args))
    dead = vllmd(folder, *args)
    assert (alive.returncode, dead.returncode, alive.stderr, dead.stderr) == (0, 0, "", "")
    assert "17:06:48" in alive.stdout or "16:17:18" in alive.stdout or "D2 is being verified" in alive.stdout
    if args != ("explain",):
        assert alive.stdout == dead.stdout


@pytest.mark.parametrize(
    ("args", "words"), [(("explain", "D9"), "no decision D9"), (("history", "--before", "D9"), "no decision D9")]
)
def test_an_unknown_decision(folder: Path, args: tuple[str, ...], words: str) -> None:
    """A decision that nobody made is exit code 1, from the daemon as from the file."""
    commands = reading_commands(folder / "qwen", "qwen", example_status)
    for done in (vllmd(folder, *args), answering(folder, commands, lambda: vllmd(folder, *args))):
        assert done.returncode == 1
        assert words in done.stderr


def damaged(folder: Path, how: str) -> str:
    """Damage the ledger; return what is then said."""
    path = folder / "qwen" / LEDGER_NAME
    if how == "newer":
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA user_version=99")
        return "newer vllmd"
    if how == "broken":
        path.write_bytes(b"no database" * 500)
        return "not a database"
    path.unlink()
    return "No such file"


@pytest.mark.parametrize("command", ["history", "explain"])
@pytest.mark.parametrize("how", ["newer", "broken", "gone"])
def test_a_ledger_that_cannot_be_read(folder: Path, command: str, how: str) -> None:
    """Whether the daemon says it or the command finds it: exit code 4, and the reason in words."""
    words = damaged(folder, how)
    commands = reading_commands(folder / "qwen", "qwen", example_status)
    for done in (vllmd(folder, command), answering(folder, commands, lambda: vllmd(folder, command))):
        assert done.returncode == 4
        assert words in done.stderr
        assert done.stdout == ""


@pytest.mark.parametrize("command", ["pause", "resume", "forget"])
def test_orders_without_a_daemon_and_refused(folder: Path, command: str) -> None:
    """An order is never carried out without the daemon (4), and a refusal has its reason (5)."""
    args = ("--yes",) if command == "forget" else ()
    assert vllmd(folder, command, *args).returncode == 4
    commands = {command: Command(refusing, changing=True)}
    done = answering(folder, commands, lambda: vllmd(folder, command, *args))
    assert (done.returncode, done.stdout) == (5, "")
    assert "not now" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("command", ["pause", "resume", "history", "explain"])
def test_no_permission_on_the_socket(folder: Path, command: str) -> None:
    """A user who may not ask gets exit code 77, and the file is not read behind the daemon's back."""
    folder.chmod(0o755)
    commands = {command: Command(refusing)}
    done = answering(folder, commands, lambda: vllmd(folder, command, "qwen", entry=AS_NOBODY))
    assert done.returncode == 77
    assert f"`sudo vllmd {command} qwen`" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_file_of_a_dead_daemon_is_for_those_who_may_read_it(folder: Path) -> None:
    """A ledger in a folder that the caller may not write is read; one that he may not read is exit code 77."""
    ledger = folder / "qwen" / LEDGER_NAME
    folder.chmod(0o755)
    ledger.chmod(0o644)
    done = vllmd(folder, "history", "qwen", entry=AS_NOBODY)
    assert (done.returncode, done.stderr) == (0, "")
    assert "D3" in done.stdout
    ledger.chmod(0o600)
    done = vllmd(folder, "history", "qwen", entry=AS_NOBODY)
    assert done.returncode == 77
    assert "Permission denied" in done.stderr


@pytest.mark.parametrize(("said", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_forget_asks_on_a_terminal(folder: Path, said: str, code: int) -> None:
    """Only a yes forgets; the word that is taken for none is no."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{said}\n".encode())
        commands = {"forget": Command(forgetting, changing=True)}
        done = answering(folder, commands, lambda: vllmd(folder, "forget", stdin=theirs))
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == code
    assert ("bans are forgotten" in done.stdout) is (code == 0)


def test_forget_without_a_terminal_needs_a_word(folder: Path) -> None:
    """Nobody can be asked in a script: exit code 2, and nothing is forgotten."""
    done = vllmd(folder, "forget")
    assert done.returncode == 2
    assert "--yes" in done.stderr


@pytest.mark.parametrize("command", ["history", "explain", "pause", "restart"])
def test_which_of_several(folder: Path, command: str) -> None:
    """With several instances a name is asked for; none is taken by chance."""
    (folder / "embed").mkdir()
    write_status(folder / "embed" / "status.json", status_document(example_status(name="embed")))
    done = vllmd(folder, command)
    assert done.returncode == 2
    assert "embed, qwen" in done.stderr


def test_markdown_and_json_have_no_marks(folder: Path) -> None:
    """What goes into a ticket or a script holds no colour."""
    for option in ("--markdown", "--json"):
        assert "\x1b" not in vllmd(folder, "explain", "D1", option).stdout
