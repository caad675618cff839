"""The policies for flags that vLLM refuses, and for ends that no flag has to do with."""

from dataclasses import replace

import pytest

from captures import GUARDS, failure_of, situation
from vllmd.model.decision import Wish
from vllmd.model.failure import FailureClass
from vllmd.model.flags import BATCHED_TOKENS, MAX_MODEL_LEN, MAX_NUM_SEQS, SHUTDOWN_TIMEOUT, UTILIZATION, Flags
from vllmd.model.host_facts import HostFacts
from vllmd.model.server import Phase
from vllmd_policies.model_len import model_len_too_long
from vllmd_policies.no_flag_helps import no_flag_helps
from vllmd_policies.own_flag_refused import own_flag_refused
from vllmd_policies.restart_unchanged import restart_unchanged

TOO_LONG = replace(
    failure_of(FailureClass.INVALID_COMBINATION, numbers={"asked_tokens": 999999, "fitting_tokens": 8192}),
    cause="beyond-the-model",
)
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
    failure = failure_of(FailureClass.INVALID_FLAG, summary="vLLM does not know --enforce-eager; remove it")
    wish = own_flag_refused(situation(failure, baseline=Flags(), flags=Flags((("enforce-eager", True),))))
    assert wish is not None
    assert wish.changes == {"enforce-eager": None}


def test_the_operators_own_refused_flag_is_not_ours_to_change() -> None:
    """What vllmd adds to every launch is not to blame for it either."""
    baseline = Flags(((BATCHED_TOKENS, "256"), (MAX_NUM_SEQS, "1024")))
    flags = baseline.changed({SHUTDOWN_TIMEOUT: "60"})
    assert own_flag_refused(situation(REFUSED, baseline=baseline, flags=flags)) is None


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (FailureClass.INVALID_FLAG, ""),
        (FailureClass.INVALID_COMBINATION, ""),
        (FailureClass.MODEL_ACCESS, ""),
        (FailureClass.UNSUPPORTED_MODEL, ""),
        (FailureClass.PORT_IN_USE, ""),
        (FailureClass.NO_DEVICE, ""),
        (FailureClass.INFRA_FAULT, "host"),
    ],
)
def test_what_no_flag_helps_stops_with_its_own_words(kind: FailureClass, cause: str) -> None:
    """The failure's sentence says what the operator has to do."""
    failure = replace(failure_of(kind, summary="no model at /srv/x"), cause=cause)
    wish = no_flag_helps(situation(failure))
    assert wish is not None
    assert (wish.wish, wish.reason) == (Wish.STOP, "no model at /srv/x")


def test_a_port_that_we_hold_ourselves_comes_free() -> None:
    """Our own leftover is ended; a foreign holder is the operator's."""
    failure = failure_of(FailureClass.PORT_IN_USE, summary="port 8000 is taken; free it")
    ours = no_flag_helps(situation(failure, host=HostFacts(port_holder_pid=17, port_holder_is_ours=True)))
    foreign = no_flag_helps(situation(failure, host=HostFacts(port_holder_pid=17, port_holder_is_ours=False)))
    assert ours is not None
    assert foreign is not None
    assert (ours.wish, foreign.wish) == (Wish.WAIT_THEN_RETRY, Wish.STOP)
    assert "our own process 17" in ours.reason


def test_a_hub_that_does_not_answer_is_asked_again() -> None:
    """A network comes back; without a daemon's breaker the third time is the operator's."""
    failure = replace(failure_of(FailureClass.MODEL_ACCESS), cause="hub-silent")
    wishes = [
        no_flag_helps(situation(failure, repeats=n, supervised=s)) for n, s in ((0, False), (9, True), (2, False))
    ]
    assert [w.wish for w in wishes if w] == [Wish.WAIT_THEN_RETRY, Wish.WAIT_THEN_RETRY, Wish.STOP]


@pytest.mark.parametrize(
    ("kind", "phase", "wanted"),
    [
        (FailureClass.INFRA_FAULT, Phase.LOADING, Wish.RETRY_UNCHANGED),
        (FailureClass.INFRA_FAULT, Phase.SERVING, Wish.RESTART),
        (FailureClass.CLEAN_EXIT, Phase.SERVING, Wish.RESTART),
        (FailureClass.EXTERNAL_STOP, Phase.SHUTDOWN, Wish.RESTART),
        (FailureClass.HANG, Phase.CAPTURE, Wish.RETRY_UNCHANGED),
        (FailureClass.PROFILING_RACE, Phase.PROFILING, Wish.WAIT_THEN_RETRY),
        (FailureClass.NONE, Phase.SERVING, Wish.NOTHING),
    ],
)
def test_what_has_no_cause_in_the_flags_is_started_again(kind: FailureClass, phase: Phase, wanted: Wish) -> None:
    """The flags served before, or did not come to be tried."""
    wish = restart_unchanged(situation(failure_of(kind, phase)))
    assert wish is not None
    assert (wish.wish, dict(wish.changes)) == (wanted, {})
    assert no_flag_helps(situation(failure_of(kind))) is None


def test_a_log_alone_says_who_is_to_act() -> None:
    """Without a daemon a stop from outside is the stopper's matter, and the third like fault the operator's."""
    stopped = restart_unchanged(
        situation(failure_of(FailureClass.EXTERNAL_STOP), supervised=False, host=HostFacts(startup_probe_s=150))
    )
    third = restart_unchanged(situation(failure_of(FailureClass.INFRA_FAULT), supervised=False, repeats=2))
    wanted = restart_unchanged(situation(failure_of(FailureClass.CLEAN_EXIT), supervised=False))
    assert [w.wish for w in (stopped, third, wanted) if w] == [Wish.STOP, Wish.STOP, Wish.NOTHING]
    assert stopped is not None
    assert "more than the 150 s of the probe" in stopped.reason
