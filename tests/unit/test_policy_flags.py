"""The policies for flags that vLLM refuses, and for ends that no flag has to do with."""

import pytest

from captures import GUARDS, failure_of, situation
from vllmd.model.decision import Wish
from vllmd.model.failure import FailureClass
from vllmd.model.flags import BATCHED_TOKENS, MAX_MODEL_LEN, MAX_NUM_SEQS, SHUTDOWN_TIMEOUT, UTILIZATION, Flags
from vllmd_policies.model_len import model_len_too_long
from vllmd_policies.no_flag_helps import no_flag_helps
from vllmd_policies.own_flag_refused import own_flag_refused
from vllmd_policies.restart_unchanged import restart_unchanged

TOO_LONG = failure_of(FailureClass.MODEL_LEN_TOO_LONG, numbers={"asked_tokens": 999999, "fitting_tokens": 8192})
REFUSED = failure_of(
    FailureClass.INVALID_FLAG, summary="max_num_batched_tokens (256) must be at least max_num_seqs (1024)"
)


def test_a_length_beyond_the_model_becomes_the_models() -> None:
    """Where the guard lets the length move, the model's own is taken."""
    wish = model_len_too_long(situation(TOO_LONG, bounds={MAX_MODEL_LEN: (4096.0, None)}))
    assert wish is not None
    assert (wish.wish, wish.changes) == (Wish.CHANGE_FLAGS, {MAX_MODEL_LEN: "8192"})


@pytest.mark.parametrize("bounds", [GUARDS, {MAX_MODEL_LEN: (16384.0, None)}])
def test_a_promised_length_beyond_the_model_is_the_operators(
    bounds: dict[str, tuple[float | None, float | None]],
) -> None:
    """A length without an entry, or with a higher minimum, is not shortened."""
    wish = model_len_too_long(situation(TOO_LONG, bounds=bounds))
    assert wish is not None
    assert wish.wish is Wish.STOP
    assert "lower --max-model-len, or leave it out" in wish.reason


def test_our_own_refused_change_goes_back() -> None:
    """Only what the refusal names is taken back; a memory remedy beside it stays."""
    baseline = Flags(((BATCHED_TOKENS, "2048"), (MAX_NUM_SEQS, "1024"), (UTILIZATION, "0.9")))
    flags = baseline.changed({BATCHED_TOKENS: "256", UTILIZATION: "0.85"})
    wish = own_flag_refused(situation(REFUSED, baseline=baseline, flags=flags))
    assert wish is not None
    assert (wish.wish, wish.changes) == (Wish.CHANGE_FLAGS, {BATCHED_TOKENS: "2048"})


def test_a_flag_that_was_added_is_removed_again() -> None:
    """The operator's argv did not have it."""
    failure = failure_of(FailureClass.UNKNOWN_FLAG, summary="vLLM does not know --enforce-eager; remove it")
    wish = own_flag_refused(situation(failure, baseline=Flags(), flags=Flags((("enforce-eager", True),))))
    assert wish is not None
    assert wish.changes == {"enforce-eager": None}


def test_the_operators_own_refused_flag_is_not_ours_to_change() -> None:
    """What vllmd adds to every launch is not to blame for it either."""
    baseline = Flags(((BATCHED_TOKENS, "256"), (MAX_NUM_SEQS, "1024")))
    flags = baseline.changed({SHUTDOWN_TIMEOUT: "60"})
    assert own_flag_refused(situation(REFUSED, baseline=baseline, flags=flags)) is None


@pytest.mark.parametrize(
    "kind",
    [
        FailureClass.UNKNOWN_FLAG,
        FailureClass.INVALID_FLAG,
        FailureClass.MODEL_NOT_FOUND,
        FailureClass.PORT_TAKEN,
    ],
)
def test_what_no_flag_helps_stops_with_its_own_words(kind: FailureClass) -> None:
    """The failure's sentence says what the operator has to do."""
    wish = no_flag_helps(situation(failure_of(kind, summary="no model at /srv/x")))
    assert wish is not None
    assert (wish.wish, wish.reason) == (Wish.STOP, "no model at /srv/x")
    assert restart_unchanged(situation(failure_of(kind))) is None


@pytest.mark.parametrize(
    "kind",
    [
        FailureClass.ENGINE_DIED,
        FailureClass.KILLED,
        FailureClass.CLEAN_EXIT,
        FailureClass.START_STALLED,
        FailureClass.UNKNOWN,
    ],
)
def test_what_has_no_cause_in_the_flags_is_started_again(kind: FailureClass) -> None:
    """The flags served before, or did not come to be tried."""
    wish = restart_unchanged(situation(failure_of(kind)))
    assert wish is not None
    assert (wish.wish, dict(wish.changes)) == (Wish.RETRY_UNCHANGED, {})
    assert no_flag_helps(situation(failure_of(kind))) is None
