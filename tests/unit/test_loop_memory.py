"""The loop checks a remedy against the memory that the driver shows, and against what the failed start printed."""

from captures import GIB
from house import ARGV, House, house, settings
from vllmd.model.decision import Action, Change
from vllmd.model.server import ServerState
from vllmd.model.settings import Slo
from vllmd.model.snapshot import Gpu, GpuProcess, Snapshot

POOL_TOO_SMALL = (
    "(EngineCore pid=7) INFO 11-29 17:00:00 [gpu_worker.py:1] Available KV cache memory: 2.00 GiB",
    (
        "(EngineCore pid=7) ERROR 11-29 17:00:00 [core.py:1] ValueError: To serve at least one request with the "
        "models's max seq len (32768), (4.00 GiB KV cache is needed, which is larger than the available KV cache "
        "memory (2.00 GiB). Based on the available memory, the estimated maximum model length is 16384."
    ),
)


def failed_beside(others_gib: float) -> House:
    """Return a house whose first launch had too small a pool on 80 GiB, of which others hold this much."""
    built = house(settings(Slo()), (*ARGV[:3], "--gpu-memory-utilization=0.86"))
    built.loop.begin()
    processes = (
        GpuProcess(7, 30 * GIB, "VLLM::EngineCore", ours=True),
        GpuProcess(8, int(others_gib * GIB), "python3 (anna)", ours=False),
    )
    gpu = Gpu(0, "GPU-0", "a GPU", 80 * GIB, int((30 + others_gib) * GIB), processes)
    built.tick(Snapshot(built.clock.at_s, 0, None, (gpu,)))
    built.dies(1, *POOL_TOO_SMALL)
    return built


def last_change(built: House) -> Change:
    """Return the last recorded change."""
    return [e for _, e in built.ledger.entries if isinstance(e, Change)][-1]


def test_a_remedy_that_fits_is_launched() -> None:
    """Two GiB are missing, and others hold little: the utilization rises."""
    change = last_change(failed_beside(1.0))
    assert change.action is Action.RECOVER
    assert change.flags_after.number("gpu-memory-utilization") == 0.895


def test_a_remedy_that_others_leave_no_room_for_is_not_launched() -> None:
    """With 9 GiB in others' hands 0.895 of 80 GiB cannot be had: the same flags again, and the reason is told."""
    built = failed_beside(9.0)
    change = last_change(built)
    assert change.action is Action.RETRY
    assert "needs 71.6 GiB, and 70.5 GiB of 80.0 GiB can be had beside the 9.0 GiB of others" in change.proposal.reason
    assert built.state == ServerState.STARTING
