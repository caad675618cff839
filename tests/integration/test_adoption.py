"""vllmd ends in every way, and its server goes on: the next vllmd takes it over, or says why it does not."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from e2e.load import Clients, traffic
from e2e.vllmd_process import VllmdProcess, alive, free_port, running
from simulated import host, serve
from vllmd.act.launcher import RECORD_NAME

LIMIT_S = 60.0
MODEL = "simulated/llama-8b"


@contextmanager
def left(folder: Path, argv: list[str], by: signal.Signals = signal.SIGKILL, **sizes: object) -> Iterator[VllmdProcess]:
    """Run a vllmd until its server serves, and end it; its server is there while the block runs, unless it is ended."""
    with running(folder, argv, environ=host(**sizes)) as first:
        first.wait_serving(1, LIMIT_S)
        first.server_processes()
        first.process.send_signal(by)
        first.process.wait(LIMIT_S)
        yield first


def record_of(folder: Path) -> Path:
    """Return where the identities of the server's processes are."""
    return folder / "state" / "default" / "server.json"


def server_of(daemon: VllmdProcess) -> psutil.Process:
    """Return the server's main process."""
    return next(p for p in daemon.server_processes() if "serve" in p.cmdline())


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGUSR1, signal.SIGABRT], ids=lambda s: s.name)
def test_the_next_vllmd_takes_the_server_over(tmp_path: Path, by: signal.Signals) -> None:
    """The same process serves on under load, without an error, and is stopped by the one that took it over."""
    port = free_port()
    with running(tmp_path, serve(port), environ=host()) as first:
        instance = first.wait_serving(1, LIMIT_S)
        with traffic(instance["url"], MODEL, (Clients(4, 32, 16),)) as seen:
            first.process.send_signal(by)
            first.process.wait(LIMIT_S)
            before = seen.completed
            with running(tmp_path, serve(port), environ=host()) as second:
                taken_over = second.wait_serving(1, LIMIT_S)
                assert (taken_over["pid"], taken_over["generation"]) == (instance["pid"], 1)
                assert taken_over["launches"] == {}
                while seen.completed < before + 20:
                    second.status()  # the load is what is waited for; the test's own limit ends it
                assert seen.errors == []
        assert not first.leftovers()


def test_a_ledger_that_was_lost_costs_no_restart(tmp_path: Path) -> None:
    """The server serves on, and what it was launched with is read from its command line; no key gets into the log."""
    argv = [*serve(free_port()), "--api-key", "s3cr3t-value", "--max-num-seqs", "7"]
    with left(tmp_path, argv) as first:
        pid = server_of(first).pid
        for file in (tmp_path / "state" / "default").glob("ledger.db*"):
            file.unlink()
        with running(tmp_path, argv, environ=host()) as second:
            instance = second.wait_serving(1, LIMIT_S)
            assert (instance["pid"], instance["launches"], instance["pending"]) == (pid, {}, [])
            assert "not in the ledger, read from the process" in second.log()
            assert "s3cr3t-value" not in second.log()


def test_a_server_that_is_starting_is_taken_over(tmp_path: Path) -> None:
    """Nothing of a start that may take many minutes is thrown away."""
    argv = serve(free_port())
    with running(tmp_path, argv, environ=host(start_s=6.0)) as first:
        pid = first.wait(lambda i: i["state"] == "starting" and i["pid"], "starting", LIMIT_S)["pid"]
        first.process.kill()
        first.process.wait()
        with running(tmp_path, argv, environ=host(start_s=6.0)) as second:
            instance = second.wait_serving(1, LIMIT_S)
            assert (instance["pid"], instance["launches"]) == (pid, {})


def test_the_end_of_a_server_that_was_taken_over_is_a_crash_like_any_other(tmp_path: Path) -> None:
    """It is seen at once, its orphans are ended, and it is launched again."""
    argv = serve(free_port())
    with left(tmp_path, argv) as first, running(tmp_path, argv, environ=host()) as second:
        second.wait_serving(1, LIMIT_S)
        old = first.server_processes()
        server_of(second).kill()
        instance = second.wait_serving(2, LIMIT_S)
        assert instance["launches"] == {"crash": 1}
        assert not [p for p in old if alive(p)]


def test_orphans_of_a_dead_server_are_ended(tmp_path: Path) -> None:
    """An engine without its API server serves nobody."""
    argv = serve(free_port())
    with left(tmp_path, argv) as first:
        old = first.server_processes()
        server_of(first).kill()
        with running(tmp_path, argv, environ=host()) as second:
            second.wait_serving(2, LIMIT_S)
            assert not [p for p in old if alive(p)]
            assert "its main process has ended" in second.log()


def test_another_address_ends_the_server_that_was_left_when_its_requests_are_done(tmp_path: Path) -> None:
    """What answers elsewhere than is configured now is drained, and launched anew."""
    with left(tmp_path, serve(free_port())) as first:
        old = first.server_processes()
        with running(tmp_path, serve(free_port()), environ=host()) as second:
            second.wait_serving(2, LIMIT_S)
            assert not [p for p in old if alive(p)]
            assert "answers elsewhere than is configured now (--port)" in second.log()


def test_what_does_not_run_the_command_on_record_is_not_touched(tmp_path: Path) -> None:
    """A pid, a start time and a boot that fit are not enough: it is named, and the port is not fought for."""
    argv = serve(free_port())
    with left(tmp_path, argv) as first:
        record = json.loads(record_of(tmp_path).read_text())
        record["options"] = f"3:{'0' * 64}"
        record_of(tmp_path).write_text(json.dumps(record))
        with running(tmp_path, argv, environ=host()) as second:
            instance = second.wait(lambda i: i["state"] in {"held", "backoff"}, "not started", LIMIT_S)
            assert f"pid {record['leader'][0]}" in instance["last_failure"]["summary"]
            assert alive(server_of(first))
            for process in first.server_processes():
                process.kill()
                process.wait(LIMIT_S)


@pytest.mark.parametrize("damage", ["", "{", '{"boot_id": 1}', None], ids=["empty", "cut", "other", "gone"])
def test_a_server_is_known_by_its_log_where_its_record_is_lost(tmp_path: Path, damage: str | None) -> None:
    """An unreadable record is set aside, and costs no restart."""
    argv = serve(free_port())
    with left(tmp_path, argv) as first:
        record = record_of(tmp_path)
        pid = json.loads(record.read_text())["leader"][0]
        record.unlink() if damage is None else record.write_text(damage)
        with running(tmp_path, argv, environ=host()) as second:
            assert second.wait_serving(1, LIMIT_S)["pid"] == pid
        assert not first.leftovers()


def test_a_server_whose_end_was_asked_for_is_not_taken_over(tmp_path: Path) -> None:
    """It takes no more requests: the next vllmd launches anew."""
    argv = serve(free_port())
    with running(tmp_path, argv, {"engine": {"drain_timeout": "20s"}}, host()) as first:
        url = first.wait_serving(1, LIMIT_S)["url"]
        with traffic(url, MODEL, (Clients(1, 32, 20_000),)) as seen:
            while not seen.gaps_s:
                first.status()  # the load is what is waited for; the test's own limit ends it
            first.process.terminate()
            # The status tells it as it is decided, the record once it is asked for.
            record = tmp_path / "state" / "default" / RECORD_NAME
            first.wait(lambda _: json.loads(record.read_bytes())["ending"], "its end is asked for", LIMIT_S)
            first.process.kill()
            first.process.wait()
            with running(tmp_path, argv, environ=host()) as second:
                assert second.wait_serving(2, LIMIT_S)["generation"] == 2
                assert "its end had been asked for" in second.log()


def test_a_vllmd_that_has_no_server_ends_at_once_when_it_is_to_leave(tmp_path: Path) -> None:
    """SIGUSR1 while it waits for a launch: there is nothing to leave."""
    with running(tmp_path, serve(free_port()), environ=host(fault="model-unknown")) as daemon:
        daemon.wait(lambda i: i["state"] in {"backoff", "held"}, "down", LIMIT_S)
        os.kill(daemon.process.pid, signal.SIGUSR1)
        assert daemon.wait_ended(LIMIT_S) == 0


def test_a_server_that_stands_still_is_not_waited_for_as_for_a_start(tmp_path: Path) -> None:
    """One that served before and answers nothing hangs: it is found within `stall_timeout`, not `start_timeout`."""
    argv, settings = serve(free_port()), {"engine": {"stall_timeout": "3s"}}
    with running(tmp_path, argv, settings, host()) as first:
        pid = first.wait_serving(1, LIMIT_S)["pid"]
        first.process.kill()
        first.process.wait()
        os.kill(pid, signal.SIGSTOP)
        with running(tmp_path, argv, settings, host()) as second:
            instance = second.wait_serving(2, LIMIT_S)
            assert instance["last_failure"]["class"] == "hang"
            assert "its main process stood still" in instance["last_failure"]["summary"]
        assert not first.leftovers()


def test_reap_ends_what_was_left_and_nothing_else(tmp_path: Path) -> None:
    """Not while a vllmd runs; then the server and its engine, and not the one of another instance."""
    with running(tmp_path / "other", serve(free_port()), environ=host()) as other:
        other.wait_serving(1, LIMIT_S)
        with running(tmp_path / "one", serve(free_port()), environ=host()) as first:
            first.wait_serving(1, LIMIT_S)
            busy = first.ask("reap")
            assert (busy.returncode, "another vllmd already runs" in busy.stderr) == (1, True)
            first.process.kill()
            first.process.wait()
            assert len(first.server_processes()) == 2
            for result in ("watchdog", "signal", "core-dump", "exit-code"):
                assert first.ask("reap", "--result", result).returncode == 0
            assert len(first.server_processes()) == 2
            job = tmp_path / "job"
            job.write_text("7 vllmd@default.service start running\n")
            assert first.ask("reap", "--result", "timeout", "--job", str(job)).returncode == 0
            assert len(first.server_processes()) == 2
            done = first.ask("reap", "--result", "success")
            assert (done.returncode, "ended: pid" in done.stdout) == (0, True)
            assert not first.leftovers()
            assert "nothing is left" in first.ask("reap").stdout
        assert other.status()["state"] == "serving"


def test_reap_keeps_a_server_that_was_left_on_purpose(tmp_path: Path) -> None:
    """The service manager's stop is a part of a restart; the operator's own word ends it all the same."""
    with left(tmp_path, serve(free_port()), signal.SIGUSR1) as first:
        assert "left to the next vllmd" in first.ask("reap", "--result", "success").stdout
        assert len(first.server_processes()) == 2
        job = tmp_path / "job"
        job.write_text("7 vllmd@default.service stop running\n")
        assert first.ask("reap", "--result", "success", "--job", str(job)).returncode == 0
        assert not first.leftovers()


def test_metrics_and_log_go_on_with_what_was_taken_over(tmp_path: Path) -> None:
    """The start's numbers are read again from its log, and its metrics are scraped."""
    argv = serve(free_port())
    with left(tmp_path, argv), running(tmp_path, argv, environ=host()) as second:
        instance = second.wait(lambda i: i["state"] == "serving" and i["data"]["age_seconds"] is not None, "read", 60.0)
        assert instance["start"]["kv_cache_bytes"] > 0
        assert "vllmd_" in httpx.get(second.metrics_url, timeout=5).text
