"""The simulated `vllm serve` as a real process: start, failures, serving, deaths and ends."""

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from sim_process import LIMIT_S, LONG, Launch, launching


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start simulated servers; afterwards nothing of their groups is left."""
    with launching(tmp_path) as start:
        yield start


def test_a_start_is_quick_and_says_that_it_is_simulated(launch: Launch) -> None:
    """The first line, /version and the process titles say what it is; vLLM's own lines carry the numbers."""
    sim = launch("--max-model-len", "8192", "--gpu-memory-utilization", "0.9").serving()
    spent = [psutil.Process(pid).cpu_times() for pid in (sim.process.pid, sim.engine().pid)]
    assert sum(times.user + times.system for times in spent) < 1.0  # beside start_s, however busy the machine is
    assert sim.text().startswith("vllmd_sim: SIMULATED vLLM 0.26.0")
    assert httpx.get(f"{sim.url}/version").json() == {"version": "0.26.0", "simulated": True}
    assert sim.engine().name() == sim.engine().cmdline()[0] == "VLLM::EngineCore"
    for line in (
        r"\(APIServer pid=\d+\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[scheduler.py:\d+\] Chunked prefill is enabled with",
        r"\(EngineCore pid=\d+\) INFO .* Model loading took 16.0 GiB memory and \d+\.\d{6} seconds",
        r"GPU KV cache size: 441,376 tokens",
        r"Desired GPU memory utilization is \(0\.9, 72\.0 GiB\)",
        r"`--kv-cache-memory=\d+` \(53\.73 GiB\) to fit into requested memory",
    ):
        assert re.search(line, sim.text()), line


@pytest.mark.parametrize(
    ("argv", "host", "code", "words"),
    [
        (["--no-such-flag"], {}, 2, "vllm serve: error: unrecognized arguments: --no-such-flag"),
        ([], {"no_such_key": 1}, 2, "VLLMD_SIM: unknown key 'no_such_key'"),
        (["--max-model-len", "99999"], {}, 1, "User-specified max_model_len (99999) is greater than the derived"),
        (
            ["--max-num-batched-tokens", "64", "--max-num-seqs", "128"],
            {},
            1,
            "(64) must be greater than or equal to max",
        ),
        ([], {"other_used_gib": 20}, 1, "ValueError: Free memory on device cuda:0 (59.49/80.0 GiB) on startup is less"),
        (["--gpu-memory-utilization", "0.2"], {}, 1, "ValueError: No available memory for the cache blocks."),
        (["--gpu-memory-utilization", "0.25"], {}, 1, "Based on the available memory, the estimated maximum model"),
        (["--gpu-memory-utilization", "0.5"], {"weights_gib": 90}, 1, "Failed to load model - not enough GPU memory."),
        (["--gpu-memory-utilization", "0.99"], {}, 1, "warming up sampler with 1024 dummy requests"),
        (
            ["--gpu-memory-utilization", "0.99"],
            {"graphs_gib": 4, "graphs_estimate_gib": 0},
            1,
            "self.model_runner.capture",
        ),
        (["--gpu-memory-utilization", "0.25"], {"version": "0.7.3"}, 1, "that can be stored in KV cache (23424). Try"),
        ([], {"version": "0.7.3", "fault": "process-dies", "fault_at": "start"}, 1, "Loading model weights took 16.00"),
    ],
)
def test_a_start_fails_as_vllm_fails(
    launch: Launch, argv: list[str], host: dict[str, Any], code: int, words: str
) -> None:
    """Each failure has vLLM's words and exit code; after an engine's failure the last traceback is the generic one."""
    sim = launch(*argv, **host)
    assert sim.ended() == code
    assert words in sim.text()
    if "V0 LLM engine" in sim.text():
        tail = "RuntimeError: Engine process failed to start. See stack trace for the root cause."
        assert sim.text().rstrip().endswith(tail)
    if "EngineCore failed to start." in sim.text():
        tail = "initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"
        assert sim.text().rstrip().endswith(f"RuntimeError: Engine core {tail}")


def test_the_numbers_of_a_failure_lead_to_a_start(launch: Launch) -> None:
    """A negative pool is printed above its failure; the length that a small pool suggests does start."""
    none = launch("--gpu-memory-utilization", "0.2")
    none.ended()
    assert "Available KV cache memory: -2.12 GiB" in none.text()
    small = launch("--gpu-memory-utilization", "0.25")
    small.ended()
    fitting = re.search(r"estimated maximum model length is (\d+)", small.text())
    assert fitting is not None
    launch("--gpu-memory-utilization", "0.25", "--max-model-len", fitting[1]).serving()


def test_a_missing_model_is_not_found(launch: Launch) -> None:
    """A path that does not exist is taken for a repository's name, as vLLM does."""
    sim = launch(model="/no/such/model")
    assert sim.ended() == 1
    assert "HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name'" in sim.text()


def test_a_taken_port_ends_the_start_before_the_engine(launch: Launch) -> None:
    """Errno 98 from bind, exit code 1, no engine."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        sim = launch("--port", str(taken.getsockname()[1]))
        assert sim.ended() == 1
    assert "OSError: [Errno 98] Address already in use" in sim.text()
    assert "EngineCore" not in sim.text()


def test_the_port_is_bound_early_and_listens_late(launch: Launch) -> None:
    """Until the engine is ready connections are refused, though nobody else gets the port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    sim = launch("--port", str(port), start_s=1.0)
    sim.until(lambda: "Starting to load model" in sim.text(), "loading")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
    with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
        other.bind(("127.0.0.1", port))


def test_completions_and_chat_are_served(launch: Launch) -> None:
    """Whole answers, streams that end with [DONE], keep-alive, and prompts as text or token ids."""
    sim = launch().serving()
    with httpx.Client(base_url=sim.url, timeout=LIMIT_S) as client:
        whole = client.post("/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 4}).json()
        assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
        assert whole["choices"][0]["finish_reason"] == "length"
        chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=chat) as response:
            events = [line for line in response.iter_lines() if line]
        assert events[-1] == "data: [DONE]"
        choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events[:-1]]
        assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]
        assert choices[0]["delta"]["role"] == "assistant"
        assert client.get("/v1/models", headers={"Connection": "close"}).headers["connection"] == "close"
    ports = set(re.findall(r'127\.0\.0\.1:(\d+) - "POST', sim.text()))
    assert len(ports) == 1


def test_bad_requests_are_refused(launch: Launch) -> None:
    """400, 401, 404 and 405 in OpenAI's form; the key guards /v1 only."""
    sim = launch("--api-key", "secret", "--max-model-len", "100", "--served-model-name", "a", "b").serving()
    assert sim.post("/v1/completions", prompt="x").status_code == 401
    assert httpx.get(f"{sim.url}/health").status_code == 200
    with httpx.Client(base_url=sim.url, headers={"Authorization": "Bearer secret"}, timeout=LIMIT_S) as client:

        def refused(path: str, **body: Any) -> tuple[int, str]:
            response = client.post(path, json=body)
            return response.status_code, response.json()["error"]["message"]

        assert refused("/v1/completions", model="c", prompt="x") == (404, "The model `c` does not exist.")
        code, words = refused("/v1/completions", model="b", prompt="x" * 800)
        assert (code, "maximum context length is 100 tokens" in words) == (400, True)
        assert refused("/v1/completions", model="a", prompt="x", max_tokens=0)[0] == 400
        assert client.get("/v1/completions").status_code == 405
        assert client.get("/nothing").status_code == 404
        assert client.post("/v1/completions", content=b"{").status_code == 400


def test_metrics_show_what_was_served(launch: Launch) -> None:
    """The page parses, has vLLM's names, and counts tokens, gaps and requests exactly."""
    sim = launch("--max-num-batched-tokens", "512").serving()
    sim.post("/v1/completions", prompt=[1] * 1000, max_tokens=10)
    seen = sim.metrics()
    assert (seen["prompt_tokens_total"], seen["generation_tokens_total"]) == (1000, 10)
    assert (seen["time_to_first_token_seconds_count"], seen["inter_token_latency_seconds_count"]) == (1, 9)
    assert (seen["iteration_tokens_total_count"], seen["iteration_tokens_total_sum"]) == (10, 1010)
    assert seen["request_success_total:length"] == 1
    assert seen["num_requests_running"] == seen["kv_cache_usage_perc"] == 0
    assert seen["e2e_request_latency_seconds_bucket:1.0"] == 1
    assert seen["engine_sleep_state:awake"] == 1
    assert seen["process_resident_memory_bytes"] > 0
    assert seen["num_preemptions_created"] <= time.time()
    labels = re.search(r"vllm:cache_config_info\{(.*)\} 1\.0", httpx.get(f"{sim.url}/metrics").text)
    pool = re.search(r"GPU KV cache size: (\S+) tokens", sim.text())
    assert labels is not None
    assert pool is not None
    assert 'gpu_memory_utilization="0.92"' in labels[1]
    assert f'kv_cache_size_tokens="{pool[1].replace(",", "")}"' in labels[1]


def test_disabled_statistics_leave_only_the_process(launch: Launch) -> None:
    """--disable-log-stats takes every vllm series away."""
    seen = launch("--disable-log-stats").serving().metrics()
    assert "process_resident_memory_bytes" in seen
    assert "num_requests_running" not in seen


def test_a_client_that_hangs_up_frees_the_engine(launch: Launch) -> None:
    """Its request, streamed or not, is aborted and counted so."""
    sim = launch().serving()
    with httpx.stream("POST", f"{sim.url}/v1/completions", json=LONG, timeout=LIMIT_S) as response:
        lines = response.iter_lines()
        next(lines)
        assert sim.metrics()["num_requests_running"] == 1
    sim.until(lambda: sim.metrics()["request_success_total:abort"] == 1, "aborted")
    address = httpx.URL(sim.url)
    with socket.create_connection((address.host, address.port or 0), timeout=LIMIT_S) as client:
        content = b'{"prompt": "x", "max_tokens": 5000}'
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
        sim.until(lambda: sim.metrics()["num_requests_running"] == 1, "running")
    sim.until(lambda: sim.metrics()["request_success_total:abort"] == 2, "aborted")
    sim.until(lambda: sim.metrics()["num_requests_running"] == 0, "idle")
    assert "Traceback" not in sim.text()


def test_a_killed_engine_ends_the_server_with_code_0(launch: Launch) -> None:
    """A stream in flight ends with an error under HTTP 200, the log with EngineDeadError, the process with 0."""
    sim = launch().serving()
    with httpx.stream("POST", f"{sim.url}/v1/completions", json=LONG, timeout=LIMIT_S) as response:
        lines = response.iter_lines()
        next(lines)
        sim.engine().kill()
        rest = [line for line in lines if line]
    assert response.status_code == 200
    assert "EngineCore encountered an issue" in rest[-2]
    assert rest[-1] == "data: [DONE]"
    assert sim.ended() == 0
    assert "MPClient: engine core exited unexpectedly; starting cleanup" in sim.text()
    assert "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue." in sim.text()


def test_a_killed_api_server_leaves_an_engine_that_holds_the_gpu(launch: Launch, tmp_path: Path) -> None:
    """The next start finds the memory taken; once the orphan is gone the one after it serves."""
    folder = str(tmp_path / "gpu")
    first = launch(gpu_dir=folder).serving()
    orphan = first.engine()
    first.process.kill()
    first.ended()
    second = launch(gpu_dir=folder)
    assert second.ended() == 1
    assert "ValueError: Free memory on device cuda:0 (5.38/80.0 GiB) on startup is less than desired" in second.text()
    orphan.kill()
    psutil.wait_procs([orphan], timeout=LIMIT_S)
    launch(gpu_dir=folder).serving()


def test_an_orphan_does_not_live_for_ever(launch: Launch, tmp_path: Path) -> None:
    """After orphan_s it ends by itself and gives its memory back."""
    folder = tmp_path / "gpu"
    sim = launch(gpu_dir=str(folder), orphan_s=0.2).serving()
    orphan = sim.engine()
    sim.process.kill()
    sim.ended()
    gone, _ = psutil.wait_procs([orphan], timeout=LIMIT_S)
    assert gone
    assert not list(folder.iterdir())


def test_a_runtime_oom_ends_the_server_with_code_0(launch: Launch) -> None:
    """It comes with the second request, gives 500, prints torch's numbers; a lower utilization leaves room."""
    host = {"runtime_peak_gib": 6.0, "runtime_oom_after_requests": 2}
    sim = launch("--gpu-memory-utilization", "0.95", **host).serving()
    assert sim.post("/v1/completions", prompt="x", max_tokens=2).status_code == 200
    assert sim.post("/v1/completions", prompt="x", max_tokens=2).status_code == 500
    assert sim.ended() == 0
    order = [
        "Dumping input data for V1 LLM engine",
        "EngineCore encountered a fatal error.",
        "Tried to allocate 6.00 GiB",
    ]
    order += ["is free", "AsyncLLM output_handler failed.", "EngineDeadError", "Finished server process"]
    places = [sim.text().index(words) for words in order]
    assert places == sorted(places)
    calm = launch("--gpu-memory-utilization", "0.9", **host).serving()
    assert [calm.post("/v1/completions", prompt="x", max_tokens=2).status_code for _ in range(3)] == [200] * 3


def test_sigterm_aborts_what_is_in_flight(launch: Launch) -> None:
    """Without a shutdown timeout the server ends at once, with code 0, its engine with it."""
    sim = launch().serving()
    engine = sim.engine()
    with httpx.stream("POST", f"{sim.url}/v1/completions", json=LONG, timeout=LIMIT_S) as response:
        lines = response.iter_lines()
        next(lines)
        sim.process.send_signal(signal.SIGTERM)
        assert sim.ended() == 0
    assert "stopping engine client mode=abort timeout=0s" in sim.text()
    assert not engine.is_running()


def test_sigterm_drains_within_the_shutdown_timeout(launch: Launch) -> None:
    """What is in flight finishes, what is new gets 500, /health stays 200, the code is 0."""
    sim = launch("--shutdown-timeout", "10").serving()
    body = {**LONG, "max_tokens": 400}
    with httpx.stream("POST", f"{sim.url}/v1/completions", json=body, timeout=LIMIT_S) as response:
        lines = response.iter_lines()
        next(lines)
        sim.process.send_signal(signal.SIGTERM)
        sim.until(lambda: "draining in-flight requests count=1 timeout=10s" in sim.text(), "draining")
        assert sim.post("/v1/completions", prompt="x").status_code == 500
        assert httpx.get(f"{sim.url}/health").status_code == 200
        events = [line for line in lines if line]
    assert len(events) == 400
    assert events[-1] == "data: [DONE]"
    assert sim.ended() == 0


def test_a_drain_ends_with_its_timeout(launch: Launch) -> None:
    """A request that takes longer is lost, the server still ends with 0."""
    sim = launch("--shutdown-timeout", "1").serving()
    with httpx.stream("POST", f"{sim.url}/v1/completions", json=LONG, timeout=LIMIT_S) as response:
        lines = response.iter_lines()
        next(lines)
        sim.process.send_signal(signal.SIGTERM)
        assert "InternalServerError" in [line for line in lines if line][-2]
    assert sim.ended() == 0


def test_sigterm_during_the_start_is_an_interrupt(launch: Launch) -> None:
    """The process ends by SIGINT, as Python does after a KeyboardInterrupt, and takes its engine along."""
    sim = launch(start_s=20.0)
    sim.until(lambda: "non-default args" in sim.text(), "banner")
    sim.process.send_signal(signal.SIGTERM)
    assert sim.ended() == -signal.SIGINT
    assert sim.text().rstrip().endswith("KeyboardInterrupt: terminated")


def test_an_idle_connection_ends_and_a_fresh_one_waits_for_its_request(launch: Launch) -> None:
    """The keep-alive time is counted from an answer on, as uvicorn counts it."""
    sim = launch(environ={"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "1"}).serving()
    address = urlsplit(sim.url)
    with socket.create_connection((address.hostname, address.port), LIMIT_S) as client:
        time.sleep(1.5)  # longer than that: what is tried
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        began_s = time.monotonic()
        assert client.recv(1000) == b""
        assert 0.5 < time.monotonic() - began_s < LIMIT_S
