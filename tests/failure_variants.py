"""Other ways into the classes of failure_cases, and other ways out; the old engine's among them."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

from e2e.vllmd_process import Instance, VllmdProcess
from failure_cases import ASK_LIMIT_S, Case, again, ask_long, end_from_outside, operators
from simulated import NAME
from vllmd.model.failure import FailureClass

_CROWD = 6  # requests at a time
_OLD = {"version": "0.7.3"}  # the last one whose engine is V0 unless told otherwise


def kill_worker(daemon: VllmdProcess, instance: Instance) -> None:
    """Kill a worker of the server, as the kernel does for want of memory."""
    del instance
    _workers(daemon)[-1].kill()


def stop_worker(daemon: VllmdProcess, instance: Instance) -> None:
    """Let a worker stand still in the middle of an answer, and wait for the rest, which does not come."""
    body = {"model": NAME, "prompt": "x", "max_tokens": 5000, "stream": True}
    url = f"{instance['url']}/v1/completions"
    with (
        suppress(httpx.RemoteProtocolError),  # the server is killed
        httpx.stream("POST", url, json=body, timeout=ASK_LIMIT_S) as response,
    ):
        tokens = response.iter_lines()
        next(tokens)
        _workers(daemon)[-1].suspend()
        for _ in tokens:
            pass


def _workers(daemon: VllmdProcess) -> list[psutil.Process]:
    """Return the workers of the server."""
    return [process for process in daemon.server_processes() if "VLLM::Worker" in " ".join(process.cmdline())]


def crowd(daemon: VllmdProcess, instance: Instance) -> None:
    """Ask for more than the KV pool holds at once, which costs some requests their place but none its answer.

    Two answers of 1,400 tokens are more than its 2,464; each takes seconds, so that any two meet.
    """
    body = {"model": NAME, "prompt": [1] * 1000, "max_tokens": 400}
    with ThreadPoolExecutor(_CROWD) as pool:
        answers = pool.map(
            lambda _: httpx.post(f"{instance['url']}/v1/completions", json=body, timeout=ASK_LIMIT_S).status_code,
            range(_CROWD),
        )
        assert set(answers) == {200}
    log = Path(instance["log"]).read_text(encoding="utf-8")
    assert "is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space" in log
    now = daemon.status()
    assert (now["state"], now["generation"], now["last_failure"]) == ("serving", 1, None)


def crowd_and_end(daemon: VllmdProcess, instance: Instance) -> None:
    """Crowd the server, see that nothing comes of it, and end the server from outside."""
    crowd(daemon, instance)
    end_from_outside(daemon, instance)


VARIANTS = (
    Case(
        "the pooler's buffers, sequences kept: less utilization",
        FailureClass.WARMUP_OOM,
        ("--gpu-memory-utilization", "0.97", "--runner", "pooling"),
        {"pooler_bytes_per_seq": 3_000_000},
        changed={"gpu-memory-utilization": (0.9, 0.96)},
    ),
    Case(
        "the largest step: fewer batched tokens",
        FailureClass.WARMUP_OOM,
        host={"weights_gib": 40, "activation_bytes_per_token": 5_500_000},
        changed={"max-num-batched-tokens": (1024, 4096)},
    ),
    operators(
        Case(
            "a tier that the operator keeps: held",
            FailureClass.HOST_OOM,
            ("--kv-offloading-size", "600"),
            held="give the server more memory of the host",
        ),
    ),
    operators(
        Case(
            "a value that is not to be had: held",
            FailureClass.INVALID_FLAG,
            ("--dtype", "float8"),
            held="argument --dtype: invalid choice: 'float8'",
            exit_code=2,
        ),
    ),
    operators(
        Case(
            "heads that cannot be dealt out: held",
            FailureClass.INVALID_COMBINATION,
            ("--tensor-parallel-size", "3"),
            held="must be divisible by tensor parallel size (3)",
        ),
    ),
    again(
        Case(
            "a hub that is silent once: asked again",
            FailureClass.MODEL_ACCESS,
            host={"fault": "hub-silent"},
        ),
    ),
    again(
        Case(
            "a worker that dies while serving: again",
            FailureClass.INFRA_FAULT,
            ("--tensor-parallel-size", "2"),
            {"fault": "process-dies", "fault_code": -11},
            provoke=ask_long,
            exit_code=0,
        ),
    ),
    again(
        Case(
            "links that stop during a start: again",
            FailureClass.INFRA_FAULT,
            ("--tensor-parallel-size", "2"),
            {"fault": "nccl-timeout", "fault_at": "start"},
        ),
    ),
    again(
        Case(
            "a start that ends in order: again",
            FailureClass.INFRA_FAULT,
            host={"fault": "clean-exit"},
            exit_code=0,
        ),
    ),
    operators(
        Case(
            "a GPU off the bus: held",
            FailureClass.INFRA_FAULT,
            host={"fault": "off-the-bus", "fault_at": "start"},
            held="the host must be restarted",
        ),
    ),
    operators(
        Case(
            "a small /dev/shm: held",
            FailureClass.INFRA_FAULT,
            ("--tensor-parallel-size", "2"),
            {"shm_mib": 64},
            held="may be too small (--shm-size or --ipc=host)",
        ),
    ),
    operators(
        Case(
            "vLLM's own deadline: held",
            FailureClass.INFRA_FAULT,
            host={"start_s": 4},
            environ={"VLLM_ENGINE_READY_TIMEOUT_S": "1"},
            held="VLLM_ENGINE_READY_TIMEOUT_S=1800",
        ),
    ),
    again(
        Case(
            "a worker that does not answer while serving: again",
            FailureClass.HANG,
            host={"fault": "rpc-timeout", "silence_s": 0.5},
            provoke=ask_long,
            exit_code=0,
        ),
    ),
    again(
        Case(
            "a start that only complains: ended, and again",
            FailureClass.HANG,
            host={"fault": "hang-with-hints", "fault_at": "start", "silence_s": 2.5},
            settings={"engine": {"start_timeout": "2s"}},
            exit_code=None,
        ),
    ),
    operators(
        Case(
            "a fixed pool beyond the device: held",
            FailureClass.UTILIZATION_TOO_HIGH,
            ("--kv-cache-memory-bytes", "90G"),
            held="lower --kv-cache-memory-bytes to 63.02 GiB or less",
        ),
    ),
    again(
        Case(
            "memory of the host that the kernel takes back: again",
            FailureClass.INFRA_FAULT,
            host={"fault": "process-dies", "fault_at": "start"},
        ),
    ),
    Case(
        "not a single token fits: up",
        FailureClass.UTILIZATION_TOO_LOW,
        ("--gpu-memory-utilization", "0.2", "--max-model-len", "auto"),
        changed={"gpu-memory-utilization": (0.21, 0.4)},
    ),
    again(
        Case(
            "a worker that is killed while serving: again",
            FailureClass.INFRA_FAULT,
            ("--tensor-parallel-size", "2"),
            provoke=kill_worker,
            exit_code=0,
        ),
    ),
    again(
        Case(
            "a worker that stands still while serving: ended, and again",
            FailureClass.HANG,
            ("--tensor-parallel-size", "2"),
            settings={"engine": {"stall_timeout": "2s"}},
            provoke=stop_worker,
            exit_code=None,
        ),
    ),
    Case(
        "the old engine, one request does not fit: up",
        FailureClass.MAX_MODEL_LEN_TOO_LONG,
        ("--gpu-memory-utilization", "0.25"),
        _OLD,
        changed={"gpu-memory-utilization": (0.26, 0.35)},
    ),
    Case(
        "the old engine, one request does not fit and may be shorter: what fits",
        FailureClass.MAX_MODEL_LEN_TOO_LONG,
        ("--gpu-memory-utilization", "0.25"),
        _OLD,
        settings={"guard": {"max-model-len": {"min": 8192}, "gpu-memory-utilization": {"max": 0.25}}},
        changed={"max-model-len": (23_000, 23_424)},
    ),
    Case(
        "the old engine, nothing left for the pool: up",
        FailureClass.UTILIZATION_TOO_LOW,
        ("--gpu-memory-utilization", "0.2"),
        _OLD,
        changed={"gpu-memory-utilization": (0.21, 0.4)},
    ),
    Case(
        "the old engine, chosen by its variable: up",
        FailureClass.MAX_MODEL_LEN_TOO_LONG,
        ("--gpu-memory-utilization", "0.25"),
        {"version": "0.10.2"},
        {"VLLM_USE_V1": "0"},
        changed={"gpu-memory-utilization": (0.26, 0.35)},
    ),
    again(
        Case(
            "the old engine ends in its start without a word: again",
            FailureClass.INFRA_FAULT,
            host={**_OLD, "fault": "process-dies", "fault_at": "start"},
        ),
    ),
    again(
        Case(
            "the old engine ends while serving without a word: again",
            FailureClass.INFRA_FAULT,
            host={**_OLD, "fault": "process-dies"},
            provoke=ask_long,
            exit_code=0,
        ),
    ),
    Case(
        "the old engine, a long prompt while serving: less utilization",
        FailureClass.RUNTIME_OOM,
        host={**_OLD, "runtime_bytes_per_token": 4_000_000},
        provoke=ask_long,
        changed={"gpu-memory-utilization": (0.8, 0.91)},
        exit_code=0,
    ),
    Case(
        "the old engine warns of preemptions, and a SIGTERM from outside: again",
        FailureClass.EXTERNAL_STOP,
        ("--max-model-len", "2048", "--gpu-memory-utilization", "0.218"),
        _OLD,
        provoke=crowd_and_end,
        exit_code=0,
        action="retry",
    ),
)
