"""Restarts of the simulated server under load: planned, no request is lost; plain, the clients see errors."""

import asyncio
import json
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.vllmd_process import VllmdProcess, free_port, running
from own_network import own_network
from plain_http import Answer, Client
from restarts.course import ADDRESSES, Course
from simulated import NAME, host, serve
from steady_load import Outcomes, steady
from vllmd.act.refusal import AT_ONCE

LIMIT_S = 60.0
# The keep-alive time is waited for, so that no connection is reused while its server stops.
KEEP_ALIVE = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "3"}
ENVIRON = {**host(start_s=1.5), **KEEP_ALIVE}
SETTINGS = {"engine": {"drain_timeout": "10s", "hold_timeout": "30s", "gate": False}}


def restarted(daemon: VllmdProcess, seen: Outcomes, generation: int) -> None:
    """Restart the server, and wait until it has served for a while."""
    assert daemon.ask("restart").returncode == 0
    daemon.wait_serving(generation, LIMIT_S)
    before = seen.ended
    daemon.wait(lambda _: seen.ended >= before + 40, "the load goes on", LIMIT_S)


def next_begins(daemon: VllmdProcess) -> None:
    """Restart the first server, and wait until the next launch is begun."""
    assert daemon.ask("restart").returncode == 0
    daemon.wait(lambda i: i["generation"] == 2, "the next launch", LIMIT_S)


@pytest.mark.parametrize("address", ADDRESSES)
def test_two_planned_restarts_lose_no_request(tmp_path: Path, address: str) -> None:
    """Each of a thousand requests at 50 a second is answered, as `make restarts` tries it with ten thousand."""
    with own_network():
        seen = Course(address, requests=1000, rate=50, restarts=2, start_s=2, kept_s=0.5, environ=KEEP_ALIVE).run(
            tmp_path
        )
    assert seen.errors == []
    assert seen.ended >= 1000
    assert min(seen.outages_s(2)) > 2.0


def told_of(instance: dict[str, Any]) -> dict[str, Any]:
    """Return what the last change of a status says of its restart."""
    found: dict[str, Any] = instance["decisions"][-1]["outcome"]["restart"]
    return found


def test_what_planned_restarts_meant_for_clients_is_told(tmp_path: Path) -> None:
    """How many waited, and the longest for how long; that none was lost."""
    with own_network(), running(tmp_path, serve(free_port()), SETTINGS, ENVIRON) as daemon:
        instance = daemon.wait_serving(1, LIMIT_S)
        with steady(instance["url"], NAME, rate=20) as seen:
            restarted(daemon, seen, 2)
            restarted(daemon, seen, 3)
            daemon.wait(lambda _: seen.ended >= 200, "two hundred requests", LIMIT_S)
        assert seen.errors == []
        assert max(seen.took_s) > 1.0
        assert daemon.log().count("the port is no longer parked") == 2
        told = told_of(daemon.wait_serving(3, LIMIT_S))
        assert (told["kind"], told["requests_cut"], told["requests_refused"]) == ("planned", 0, 0)
        assert told["connections_held"] == told["most_held_at_once"] > 10
        assert 1.0 < told["longest_wait_seconds"] <= max(seen.took_s)


def test_a_server_with_nothing_left_to_do_is_not_waited_for(tmp_path: Path) -> None:
    """All connections wait for its end, and its engine would take ten seconds for that."""
    environ = {**host(start_s=1.5, teardown_s=10), **KEEP_ALIVE}
    with own_network(), running(tmp_path, serve(free_port()), SETTINGS, environ) as daemon:
        old = daemon.wait_serving(1, LIMIT_S)
        with steady(old["url"], NAME, rate=20) as seen:
            restarted(daemon, seen, 2)
        assert seen.errors == []
        assert 1.0 < max(seen.took_s) < 10.0
        assert "[shutdown] API server: shutdown triggered" in Path(old["log"]).read_text(encoding="utf-8")


def test_a_plain_restart_loses_requests_and_says_why_it_is_plain(tmp_path: Path) -> None:
    """Without the kernel's setting connections are refused until the next server listens."""
    with own_network(migrating=False), running(tmp_path, serve(free_port()), SETTINGS, ENVIRON) as daemon:
        instance = daemon.wait_serving(1, LIMIT_S)
        with steady(instance["url"], NAME, rate=20) as seen:
            restarted(daemon, seen, 2)
        assert seen.errors
        told = told_of(daemon.wait_serving(2, LIMIT_S))
        assert "net.ipv4.tcp_migrate_req is 0" in told["plain"]
        assert (told["kind"], told["connections_held"]) == ("plain", None)


def test_a_next_server_without_the_shim_finds_its_port_free(tmp_path: Path) -> None:
    """It could not share it: the port is not parked for it."""
    argv = serve(free_port())
    with own_network(), running(tmp_path, argv, SETTINGS, ENVIRON) as daemon:
        daemon.wait_serving(1, LIMIT_S)
        daemon.configure(argv, {"engine": {**SETTINGS["engine"], "shim": False}})
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait(lambda _: "configuration taken" in daemon.log(), "the reload", LIMIT_S)
        assert daemon.ask("restart").returncode == 0
        instance = daemon.wait_serving(2, LIMIT_S)
        assert instance["launches"] == {"first": 1, "admin": 1}
        assert "engine.shim" in told_of(instance)["plain"]


def ask_in(pool: ThreadPoolExecutor, url: str, tokens: int = 4) -> "Future[httpx.Response]":
    """Send one completion from another thread."""
    body = {"model": NAME, "prompt": "one", "max_tokens": tokens, "ignore_eos": True}
    return pool.submit(httpx.post, f"{url}/v1/completions", json=body, timeout=LIMIT_S)


def ask_many(pool: ThreadPoolExecutor, url: str, count: int) -> "Future[list[Answer]]":
    """Send so many completions at once, each on a connection of its own."""
    body = json.dumps({"model": NAME, "prompt": "one", "max_tokens": 4}).encode()

    async def all_of_them() -> list[Answer]:
        async with asyncio.timeout(LIMIT_S):
            asked = (Client(url, kept_s=0).post("/v1/completions", body) for _ in range(count))
            return await asyncio.gather(*asked)

    return pool.submit(lambda: asyncio.run(all_of_them()))


def refused(answer: Answer) -> bool:
    """Whether an answer is the promised refusal: 503, when to come again, an error as OpenAI's API has it."""
    if answer.status != 503:
        return False
    assert int(answer.headers["retry-after"]) > 0
    assert answer.headers["content-type"] == "application/json"
    error = json.loads(answer.body)["error"]
    assert (error["code"], error["type"], error["param"]) == (503, "ServiceUnavailableError", None)
    assert "restarted" in error["message"]
    return True


def test_what_waits_for_too_long_is_told_when_to_come_again(tmp_path: Path) -> None:
    """Past hold_timeout what waited and what comes gets 503, as OpenAI's API says it, and then the server serves."""
    settings = {"engine": {**SETTINGS["engine"], "hold_timeout": "2s"}}
    environ = {**ENVIRON, **host(start_s=10)}
    with own_network(), running(tmp_path, serve(free_port()), settings, environ) as daemon:
        url = daemon.wait_serving(1, LIMIT_S)["url"]
        with ThreadPoolExecutor() as pool:
            next_begins(daemon)
            waited = ask_many(pool, url, 20).result()
            later = ask_many(pool, url, 1).result()
        assert all(map(refused, waited + later))
        told = told_of(daemon.wait_serving(2, LIMIT_S))
        assert told["connections_held"] == told["requests_refused"] == 21
        assert httpx.get(f"{url}/health").status_code == 200


def test_what_the_kernel_has_no_room_for_is_told_when_to_come_again(tmp_path: Path) -> None:
    """Of more connections than can wait, the first get 503, and the others are served."""
    with own_network():
        Path("/proc/sys/net/core/somaxconn").write_text("64")
        with running(tmp_path, serve(free_port()), SETTINGS, {**ENVIRON, **host(start_s=6)}) as daemon:
            url = daemon.wait_serving(1, LIMIT_S)["url"]
            with ThreadPoolExecutor() as pool:
                next_begins(daemon)
                answers = ask_many(pool, url, 100).result()
            served = [answer for answer in answers if not refused(answer)]
            assert {answer.status for answer in served} == {200}
            assert 40 <= len(served) <= 48  # three quarters of 64, which vllmd's own scrapes share
            assert "net.core.somaxconn is low" in daemon.log()


def test_what_waits_is_served_by_the_fallback_of_a_server_that_failed(tmp_path: Path) -> None:
    """The next server finds no memory; the one after it, with other flags, gets what waits."""
    other = tmp_path / "other_gib"
    other.write_text("0")
    environ = {**ENVIRON, **host(start_s=1.5, other_used_file=str(other))}
    with own_network(), running(tmp_path / "run", serve(free_port()), SETTINGS, environ) as daemon:
        url = daemon.wait_serving(1, LIMIT_S)["url"]
        with steady(url, NAME, rate=20) as seen:
            other.write_text("16")
            restarted(daemon, seen, 3)
        assert seen.errors == []
        assert "event=failure" in daemon.log()
        assert daemon.log().count("the port is no longer parked") == 1


def test_a_stop_in_the_middle_answers_what_waits(tmp_path: Path) -> None:
    """The operator stops vllmd while the next server starts: what waits is told so, and nothing is left."""
    environ = {**ENVIRON, **host(start_s=10)}
    with own_network(), running(tmp_path, serve(free_port()), SETTINGS, environ) as daemon:
        url = daemon.wait_serving(1, LIMIT_S)["url"]
        with ThreadPoolExecutor() as pool:
            next_begins(daemon)
            waiting = ask_in(pool, url)
            time.sleep(0.5)  # until it is sent, which only the client knows
            daemon.stop()
            assert waiting.result().status_code == 503


def test_a_request_that_does_not_end_is_cut_at_the_drains_limit(tmp_path: Path) -> None:
    """The restart goes on without it, and its number is in the log."""
    settings = {"engine": {**SETTINGS["engine"], "drain_timeout": "2s"}}
    with own_network(), running(tmp_path, serve(free_port()), settings, ENVIRON) as daemon:
        url = daemon.wait_serving(1, LIMIT_S)["url"]
        with ThreadPoolExecutor() as pool:
            endless = ask_in(pool, url, tokens=20_000)
            time.sleep(0.5)  # likewise
            daemon.ask("restart")
            told = told_of(daemon.wait_serving(2, LIMIT_S))
            assert endless.exception() is not None or endless.result().status_code == 500
        assert "requests=1" in daemon.log()
        assert told["requests_cut"] == 1


def test_the_next_vllmd_ends_a_drain_that_the_one_before_began(tmp_path: Path) -> None:
    """What waited when vllmd was killed is served by the server that it drained, which keeps connections again."""
    argv, body = serve(free_port()), {"model": NAME, "prompt": "one", "max_tokens": 20_000, "ignore_eos": True}
    with own_network(), running(tmp_path, argv, SETTINGS, ENVIRON) as first:
        url = first.wait_serving(1, LIMIT_S)["url"]
        with ThreadPoolExecutor() as pool, httpx.stream("POST", f"{url}/v1/completions", json={**body, "stream": True}):
            first.ask("restart")
            first.wait(lambda i: i["state"] == "draining", "the drain", LIMIT_S)
            waiting = ask_in(pool, url)
            first.process.kill()
            first.process.wait(LIMIT_S)
            assert waiting.result().status_code == 200
            assert waiting.result().headers["connection"] == "close"
            with running(tmp_path, argv, SETTINGS, ENVIRON) as second:
                second.wait_serving(1, LIMIT_S)
                assert httpx.get(f"{url}/health").headers["connection"] == "keep-alive"


def test_what_waits_is_reset_when_vllmd_is_killed_and_no_server_listens(tmp_path: Path) -> None:
    """At once, and not at some time-out of the client's; the next vllmd goes on with the server that starts."""
    argv, environ = serve(free_port()), {**ENVIRON, **host(start_s=8)}
    with own_network(), running(tmp_path, argv, SETTINGS, environ) as first:
        url = first.wait_serving(1, LIMIT_S)["url"]
        with ThreadPoolExecutor() as pool:
            first.ask("restart")
            first.wait(lambda i: i["generation"] == 2, "the next launch", LIMIT_S)
            waiting = ask_in(pool, url)
            time.sleep(0.5)  # until it is sent, which only the client knows
            first.process.kill()
            assert isinstance(waiting.exception(LIMIT_S / 10), httpx.ReadError)
        with running(tmp_path, argv, SETTINGS, environ) as second:
            second.wait_serving(2, LIMIT_S)
            assert httpx.get(f"{url}/health").status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_all_that_waits_is_told_that_no_server_comes(tmp_path: Path, number: signal.Signals) -> None:
    """More than are answered at once: vllmd ends while the next server starts, whether it ends or leaves that one."""
    environ = {**ENVIRON, **host(start_s=8)}
    with own_network(), running(tmp_path, serve(free_port()), SETTINGS, environ) as daemon:
        url = daemon.wait_serving(1, LIMIT_S)["url"]
        with ThreadPoolExecutor() as pool:
            next_begins(daemon)
            waiting = ask_many(pool, url, 2 * AT_ONCE + 50)
            time.sleep(1.5)  # until they are sent, which only the client knows
            daemon.process.send_signal(number)
            assert daemon.wait_ended(LIMIT_S) == 0
            assert all(map(refused, waiting.result()))
        daemon.destroy()
