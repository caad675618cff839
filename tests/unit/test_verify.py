"""What a change brought."""

from dataclasses import replace

from fakes import FakeClock, Traffic, histogram
from vllmd.decide.assess import assess, judge
from vllmd.decide.verify import Trial, alike, effect_on, verify
from vllmd.model.decision import Action, Assessment, Change, Domain, Effect, Load, Proposal, Target, Verification, Wish
from vllmd.model.flags import Flags
from vllmd.model.settings import Slo
from vllmd.model.snapshot import Window

TARGET = Target("itl_p99", "itl", 0.99, 0.05)
SLO = Slo((TARGET,), judge_window_s=60.0, min_requests=200)
SOAK_S = 120.0
CHANGE = Change(
    "D1",
    0.0,
    Action.RESTART,
    Proposal("p", Domain.LATENCY, Wish.CHANGE_FLAGS, "", trigger="itl_p99"),
    Flags((("max-num-batched-tokens", "2048"),)),
    Flags((("max-num-batched-tokens", "1024"),)),
)


def soaked(
    before: float,
    after: float,
    age_s: float = SOAK_S,
    prompt_per_s: float = 500.0,
    gaps_per_s: float = 20.0,
    *,
    cold: bool = True,
) -> Verification | None:
    """Return the verification of a change that took the share of slow gaps from `before` to `after`."""
    clock = FakeClock()
    trial = Trial(CHANGE, _assessed(clock, Traffic(clock, before)), clock.now_s(), cold=cold)
    traffic, window = Traffic(clock, after, gaps_per_s, prompt_per_s), Window(600.0)
    start_s = clock.now_s()
    while clock.now_s() <= start_s + age_s:
        window = window.with_snapshot(traffic.read(generation=2))
        clock.at_s += 5
    clock.at_s = start_s + age_s
    return verify(trial, window, SLO, SOAK_S, clock.now_s())


def test_nothing_is_said_before_the_soak_is_over() -> None:
    """A change soaks first."""
    assert soaked(0.05, 0.0, age_s=60.0) is None


def test_all_of_a_soak_without_a_launch_is_judged() -> None:
    """Nothing warms up: a quarter of the soak more, which is enough observations here."""
    verdicts = [soaked(0.05, 0.0, gaps_per_s=2.0, cold=cold) for cold in (True, False)]
    assert [verdict.effect if verdict else None for verdict in verdicts] == [None, Effect.BETTER]


def test_fewer_gaps_beyond_the_limit_are_better() -> None:
    """The share within the limit before and after stands in the verification."""
    found = soaked(0.05, 0.005)
    assert found is not None
    assert (found.effect, found.change_id) == (Effect.BETTER, "D1")
    assert found.before is not None
    assert found.after is not None
    assert abs(found.before - 0.95) < 0.001
    assert abs(found.after - 0.995) < 0.001


def test_more_gaps_beyond_the_limit_are_worse() -> None:
    """A change that did harm is known by its numbers."""
    found = soaked(0.05, 0.08)
    assert found is not None
    assert found.effect is Effect.WORSE


def test_shorter_gaps_are_better_although_more_of_them_pass_the_limit() -> None:
    """Half the batched tokens make two gaps of half the length: the quantile falls a bucket, the share too."""
    before = judge(TARGET, histogram({0.025: 970, 0.3: 30}), enough=200)
    after = judge(TARGET, histogram({0.025: 940, 0.15: 60}), enough=200)
    assert effect_on(before, after) is Effect.BETTER
    assert effect_on(after, before) is Effect.WORSE


def test_a_target_that_still_holds_is_not_harmed() -> None:
    """Some TTFT is what an ITL remedy costs; as long as the target is met, that is no harm."""
    before = judge(TARGET, histogram({0.01: 1000}), enough=200)
    after = judge(TARGET, histogram({0.025: 1000}), enough=200)
    assert effect_on(before, after) is Effect.SAME


def test_a_small_difference_is_none() -> None:
    """Within a tenth of the share before, nothing changed."""
    found = soaked(0.05, 0.052)
    assert found is not None
    assert found.effect is Effect.SAME


def test_another_load_is_waited_out_and_then_unknown() -> None:
    """At twice the prompt tokens the comparison says nothing: the soak goes on, then the answer is unknown."""
    assert soaked(0.05, 0.08, prompt_per_s=1000.0) is None
    found = soaked(0.05, 0.08, prompt_per_s=1000.0, age_s=3 * SOAK_S)
    assert found is not None
    assert found.effect is Effect.UNKNOWN


def test_less_served_beside_a_longer_queue_is_the_change_s_own_doing() -> None:
    """A change that halves what is served looks like another load, but for the requests that wait."""
    before = Load(5.0, 500.0, 100.0, running=8.0, waiting=0.0, kv_cache_usage=0.5)
    less = replace(before, prompt_tokens_per_s=200.0)
    assert not alike(before, less)
    assert alike(before, replace(less, waiting=40.0))
    assert not alike(before, replace(before, prompt_tokens_per_s=1500.0, waiting=40.0))


def test_thin_traffic_is_unknown_in_the_end() -> None:
    """Too few observations never become a verdict."""
    found = soaked(0.05, 0.5, gaps_per_s=0.1, age_s=3 * SOAK_S)
    assert found is not None
    assert found.effect is Effect.UNKNOWN


def _assessed(clock: FakeClock, traffic: Traffic) -> Assessment:
    window = Window(600.0)
    for _ in range(26):
        window = window.with_snapshot(traffic.read(generation=1))
        clock.at_s += 5
    assessment = assess(window, SLO)
    assert assessment is not None
    return assessment
