"""Every captured failure gets the remedy that its label accepts, and none that it forbids."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captures import GUARDS, H200_BYTES, Case, cases, failure_of, fits, flags_of, situation, touches
from vllmd.decide.propose import propose
from vllmd.model.decision import Domain, Proposal, Situation, Wish
from vllmd.model.failure import FailureClass
from vllmd.model.flags import UTILIZATION
from vllmd.model.server import Phase
from vllmd_policies import BUILT_IN

ENDED = [case for case in cases() if case.state == "exited" and not case.stop_requested]
# Where a label's remedy is not vllmd's to apply: the operator's own flag or variable has to change.
OPERATORS_OWN = {
    "h200-vllm-0.26.0/batched-below-seqs.log": "max-num-batched-tokens 256 is below max-num-seqs 1024",
    "h200-vllm-0.26.0/unknown-flag.log": "--num-scheduler-steps 8; remove it",
    "cpu-vllm-0.32.0/fail-unknown-flag.log": "--no-such-flag; remove it",
    "cpu-vllm-0.32.0/fail-gpu-util-0.99.log": "VLLM_CPU_KVCACHE_SPACE fixes the pool: unset it, or raise it",
    "cpu-vllm-0.32.0/fail-kvspace-100GB.log": "lower VLLM_CPU_KVCACHE_SPACE to 13 or less",
}


def _proposal(case: Case, *, length_may_move: bool) -> Proposal | None:
    bounds = dict(GUARDS) | ({"max-model-len": (None, None)} if length_may_move else {})
    on_gpu = case.file.startswith("h200")
    return propose(
        situation(
            case.failure,
            flags_of(case.argv),
            bounds=bounds,
            gpu_total_bytes=H200_BYTES if on_gpu else None,
            gpu_free_bytes=H200_BYTES - 2**20 if on_gpu else None,
        ),
        BUILT_IN,
    )


@pytest.mark.parametrize("case", ENDED, ids=lambda case: case.file)
def test_a_captured_failure_gets_a_remedy_that_its_label_accepts(case: Case) -> None:
    """Where the context length may move, the first proposal is one that the label accepts, or rightly a stop."""
    proposal = _proposal(case, length_may_move=True)
    assert proposal is not None
    assert not [entry for entry in case.forbid if touches(entry, proposal)]
    if case.file in OPERATORS_OWN:
        assert proposal.wish is Wish.STOP
        assert OPERATORS_OWN[case.file] in proposal.reason
    else:
        assert [entry for entry in case.accept if fits(entry, proposal)]


@pytest.mark.parametrize("case", ENDED, ids=lambda case: case.file)
def test_a_promised_context_length_is_never_touched(case: Case) -> None:
    """Without an entry in the guard the context length stays, whatever fits."""
    proposal = _proposal(case, length_may_move=False)
    assert proposal is not None
    assert "max-model-len" not in proposal.changes


@pytest.mark.parametrize("case", ENDED, ids=lambda case: case.file)
def test_a_proposal_explains_itself(case: Case) -> None:
    """Domain, trigger and a reason that begins with what happened are filled in."""
    proposal = _proposal(case, length_may_move=True)
    assert proposal is not None
    assert (proposal.domain, proposal.trigger) == (Domain.MEMORY, case.failure.kind)
    assert proposal.reason.startswith(case.failure.summary)
    assert (proposal.wish is Wish.CHANGE_FLAGS) == bool(proposal.changes)


@pytest.mark.parametrize("kind", FailureClass)
def test_every_class_has_a_policy(kind: FailureClass) -> None:
    """No failure is left without a wish, also when nothing was printed with it."""
    for phase in Phase:
        assert propose(situation(failure_of(kind, phase)), BUILT_IN) is not None


def test_no_failure_no_wish() -> None:
    """A running server is not a memory policy's business."""
    running = Situation(baseline=flags_of(()), flags=flags_of(()))
    assert propose(running, BUILT_IN) is None


_NAMES = st.sampled_from(
    [
        "free_bytes",
        "total_bytes",
        "requested_bytes",
        "needed_bytes",
        "available_bytes",
        "tried_bytes",
        "fitting_tokens",
        "asked_tokens",
        "utilization",
        "pool_bytes",
        "weights_bytes",
        "dummy_requests",
    ]
)
_BOUNDS = st.dictionaries(
    st.sampled_from(["gpu-memory-utilization", "max-model-len", "max-num-seqs", "enforce-eager"]),
    st.tuples(st.one_of(st.none(), st.floats(0.01, 0.5)), st.one_of(st.none(), st.floats(0.5, 1.0))),
)


@given(
    st.sampled_from(FailureClass),
    st.sampled_from(Phase),
    st.dictionaries(_NAMES, st.one_of(st.floats(-1e15, 1e15), st.integers(0, 4096), st.floats(0, 1))),
    _BOUNDS,
    st.integers(0, 9),
    st.one_of(st.none(), st.floats(0.01, 1.0)),
)
@settings(max_examples=300)
def test_no_numbers_lead_outside_the_guard(
    kind: FailureClass,
    phase: Phase,
    numbers: dict[str, float],
    bounds: dict[str, tuple[float | None, float | None]],
    repeats: int,
    given_utilization: float | None,
) -> None:
    """Whatever was printed, a proposal moves only flags that may move, and utilization stays within its bounds."""
    flags = {} if given_utilization is None else {UTILIZATION: f"{given_utilization:.4f}"}
    wish = propose(situation(failure_of(kind, phase, numbers), flags, bounds=bounds, repeats=repeats), BUILT_IN)
    assert wish is not None
    assert wish.changes.keys() <= bounds.keys()
    if UTILIZATION in wish.changes:
        low, high = bounds[UTILIZATION]
        value = float(str(wish.changes[UTILIZATION]))
        assert (low or 0) - 1e-6 <= value <= (high or 1) + 1e-6
