"""Diagnosis of captured logs, of other versions' wordings, and of what only looks like a failure."""

from typing import Any

import pytest
import yaml

from captures import LOGS, Case, cases, diagnose_lines, read_log
from vllmd.decide.log_phase import phase_of
from vllmd.model.failure import FailureClass
from vllmd.model.server import Phase

GIB = 2**30
F3 = (
    "ValueError: To serve at least one request with the models's max seq len (40960), (4.38 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (4.00 GiB). Based on the available memory, the estimated "
    "maximum model length is 37376. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
    "initializing the engine."
)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has a total capacity of 139.80 "
    "GiB of which 63.56 MiB is free. Including non-PyTorch memory, this process has 126.97 GiB memory in use. Of the "
    "allocated memory 125.82 GiB is allocated by PyTorch, and 139.59 MiB is reserved by PyTorch but unallocated."
)
SERVING = "(APIServer pid=1) INFO:     Application startup complete."
STATISTICS = "INFO 07-15 21:00:52 [loggers.py:271] Engine 000: Avg prompt throughput: 412.0 tokens/s, Running: 1 reqs"
ENGINE = "(EngineCore pid=2) ERROR 11-29 16:49:53 [core.py:1332] "

WORDINGS = yaml.safe_load((LOGS / "wordings.yaml").read_text(encoding="utf-8"))

PHASES = {
    "config": {Phase.CONFIG},
    "kv-alloc": {Phase.PROFILING},
    "parse-args": {Phase.CONFIG},
    "serving": {Phase.SERVING},
    "shutdown": {Phase.SHUTDOWN},
    "warmup": {Phase.WARMUP},
}
ENDED = [case for case in cases() if case.state == "exited"]
RUNNING = [case for case in cases() if case.state != "exited"]


@pytest.mark.parametrize("case", ENDED, ids=lambda case: case.file)
def test_a_captured_end_means_what_its_label_says(case: Case) -> None:
    """Class and phase of every captured end are those of its label."""
    failure = case.failure
    assert failure.kind in case.classes
    assert failure.phase in PHASES[case.phase]
    assert failure.exit_code == case.exit_code
    assert failure.generation == 3


@pytest.mark.parametrize("case", RUNNING, ids=lambda case: case.file)
def test_a_captured_run_shows_its_phase(case: Case) -> None:
    """The log of a server that still runs shows how far it has come."""
    assert phase_of(case.lines) in PHASES[case.phase]


@pytest.mark.parametrize(
    ("file", "line", "summary"),
    [
        (
            "h200-vllm-0.26.0/max-seq-len-exceeds-kv.log",
            52,
            "KV pool too small for one request of 32768 tokens: needs 4.0 GiB, has 2.88 GiB",
        ),
        (
            "h200-vllm-0.26.0/free-memory-below-utilization.log",
            54,
            "gpu-memory-utilization 0.92 asks for 128.62 GiB, but only 78.77 GiB of 139.8 GiB is free",
        ),
        (
            "h200-vllm-0.26.0/no-memory-for-cache-blocks-70b.log",
            53,
            "no memory left for the KV pool at gpu-memory-utilization 0.92: -4.75 GiB remain",
        ),
        (
            "h200-vllm-0.26.0/runtime-oom.log",
            189,
            "out of GPU memory while serving: tried to allocate 448 MiB, 64 MiB of 139.8 GiB free",
        ),
        (
            "h200-vllm-0.26.0/batched-below-seqs.log",
            55,
            "max-num-batched-tokens 256 is below max-num-seqs 1024; raise the one or lower the other",
        ),
        (
            "h200-vllm-0.26.0/engine-core-killed.log",
            86,
            "the engine died while serving, without a word why",
        ),
        ("h200-vllm-0.26.0/unknown-flag.log", 3, "vLLM does not know --num-scheduler-steps 8; remove it"),
        ("cpu-vllm-0.32.0/fail-unknown-flag.log", 7, "vLLM does not know --no-such-flag; remove it"),
        ("cpu-vllm-0.32.0/fail-bad-model.log", 54, "no model at /srv/nonexistent"),
        (
            "cpu-vllm-0.32.0/fail-port-in-use.log",
            40,
            "port 8111 is taken; free it, or choose another with --port",
        ),
        (
            "cpu-vllm-0.32.0/fail-maxlen-gt-model.log",
            56,
            "max-model-len 999999 is longer than the model allows: 8192 at most",
        ),
        ("cpu-vllm-0.32.0/kill9-worker.log", 99, "worker VllmWorker-0 died while serving"),
        (
            "cpu-vllm-0.32.0/fail-utilization-0.02.log",
            50,
            "gpu-memory-utilization leaves nothing for the KV pool: -246 MiB of its 307 MiB remain",
        ),
        (
            "cpu-vllm-0.32.0/fail-kvspace-100GB.log",
            50,
            "the KV pool is set to 100.0 GiB, but only 13.45 GiB of 14.84 GiB is free",
        ),
    ],
)
def test_the_operator_reads_one_sentence_and_the_deciding_line(file: str, line: int, summary: str) -> None:
    """The summary is a plain sentence with the numbers, and the evidence is the line that they stand in."""
    failure = diagnose_lines(read_log(file))
    assert failure.summary == summary
    assert failure.evidence is not None
    assert failure.evidence.line == line


@pytest.mark.parametrize(
    ("file", "numbers"),
    [
        (
            "h200-vllm-0.26.0/max-seq-len-exceeds-kv-at-0.105.log",
            {
                "needed_bytes": GIB,
                "available_bytes": 0.08 * GIB,
                "fitting_tokens": 672,
                "asked_tokens": 8192,
                "utilization": 0.105,
            },
        ),
        (
            "h200-vllm-0.26.0/free-memory-below-utilization.log",
            {
                "free_bytes": 78.77 * GIB,
                "total_bytes": 139.8 * GIB,
                "requested_bytes": 128.62 * GIB,
                "utilization": 0.92,
            },
        ),
        (
            "h200-vllm-0.26.0/runtime-oom.log",
            {
                "tried_bytes": 448 * 2**20,
                "free_bytes": 63.56 * 2**20,
                "total_bytes": 139.8 * GIB,
                "utilization": 0.9,
            },
        ),
        (
            "h200-vllm-0.26.0/no-memory-for-cache-blocks-70b.log",
            {"available_bytes": -4.75 * GIB, "weights_bytes": 131.42 * GIB, "utilization": 0.92},
        ),
        (
            "cpu-vllm-0.32.0/fail-utilization-0.02.log",
            {
                "available_bytes": -0.24 * GIB,
                "requested_bytes": 0.3 * GIB,
                "free_bytes": 13.58 * GIB,
                "total_bytes": 14.96 * GIB,
                "utilization": 0.02,
            },
        ),
        (
            "cpu-vllm-0.32.0/fail-utilization-0.99.log",
            {"free_bytes": 13.6 * GIB, "total_bytes": 14.96 * GIB, "utilization": 0.99},
        ),
    ],
)
def test_the_numbers_of_a_log_are_read_in_bytes(file: str, numbers: dict[str, float]) -> None:
    """What vLLM and torch print in GiB and MiB comes back in bytes, by the names that a remedy uses."""
    found = diagnose_lines(read_log(file)).numbers
    assert {name: found[name] for name in numbers} == pytest.approx(numbers)


@pytest.mark.parametrize("wording", WORDINGS, ids=lambda wording: wording["text"][:50])
def test_a_wording_of_some_version_is_known(wording: dict[str, Any]) -> None:
    """Every wording means the same whether it is logged, or printed at the end of a traceback."""
    text, numbers = wording["text"], wording.get("numbers", {})
    for line in (text, ENGINE + text, f"(APIServer pid=1) {text}", f"\x1b[31m{ENGINE}\x1b[0m{text}"):
        failure = diagnose_lines([line])
        assert failure.kind == wording["class"]
        assert {name: failure.numbers.get(name) for name in numbers} == pytest.approx(numbers)


def test_opposite_cpu_failures_get_opposite_classes() -> None:
    """A negative request for the pool needs more utilization, although the text asks to free memory like the other."""
    low, high = (diagnose_lines(read_log(f"cpu-vllm-0.32.0/fail-utilization-{u}.log")) for u in ("0.02", "0.99"))
    assert (low.kind, high.kind) == (FailureClass.UTILIZATION_TOO_LOW, FailureClass.UTILIZATION_TOO_HIGH)


@pytest.mark.parametrize(
    ("before", "phase", "kind"),
    [
        ("Starting to load model /models/m...", Phase.LOADING, FailureClass.WEIGHTS_DO_NOT_FIT),
        ("Model loading took 13.5 GiB and 2.6 seconds", Phase.PROFILING, FailureClass.WARMUP_OOM),
        ("GPU KV cache size: 910,656 tokens", Phase.CAPTURE, FailureClass.GRAPH_CAPTURE_OOM),
        ("Graph capturing finished in 5 secs, took 0.98 GiB", Phase.WARMUP, FailureClass.WARMUP_OOM),
    ],
)
def test_an_allocation_that_failed_knows_its_phase(before: str, phase: Phase, kind: FailureClass) -> None:
    """The lines before an out-of-memory error say what the server was doing, and so whose memory it was."""
    failure = diagnose_lines([before, OOM])
    assert (failure.kind, failure.phase) == (kind, phase)


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        (("initialize_from_config", "compile_or_warm_up_model", "capture_model"), FailureClass.GRAPH_CAPTURE_OOM),
        (("initialize_from_config", "compile_or_warm_up_model", "_dummy_sampler_run"), FailureClass.WARMUP_OOM),
        (("initialize_from_config", "_allocate_kv_cache_tensors"), FailureClass.UTILIZATION_TOO_HIGH),
        (("determine_available_memory", "profile_run"), FailureClass.WARMUP_OOM),
        (("load_model", "create_weights"), FailureClass.WEIGHTS_DO_NOT_FIT),
    ],
)
def test_the_innermost_frame_says_what_was_being_done(frames: tuple[str, ...], kind: FailureClass) -> None:
    """A traceback knows better than the last line of progress before it."""
    done = "Graph capturing finished in 1 secs, took 0.46 GiB"
    trace = [f'{ENGINE}  File "/venv/vllm/worker.py", line 5, in {frame}' for frame in frames]
    assert diagnose_lines([done, *trace, ENGINE + OOM]).kind is kind


def test_an_allocation_that_failed_while_serving_is_another_class() -> None:
    """After the start the same text is a runtime failure, also where the caller alone knows of the start."""
    assert diagnose_lines([SERVING, OOM], exit_code=0).kind is FailureClass.RUNTIME_OOM
    assert diagnose_lines([OOM], exit_code=0, phase=Phase.SERVING).kind is FailureClass.RUNTIME_OOM


def test_numbers_of_later_lines_of_the_same_failure_are_added() -> None:
    """The sampler's line follows torch's and brings the number of sequences with it."""
    sampler = "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests."
    failure = diagnose_lines(["Graph capturing finished in 5 secs", OOM, sampler])
    assert failure.evidence is not None
    assert failure.evidence.line == 2
    assert failure.numbers["dummy_requests"] == 1024
    assert failure.numbers["tried_bytes"] == 448 * 2**20


def test_the_earliest_cause_wins_over_what_follows_from_it() -> None:
    """A worker's cause stands above the engine's and the API server's tracebacks."""
    lines = [
        "(Worker_TP1 pid=5) ERROR 11-29 16:49:53 [multiproc_executor.py:375] " + OOM,
        f"{ENGINE}Worker proc VllmWorker-1 died unexpectedly, shutting down executor.",
        F3,
        "RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore': -6}",
    ]
    failure = diagnose_lines(lines)
    assert failure.kind is FailureClass.WEIGHTS_DO_NOT_FIT
    assert failure.evidence is not None
    assert failure.evidence.line == 1


def test_a_cause_after_its_consequence_still_wins() -> None:
    """The engine logs "fatal error" first and the traceback with the cause after it."""
    lines = [SERVING, f"{ENGINE}EngineCore encountered a fatal error.", ENGINE + OOM]
    assert diagnose_lines(lines, exit_code=0).kind is FailureClass.RUNTIME_OOM


@pytest.mark.parametrize(
    "echo",
    [
        f"INFO 02-25 11:11:20 logger.py:39] Received request c-1: prompt: 'I see {OOM}', params: SamplingParams(n=1)",
        f"(EngineCore pid=2) ERROR 11-29 16:49:53 [dump_input.py:72] Dumping input data for V1 LLM engine (v1): {OOM}",
        f"{ENGINE}Dumping scheduler output for model execution: SchedulerOutput(x='{F3}')",
        f"INFO 02-25 11:11:20 [logger.py:67] Generated response c-1: output: '{OOM}'",
    ],
)
def test_what_users_wrote_decides_nothing(echo: str) -> None:
    """Lines that repeat prompts, outputs or requests are never matched."""
    end = f"{ENGINE}EngineCore encountered a fatal error."
    failure = diagnose_lines([SERVING, echo, end], exit_code=0)
    assert failure.kind is FailureClass.INFRA_FAULT
    assert diagnose_lines([SERVING, echo], exit_code=0).kind is FailureClass.CLEAN_EXIT


def test_a_failure_that_the_server_survived_is_none() -> None:
    """What was printed before the server came to serve, or before it went on working, did not end it."""
    assert diagnose_lines([OOM, SERVING], exit_code=0).kind is FailureClass.CLEAN_EXIT
    assert diagnose_lines([SERVING, OOM, STATISTICS], exit_code=0).kind is FailureClass.CLEAN_EXIT


def test_statistics_after_the_engine_died_do_not_bring_it_back() -> None:
    """The API server may still print a statistics line when its engine is dead."""
    dead = f"{ENGINE}EngineCore encountered a fatal error."
    assert diagnose_lines([SERVING, dead, OOM, STATISTICS], exit_code=0).kind is FailureClass.RUNTIME_OOM


def test_errors_of_a_shutdown_are_no_causes() -> None:
    """What breaks after an orderly shutdown began follows from it."""
    lines = [SERVING, "INFO:     Shutting down", f"{ENGINE}EngineCore encountered a fatal error."]
    assert diagnose_lines(lines, exit_code=0).kind is FailureClass.CLEAN_EXIT


def test_an_unknown_error_is_shown_as_it_stands() -> None:
    """The first error of a start is the evidence; its followers are not."""
    lines = [
        "(EngineCore pid=2) ERROR 06-14 10:19:44 [core.py:1233] Traceback (most recent call last):",
        "(EngineCore pid=2) ERROR 06-14 10:19:44 [core.py:1233] RuntimeError: Ninja build failed.",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ]
    failure = diagnose_lines(lines)
    assert failure.kind is FailureClass.INFRA_FAULT
    assert (
        failure.summary
        == "vLLM ended with exit code 1 while reading its configuration: RuntimeError: Ninja build failed."
    )
    assert failure.evidence is not None
    assert (failure.evidence.line, failure.evidence.text) == (2, "RuntimeError: Ninja build failed.")


def test_pydantic_names_the_argument_above_its_complaint() -> None:
    """The refused argument is named although it stands on the line before."""
    lines = [
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig",
        "gpu_memory_utilization",
        "  Input should be less than or equal to 1 [type=less_than_equal, input_value=1.5, input_type=float]",
        "    For further information visit https://errors.pydantic.dev/2.14/v/less_than_equal",
    ]
    failure = diagnose_lines(lines)
    assert failure.kind is FailureClass.INVALID_FLAG
    assert failure.summary.endswith("gpu_memory_utilization: Input should be less than or equal to 1")


def test_the_default_utilization_is_that_of_the_version() -> None:
    """An argv without a utilization ran with 0.9 before 0.20 and with 0.92 since."""
    fails = "ValueError: No available memory for the cache blocks."
    for version, expected in (("0.19.1", 0.9), ("0.20.0", 0.92), ("0.33.0", 0.92)):
        lines = [f"INFO 11-29 16:46:19 [core.py:116] Initializing a V1 LLM engine (v{version}) with config: m", fails]
        assert diagnose_lines(lines).numbers["utilization"] == expected


def test_a_wrapper_before_the_log_line_is_no_hindrance() -> None:
    """A collector's prefix stands neither in the way of the match nor in the evidence."""
    line = f"2026-06-09 14:01:52.982 [Error] (Process) {ENGINE}{F3}"
    failure = diagnose_lines([line])
    assert failure.kind is FailureClass.MAX_MODEL_LEN_TOO_LONG
    assert failure.evidence is not None
    assert failure.evidence.text.startswith("ValueError: To serve")
