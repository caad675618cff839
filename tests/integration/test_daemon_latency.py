"""vllmd over the simulated server under load: a slip of the ITL target, acted on or advised."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx

from e2e.load import Clients, traffic
from e2e.vllmd_process import free_port, running
from simulated import host, serve

LIMIT_S = 60.0
# Steps of 8192 tokens take 6 ms + 8192 x 28 us = 235 ms here, of 1024 tokens 35 ms; 99 % within 50 ms are wanted.
TARGET = {"itl_p99": "50ms", "judge_window": "4s", "min_requests": 50}
BUDGET = {"soak": "6s", "restarts_per_hour": 3}
MIX = (Clients(3, 200, 150), Clients(2, 7000, 8))


def settings(mode: str, *, shim: bool = True) -> dict[str, dict[str, Any]]:
    """Return short windows in a latency mode; without the shim nothing is live."""
    return {
        "mode": {"memory": "active", "latency": mode},
        "slo": TARGET,
        "budget": BUDGET,
        "guard": {"max-num-batched-tokens": {"min": 256}},
        "engine": {"scrape_interval": "500ms", "drain_timeout": "1s", "shim": shim},
    }


def batched_tokens(instance: dict[str, Any]) -> int:
    """Return the batched tokens in force."""
    return next(int(f["value"]) for f in instance["flags"] if f["name"] == "max-num-batched-tokens")


def test_a_slip_restarts_once_with_fewer_tokens_and_is_verified(tmp_path: Path) -> None:
    """The decision, its reason and its verification stand in status, /metrics and the log."""
    port = free_port()
    argv = serve(port, "--max-num-batched-tokens", "8192", "--max-num-seqs", "64", "--max-model-len", "16384")
    with running(tmp_path, argv, settings("active", shim=False), host()) as daemon:
        daemon.wait_serving(1, LIMIT_S)
        with traffic(f"http://127.0.0.1:{port}", "simulated/llama-8b", MIX):
            instance = daemon.wait(
                lambda i: [d for d in i.get("decisions", []) if d["verification"]], "a verification", LIMIT_S
            )
            decision = next(d for d in instance["decisions"] if d["verification"])
            assert decision["action"] == "restart"
            assert decision["changes"] == [{"flag": "max-num-batched-tokens", "from": "8192", "to": "4096"}]
            assert decision["verification"]["effect"] == "better"
            assert "within 50 ms" in decision["message"]
            page = httpx.get(daemon.metrics_url).text
        assert 'vllmd_decisions_total{action="restart",name="default",trigger="itl_p99"}' in page
        assert f'id="{decision["id"]}"' in page
        assert f"event=verification id={decision['id']}" in daemon.log()


def test_a_slip_is_mended_live_and_outlives_a_crash_and_a_kill_of_vllmd(tmp_path: Path) -> None:
    """The same process and no failed request; the next server gets the value again, and the next vllmd knows of it."""
    port = free_port()
    argv = serve(port, "--max-num-batched-tokens", "8192", "--max-num-seqs", "64", "--max-model-len", "16384")
    # Of the steps below 4096 the simulation makes none worse; the guard keeps it to one.
    chosen = {**settings("active"), "guard": {"max-num-batched-tokens": {"min": 4096}}}
    with running(tmp_path, argv, chosen, host()) as daemon:
        before = daemon.wait_serving(1, LIMIT_S)
        with traffic(f"http://127.0.0.1:{port}", "simulated/llama-8b", MIX) as observed:
            instance = daemon.wait(
                lambda i: [d for d in i.get("decisions", []) if d["verification"]], "a verification", LIMIT_S
            )
            assert observed.errors == []
        (decision,) = instance["decisions"]
        assert (decision["action"], decision["outcome"]["outage_seconds"]) == ("live", 0)
        assert decision["changes"] == [{"flag": "max-num-batched-tokens", "from": "8192", "to": "4096"}]
        assert decision["verification"]["effect"] == "better"
        assert (instance["pid"], instance["launches"]) == (before["pid"], {"first": 1})
        assert instance["budget"]["restarts_hour"]["used"] == 0
        page = httpx.get(daemon.metrics_url).text
        assert 'vllmd_decisions_total{action="live",name="default",trigger="itl_p99"}' in page
        assert f'vllmd_decision_verification{{effect="better",id="{decision["id"]}"' in page

        os.kill(instance["pid"], signal.SIGKILL)
        again = daemon.wait_serving(2, LIMIT_S)
        assert batched_tokens(again) == 8192
        daemon.wait(lambda i: asked(i) == 4096, "the value again", LIMIT_S)
        daemon.process.kill()
        daemon.process.wait(LIMIT_S)
        with running(tmp_path, argv, chosen, host()) as later:
            adopted = later.wait(lambda i: i["state"] == "serving" and asked(i) == 4096, "the value still", LIMIT_S)
            assert (adopted["pid"], adopted["generation"]) == (again["pid"], 2)
            assert [d["action"] for d in adopted["decisions"]].count("live") == 1


def asked(instance: dict[str, Any]) -> int | None:
    """Return the batched tokens that are asked for live."""
    knobs = (instance.get("live") or {}).get("flags", [])
    return next((knob["asked"] for knob in knobs if knob["flag"] == "max-num-batched-tokens"), None)


def test_advice_is_the_same_decision_without_a_restart(tmp_path: Path) -> None:
    """In advisory mode the decision is recorded once, and the server is the one that was first launched."""
    port = free_port()
    argv = serve(port, "--max-num-batched-tokens", "8192", "--max-num-seqs", "64", "--max-model-len", "16384")
    with running(tmp_path, argv, settings("advisory"), host()) as daemon:
        pid = daemon.wait_serving(1, LIMIT_S)["pid"]
        with traffic(f"http://127.0.0.1:{port}", "simulated/llama-8b", MIX) as observed:
            daemon.wait(lambda i: i.get("decisions"), "a decision", LIMIT_S)
            instance = daemon.wait(
                lambda i: i["last_decision"]["reason"] == "already_advised", "the advice is not repeated", LIMIT_S
            )
        (decision,) = instance["decisions"]
        assert decision["action"] == "advise"
        assert decision["changes"] == [{"flag": "max-num-batched-tokens", "from": "8192", "to": "4096"}]
        assert (instance["pid"], batched_tokens(instance)) == (pid, 8192)
        assert not observed.errors
