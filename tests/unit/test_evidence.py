"""The evidence of a hang: what it says, and that it stays bounded and masked."""

import os
from collections import Counter
from pathlib import Path

from vllmd.act.evidence import evidence_text
from vllmd.act.launch_logs import evidence_path, open_log
from vllmd.model.masking import Masker
from vllmd.model.server import Hung
from vllmd.model.snapshot import Gpu, GpuProcess
from vllmd.observe.process_states import ProcessReading

HUNG = Hung(3, 125.0, "no token and no step for 125 s with 4 requests running")
ENGINE = ProcessReading(71, "VLLM::EngineCor", "T", "do_signal_stop", 812, Counter({("T", "do_signal_stop"): 40}))
GPU = Gpu(0, "GPU-1", "NVIDIA H200", 140 * 2**30, 70 * 2**30, (GpuProcess(71, 69 * 2**30, "python3", ours=True),))


def test_it_says_what_each_process_does_and_where_it_waits() -> None:
    """Process, state, kernel function, threads, GPU memory, log: what nobody can ask any more afterwards."""
    text = evidence_text(HUNG, 0.0, [ENGINE], [GPU], ["INFO last words"], str)
    assert "generation 3: no token and no step for 125 s with 4 requests running" in text
    assert "71 VLLM::EngineCor T do_signal_stop 812" in text
    assert "40 threads: 40 T do_signal_stop" in text
    assert "0 NVIDIA H200 71680 of 143360" in text
    assert "pid 71 70656 (ours)" in text
    assert text.endswith("INFO last words\n")


def test_a_worker_is_named_by_its_rank_which_its_title_is_cut_before() -> None:
    """Whoever reads of one stopped worker among eight needs to know which GPU's; the log's head says it."""
    workers = [ProcessReading(pid, "VLLM::Worker_TP", "S", None, 5, Counter()) for pid in (81, 82, 83, 84)]
    head = [
        "(Worker_TP0 pid=81) INFO 11-29 17:39:00 [gpu_worker.py:1] one",
        "\x1b[0;36m(VllmWorker rank=1 pid=82)\x1b[0;0m INFO two",
        "(VllmWorker-2 pid=83) INFO before it knows its ranks",
        "(Worker_TP2_EP2 pid=83) INFO three",
        "what mentions a (Worker_TP3 pid=84)",
    ]
    text = evidence_text(HUNG, 0.0, workers, None, [*head, *["INFO 200 OK"] * 100, ""], str)
    for line in ("81 VLLM::Worker_TP S - 5 Worker_TP0", "82 VLLM::Worker_TP S - 5 VllmWorker rank=1"):
        assert f"  {line}\n" in text
    assert "  83 VLLM::Worker_TP S - 5 Worker_TP2_EP2\n" in text
    assert "  84 VLLM::Worker_TP S - 5 -\n" in text
    assert text.endswith("at most:\n" + "INFO 200 OK\n" * 50)


def test_a_secret_in_the_log_is_masked_and_controls_are_escaped() -> None:
    """The log's text is data: it neither leaks a key nor steers a terminal."""
    mask = Masker(["sesame-open"]).mask
    text = evidence_text(HUNG, 0.0, [], None, ["key sesame-open \x1b[2J"], mask)
    assert "sesame" not in text
    assert "\x1b" not in text
    assert "NVML does not answer" in text


def test_it_is_bounded_whatever_the_server_is() -> None:
    """Thousands of processes and endless lines make a file that a ticket takes."""
    many = [ENGINE] * 5000
    text = evidence_text(HUNG, 0.0, many, [GPU], ["x" * 100_000] * 50, str)
    assert len(text) < 100_000
    assert "4936 more" in text


def test_it_goes_with_the_log_of_its_launch(tmp_path: Path) -> None:
    """As many are kept as logs are, so that a server that hangs for ever fills no disk."""
    for generation in range(1, 5):
        os.close(open_log(tmp_path, generation, keep=2))
        evidence_path(tmp_path, generation).write_text("seen")
    kept = {"engine-0003.log", "engine-0004.log", "evidence-0003.txt", "evidence-0004.txt"}
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_the_log_of_the_server_that_serves_is_not_dropped(tmp_path: Path) -> None:
    """Launches beside it that fail have logs of their own, which are counted."""
    for generation in range(1, 6):
        os.close(open_log(tmp_path, generation, keep=2, spared=1))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "engine-0001.log",
        "engine-0004.log",
        "engine-0005.log",
    ]
