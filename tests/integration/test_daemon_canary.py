"""vllmd over the simulated server: a hang that began while it was idle is found by a canary, and nothing else is."""

import signal
import time
from pathlib import Path

import httpx

from e2e.vllmd_process import VllmdProcess, free_port, running
from simulated import host, serve
from stub_server import serving

LIMIT_S = 30.0
STALL_S = 3.0
CANARY_S = 1.0
FOUND_WITHIN_S = STALL_S + 5.0
ENGINE = {"stall_timeout": f"{STALL_S:g}s", "scrape_interval": "250ms"}
SETTINGS = {"engine": {**ENGINE, "canary": f"{CANARY_S:g}s"}}
KEY = "sk-4f1b6d2a90c7e358"
IDLE_PAGE = b"""\
vllm:num_requests_running{engine="0"} 0.0
vllm:num_requests_waiting{engine="0"} 0.0
vllm:prompt_tokens_total{engine="0"} 0.0
vllm:generation_tokens_total{engine="0"} 0.0
vllm:iteration_tokens_total_count{engine="0"} 0.0
"""


def canaries(daemon: VllmdProcess) -> dict[str, float]:
    """Return how many canaries came to which end, by vllmd's own metrics."""
    page = httpx.get(daemon.metrics_url, timeout=LIMIT_S).text
    lines = [line for line in page.splitlines() if line.startswith("vllmd_canary_total{")]
    return {line.partition('result="')[2].partition('"')[0]: float(line.split()[-1]) for line in lines}


def until(daemon: VllmdProcess, result: str, times: int) -> None:
    """Wait until so many canaries came to this end."""
    deadline_s = time.monotonic() + LIMIT_S
    while canaries(daemon)[result] < times:
        assert time.monotonic() < deadline_s, daemon.story(f"no canary: {canaries(daemon)}", daemon.status())
        time.sleep(0.1)  # a metrics page sends no event


def test_an_engine_that_was_stopped_while_idle_is_found(tmp_path: Path) -> None:
    """Within the limit and 5 s of its end, with the key of its command, which appears nowhere."""
    port = free_port()
    with running(tmp_path, serve(port, "--api-key", KEY), SETTINGS, host()) as daemon:
        daemon.wait_serving(1, LIMIT_S)
        until(daemon, "answered", 2)
        engine = next(p for p in daemon.server_processes() if "EngineCore" in " ".join(p.cmdline()))
        engine.send_signal(signal.SIGSTOP)
        began_s = time.monotonic()
        daemon.wait(lambda i: i["last_failure"] is not None, "the hang is found", FOUND_WITHIN_S + LIMIT_S)
        assert time.monotonic() - began_s < FOUND_WITHIN_S
        instance = daemon.wait_serving(2, LIMIT_S)
        assert instance["last_failure"]["class"] == "hang"
        assert "no token for a canary" in instance["last_failure"]["summary"]
        assert canaries(daemon)["silent"] == 1
        until(daemon, "answered", 3)
        evidence = Path(instance["log"]).with_name("evidence-0001.txt").read_text(encoding="utf-8")
        assert f"{engine.pid} " in evidence
        page = httpx.get(daemon.metrics_url, timeout=LIMIT_S).text
        told = "".join((daemon.log(), evidence, page, str(instance), daemon.ask("explain").stdout))
    assert KEY not in told


def test_without_the_key_a_server_is_left_alone(tmp_path: Path) -> None:
    """Off is the default: no request comes, and a stopped engine that nobody asks is not found."""
    port = free_port()
    with running(tmp_path, serve(port), {"engine": ENGINE}, host()) as daemon:
        instance = daemon.wait_serving(1, LIMIT_S)
        time.sleep(2 * STALL_S)  # that nothing happens sends no event
        assert set(canaries(daemon).values()) == {0.0}
        assert "/v1/" not in Path(instance["log"]).read_text(encoding="utf-8").partition("startup complete")[2]
        assert daemon.status()["last_failure"] is None


def test_a_server_that_refuses_is_asked_once(tmp_path: Path) -> None:
    """401: no hang, one line in the log, and no second canary."""
    with serving({"/metrics": (200, IDLE_PAGE), "/health": (200, b""), "/v1/models": (401, {})}) as stub:
        settings = {"engine": {**SETTINGS["engine"], "url": stub.url}}
        with running(tmp_path, serve(free_port()), settings, host()) as daemon:
            daemon.wait_serving(1, LIMIT_S)
            until(daemon, "refused", 1)
            time.sleep(2 * STALL_S)  # that nothing happens sends no event
            assert [path for path, _, _ in stub.asked if path.startswith("/v1/")] == ["/v1/models"]
            assert daemon.log().count("no canary until the next launch") == 1
            assert "/v1/models answered 401" in daemon.log()
            instance = daemon.status()
            assert (instance["generation"], instance["last_failure"]) == (1, None)
