"""A full example of a Status, for every test that draws or exports one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllmd.model.decision import (
    Action,
    Assessment,
    Change,
    Domain,
    Effect,
    Load,
    Outcome,
    Proposal,
    Target,
    TargetAssessment,
    Verdict,
    Verification,
    Wish,
)
from vllmd.model.failure import Evidence, Failure, FailureClass
from vllmd.model.flags import BATCHED_TOKENS, MAX_NUM_SEQS, Flags, FlagValue
from vllmd.model.handover import Handover, Handovers
from vllmd.model.live import Heartbeat, Knob, Live, Traffic
from vllmd.model.memory_budget import MemoryBudget
from vllmd.model.orders import SetLive
from vllmd.model.server import Phase, ServerState
from vllmd.model.settings import Mode, Modes
from vllmd.model.snapshot import Gpu, GpuProcess
from vllmd.model.status import BudgetStatus, DecisionRecord, FlagStatus, LiveStatus, StartFacts, StartProgress, Status

NOW_S = 1_790_270_208.0  # 2026-09-24 17:16:48 UTC
GIB = 2**30

BASELINE = Flags(
    (("gpu-memory-utilization", "0.92"), ("max-num-seqs", "256"), ("max-num-batched-tokens", "8192")),
)


def example_change(
    number: int = 19,
    changes: Mapping[str, FlagValue | None] | None = None,
    *,
    action: Action = Action.RESTART,
    trigger: str = "itl_p99",
    age_s: float = 3600.0,
    reason: str = "itl_p99 slips: 97.1 % of 99.0 % within 0.1 s; fewer batched tokens make shorter steps",
) -> Change:
    """Return a change as the loop would make it."""
    changes = {"max-num-batched-tokens": "2048"} if changes is None else changes
    proposal = Proposal(
        policy="itl-ladder",
        domain=Domain.LATENCY,
        wish=Wish.CHANGE_FLAGS,
        reason=reason,
        changes=changes,
        numbers={"share": 0.971, "limit_s": 0.1},
        trigger=trigger,
    )
    return Change(f"D{number}", NOW_S - age_s, action, proposal, BASELINE, BASELINE.changed(changes))


def example_failure() -> Failure:
    """Return the failure of a start whose utilization was too high."""
    return Failure(
        kind=FailureClass.UTILIZATION_TOO_HIGH,
        phase=Phase.LOADING,
        generation=6,
        summary="gpu-memory-utilization 0.92 asks for 129.2 GiB, 125.1 GiB are free",
        evidence=Evidence(182, "ValueError: Free memory on device (125.1/140.4 GiB) on startup is less than desired"),
        exit_code=1,
        numbers={"free_bytes": 125.1 * GIB, "total_bytes": 140.4 * GIB},
    )


def _targets() -> tuple[TargetAssessment, ...]:
    """Return one target that lies on a bucket edge, and one between edges."""
    return (
        TargetAssessment(Target("ttft_p95", "ttft", 0.95, 1.0), Verdict.MET, 3720, 0.987, 0.987, 0.5, 0.75),
        TargetAssessment(Target("itl_p99", "itl", 0.99, 0.1), Verdict.MET, 88_210, 0.9993, 0.9993, 0.05, 0.075),
    )


HANDOVER = Handover(held=37, most_held=30, longest_wait_s=84.5, cut=0, refused=1)


def example_live() -> LiveStatus:
    """Return a server whose token budget is set below what was launched, and whose cap of sequences cannot be."""
    knobs = {BATCHED_TOKENS: Knob("", 2048, 1024, 1024, 1024), MAX_NUM_SEQS: Knob("this vLLM's scheduler has none")}
    beat = Heartbeat(5000, 100.0, 0.25, 41, 0, 300, 0.04)
    order = SetLive(NOW_S - 60, "anna", BATCHED_TOKENS, 1024, NOW_S + 540, 7)
    return LiveStatus(Live(knobs, beat, Traffic(43, 99.0, shared_port=True)), (order,), silent_s=0.01)


def example_status(**changes: Any) -> Status:
    """Return a serving instance with two targets, one GPU and three decisions, with the fields given replaced."""
    moved = example_change()
    recovered = example_change(
        20,
        {"gpu-memory-utilization": "0.88"},
        action=Action.RECOVER,
        trigger="utilization-too-high",
        age_s=1800.0,
        reason="125.1 of 140.4 GiB are free: 0.88 fits",
    )
    advised = example_change(21, {"max-num-seqs": "192"}, action=Action.ADVISE, age_s=60.0)
    flags = recovered.flags_after.changed({"max-num-batched-tokens": "2048"})
    status = Status(
        name="qwen",
        at_s=NOW_S,
        vllmd_version="0.1.0",
        state=ServerState.SERVING,
        since_s=NOW_S - 1700.0,
        message="targets met",
        modes=Modes(Mode.ACTIVE, Mode.ADVISORY),
        generation=7,
        pid=41877,
        url="http://127.0.0.1:8000",
        model="Qwen/Qwen3-32B",
        vllm_version="0.28.0",
        simulated=False,
        assessment=Assessment(NOW_S - 2, 7, _targets(), _targets(), Load(6.2, 9800.0, 2100.0, 41.0, 0.0, 0.63)),
        gpus=(
            Gpu(
                index=0,
                uuid="GPU-8f1c",
                name="NVIDIA H200",
                total_bytes=150_754_820_096,
                used_bytes=134_969_347_275,
                processes=(
                    GpuProcess(41990, 132_000_000_000, "VLLM::EngineCore", ours=True),
                    GpuProcess(3120, 2_254_857_830, "python3", ours=False),
                ),
            ),
        ),
        host_free_bytes=400 * GIB,
        host_total_bytes=512 * GIB,
        start=StartFacts(61 * GIB, 55.1 * GIB, 228_000, 5.6 * GIB, 1.3 * GIB, 2048, "serving"),
        memory=MemoryBudget(
            gpu=0,
            total_bytes=150_754_820_096,
            free_bytes=15_785_472_821,
            others_bytes=2_254_857_830,
            weights_bytes=61 * GIB,
            activation_bytes=5.6 * GIB,
            non_torch_bytes=0.2 * GIB,
            graphs_bytes=1.3 * GIB,
            kv_cache_bytes=55.1 * GIB,
        ),
        flags=(
            FlagStatus("gpu-memory-utilization", "0.88", "0.92", 0.8, 0.94, "D20", NOW_S - 1800.0),
            FlagStatus("max-num-batched-tokens", "2048", "8192", 256.0, None, "D19", NOW_S - 3600.0),
            FlagStatus("enforce-eager", None, None),
        ),
        argv=("vllm", "serve", "Qwen/Qwen3-32B", *(f"--{name}={flags[name]}" for name in flags)),
        budget=BudgetStatus(1, 2, 1, 6, 1, 5, breaker_open=False),
        last_decision=advised,
        decisions=(
            DecisionRecord(
                moved,
                Outcome(
                    moved,
                    6,
                    served=True,
                    outage_s=85.0,
                    handover=HANDOVER,
                    took_s={"config": 21.0, "loading": 6.0},
                ),
                Verification("D19", NOW_S - 2700.0, Effect.BETTER, "97.1 % to 99.9 % within 0.1 s", 0.971, 0.999),
            ),
            DecisionRecord(recovered, Outcome(recovered, 7, served=True, outage_s=125.0)),
            DecisionRecord(advised),
        ),
        last_failure=example_failure(),
        data_at_s=NOW_S - 4.0,
        missing_metrics=(),
        log_path="/var/lib/vllmd/qwen/engine-0007.log",
        start_times=StartProgress({Phase.CONFIG: 21.0}, {Phase.CONFIG: 21.5, Phase.LOADING: 6.0}, 83.0),
        suppressed={"targets_met": 12, "budget": 1},
        launches={"first": 1, "crash": 1, "change": 1},
        outage_s={"crash": 125.0, "change": 85.0},
        host="gpu7",
        live=example_live(),
        handovers=Handovers().with_one(HANDOVER),
    )
    return replace(status, **changes)


def starting_status() -> Status:
    """Return an instance that has just begun its first start: everything that can be unknown is."""
    return Status(
        name="qwen",
        at_s=NOW_S,
        vllmd_version="0.1.0",
        state=ServerState.STARTING,
        since_s=NOW_S - 12.0,
        message="loading weights",
        modes=Modes(),
        generation=None,
        pid=None,
        url="http://127.0.0.1:8000",
        model=None,
        vllm_version=None,
        simulated=True,
        assessment=None,
        gpus=None,
        host_free_bytes=None,
        host_total_bytes=None,
        start=None,
        flags=(),
        argv=("vllm", "serve", "m"),
        budget=BudgetStatus(0, 2, 0, 6, 0, 5, breaker_open=False),
        last_decision=None,
        decisions=(),
        last_failure=None,
        data_at_s=None,
        missing_metrics=(),
        log_path=None,
    )


def held_status(**changes: Any) -> Status:
    """Return an instance that is held after five failures, with the last one's evidence."""
    held: dict[str, Any] = {
        "state": ServerState.HELD,
        "since_s": NOW_S - 240.0,
        "message": "5 failures in 15 min and no remedy left",
        "generation": 12,
        "pid": None,
        "assessment": None,
        "budget": BudgetStatus(1, 2, 1, 6, 5, 5, breaker_open=True),
        "log_path": "/var/lib/vllmd/qwen/engine-0012.log",
    }
    return example_status(**(held | changes))
