"""`vllmd status` and `vllmd restart` as processes: exit codes, the dead daemon, watching, and what a call costs."""

import compileall
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from answering import while_answering
from examples import example_status, held_status
from vllmd.errors import ControlError
from vllmd.errors import __file__ as errors_file
from vllmd.model.status import Status
from vllmd.report.control import Command, Peer
from vllmd.report.status_file import write_status
from vllmd.report.status_json import status_document

ENTRY = "from vllmd.cli.{0} import {0}; {0}()"
Run = subprocess.CompletedProcess[str]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a state folder with a short name: socket paths are limited to 107 bytes."""
    with TemporaryDirectory(prefix="vllmd") as name:
        yield Path(name)


def environment(**more: str) -> Mapping[str, str]:
    """Return an environment without what could change the drawing."""
    hidden = ("NO_COLOR", "FORCE_COLOR", "VLLMD_INSTANCE", "LC_ALL", "LANG", "LC_CTYPE")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**kept, "LANG": "C.UTF-8", **more}


def argv(command: str, *args: str | Path) -> list[str]:
    """Return the command line of a vllmd command."""
    return [sys.executable, "-c", ENTRY.format(command), *map(str, args)]


def vllmd(command: str, *args: str | Path, **more: str) -> Run:
    """Return what a command printed, and its exit code."""
    return subprocess.run(
        argv(command, *args), check=False, capture_output=True, text=True, timeout=30, env=environment(**more)
    )


def living(folder: Path, status: Status, use: Callable[[], Run]) -> Run:
    """Return what a command gets from a living daemon."""
    commands = {
        "status": Command(lambda _request, _peer: status_document(status)),
        "restart": Command(lambda _request, _peer: {"message": "restarting: draining"}, changing=True),
    }
    return while_answering(folder / status.name / "control.sock", commands, use)


@pytest.mark.parametrize(
    ("status", "args", "code"),
    [
        (example_status(), (), 0),
        (example_status(missing_metrics=("itl",)), (), 0),
        (example_status(missing_metrics=("itl",)), ("--exit-code",), 11),
        (held_status(), (), 3),
    ],
    ids=["serving", "degraded", "degraded, asked", "held"],
)
def test_exit_code_of_a_living_daemon(folder: Path, status: Status, args: tuple[str, ...], code: int) -> None:
    """The exit code tells whether it serves, and whether well when asked."""
    done = living(folder, status, lambda: vllmd("status", "qwen", "--state-dir", folder, *args))
    assert (done.returncode, done.stderr) == (code, "")
    assert "qwen" in done.stdout.splitlines()[0]


def test_page_without_a_terminal_is_plain(folder: Path) -> None:
    """Piped output has no colours; the instance may be named by the environment."""
    done = living(folder, example_status(), lambda: vllmd("status", "--state-dir", folder, VLLMD_INSTANCE="qwen"))
    assert done.stdout.startswith("● qwen  serving, SLO met\n")
    assert "\x1b" not in done.stdout


def test_colour_on_demand(folder: Path) -> None:
    """--color always colours also what is piped; --ascii draws words."""
    done = living(
        folder, example_status(), lambda: vllmd("status", "--state-dir", folder, "--color", "always", "--ascii")
    )
    assert done.stdout.startswith("\x1b[32mOK qwen")


def test_ascii_where_the_locale_is_not_utf8(folder: Path) -> None:
    """A locale without UTF-8 gets ASCII."""
    done = living(folder, example_status(), lambda: vllmd("status", "--state-dir", folder, LC_ALL="POSIX"))
    assert done.stdout.startswith("OK qwen")
    assert done.stdout.isascii()


def test_json_is_the_document(folder: Path) -> None:
    """--json prints the daemon's document."""
    done = living(folder, example_status(), lambda: vllmd("status", "qwen", "--state-dir", folder, "--json"))
    assert json.loads(done.stdout) == status_document(example_status())


def test_dead_daemon_is_told_from_the_file(folder: Path) -> None:
    """Without a daemon the last status is shown as what it is, with exit code 4."""
    (folder / "qwen").mkdir()
    write_status(folder / "qwen" / "status.json", status_document(example_status()))
    done = vllmd("status", "qwen", "--state-dir", folder)
    assert done.returncode == 4
    assert "vllmd is not running; last seen 2026-09-24 17:16:48 UTC" in done.stdout
    found = json.loads(vllmd("status", "qwen", "--state-dir", folder, "--json").stdout)
    assert found["instances"][0]["state"] == "unknown"


def test_broken_file_is_named(folder: Path) -> None:
    """A status file that cannot be read is named, with exit code 4."""
    (folder / "qwen").mkdir()
    (folder / "qwen" / "status.json").write_text("{")
    done = vllmd("status", "qwen", "--state-dir", folder)
    assert done.returncode == 4
    assert "is not a status file" in " ".join(done.stdout.split())


def test_several_instances_are_a_table(folder: Path) -> None:
    """Without a name all instances of the folder are shown; the worst decides the exit code."""
    for name in ("embed", "qwen"):
        (folder / name).mkdir()
        write_status(folder / name / "status.json", status_document(example_status(name=name)))
    done = living(folder, example_status(), lambda: vllmd("status", "--state-dir", folder))
    assert done.returncode == 4
    assert [line.split()[:3] for line in done.stdout.splitlines()[1:3]] == [
        ["?", "embed", "unknown"],
        ["●", "qwen", "serving"],
    ]


@pytest.mark.parametrize("args", [("../etc",), ("--color", "blue"), ("--config", "/nowhere.toml"), ("a", "b")])
def test_usage(args: tuple[str, ...]) -> None:
    """A command line that cannot be meant is exit code 2."""
    assert vllmd("status", *args).returncode == 2


AS_NOBODY = """
import os, sys
from vllmd.cli.{0} import {0}
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
{0}()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("command", ["status", "restart"])
def test_no_permission(folder: Path, command: str) -> None:
    """A user who may not ask gets exit code 77, and is told the way."""
    folder.chmod(0o755)
    line = [sys.executable, "-c", AS_NOBODY.format(command), "qwen", "--state-dir", str(folder)]

    def as_nobody() -> Run:
        return subprocess.run(line, check=False, capture_output=True, text=True, timeout=30, env=environment())

    done = living(folder, example_status(), as_nobody)
    assert done.returncode == 77
    assert f"`sudo vllmd {command} qwen" in done.stdout + done.stderr


def test_watching_draws_anew_until_interrupted(folder: Path) -> None:
    """--watch --json prints a line each time; an interrupt ends it with 130."""

    def watch() -> Run:
        command = argv("status", "qwen", "--state-dir", folder, "--json", "-w", "0.1")
        # A background job of a script ignores SIGINT, and hands that on.
        hearing = ["env", "--default-signal=INT", *command]
        with subprocess.Popen(hearing, stdout=subprocess.PIPE, text=True, env=environment()) as process:
            assert process.stdout is not None
            lines = [json.loads(process.stdout.readline()) for _ in range(3)]
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 130
        assert [line["schema"] for line in lines] == ["vllmd.status/v1"] * 3
        return Run(command, 130)

    living(folder, example_status(), watch)


def test_restart_is_begun(folder: Path) -> None:
    """The daemon's words are printed, and what to type next."""
    done = living(folder, example_status(), lambda: vllmd("restart", "qwen", "--state-dir", folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "qwen: restarting: draining\n`vllmd status qwen -w` to watch\n"


def test_restart_as_json(folder: Path) -> None:
    """--json prints one object."""
    done = living(folder, example_status(), lambda: vllmd("restart", "qwen", "--state-dir", folder, "--json"))
    assert json.loads(done.stdout) == {"schema": "vllmd.restart/v1", "name": "qwen", "message": "restarting: draining"}


def test_restart_without_a_daemon(folder: Path) -> None:
    """Without a daemon nothing is restarted, and the exit code is 4."""
    done = vllmd("restart", "qwen", "--state-dir", folder)
    assert done.returncode == 4
    assert "no daemon answers" in done.stderr


def test_restart_that_is_refused(folder: Path) -> None:
    """What the daemon refuses is exit code 5, with its reason."""

    def refuse(_request: Mapping[str, Any], _peer: Peer) -> Mapping[str, Any]:
        raise ControlError("nothing to do: the server is draining")

    commands = {"restart": Command(refuse, changing=True)}
    path = folder / "qwen" / "control.sock"
    done = while_answering(path, commands, lambda: vllmd("restart", "qwen", "--state-dir", folder))
    assert done.returncode == 5
    assert "nothing to do: the server is draining" in done.stderr


HEAVY = ("asyncio", "rich", "structlog", "msgspec", "httpx", "prometheus_client", "psutil", "apscheduler", "sqlite3")


def test_a_call_is_light(folder: Path) -> None:
    """A call loads none of the daemon's libraries, and takes less than 0.2 s of a processor, however busy that is.

    Its modules are compiled beforehand, as an installer leaves them: PYTHONDONTWRITEBYTECODE may be set here.
    """
    compileall.compile_dir(Path(errors_file).parent, quiet=1)
    code = "import sys; from vllmd.cli.status import status; from vllmd.cli.restart import restart; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30)
    assert not set(HEAVY) & set(loaded.stdout.split())
    times = []
    for _ in range(10):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        vllmd("status", "qwen", "--state-dir", folder)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.2
