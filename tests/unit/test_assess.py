"""What a window says against the targets."""

from hypothesis import given
from hypothesis import strategies as st

from fakes import FakeClock, Traffic, histogram, reading
from vllmd.decide.assess import assess, judge
from vllmd.model.decision import Target, Verdict
from vllmd.model.settings import Slo
from vllmd.model.snapshot import Window

AT_EDGE = Target("itl_p99", "itl", 0.99, 0.05)
INSIDE = Target("itl_p99", "itl", 0.99, 0.06)


def test_a_limit_on_an_edge_is_exact() -> None:
    """The share within a limit on a bucket edge has one value, and decides."""
    found = judge(AT_EDGE, histogram({0.05: 980, 0.2: 20}), enough=200)
    assert (found.share_low, found.share_high) == (0.98, 0.98)
    assert found.verdict is Verdict.SLIPPING
    assert (found.quantile_low_s, found.quantile_high_s) == (0.15, 0.2)


def test_a_limit_between_edges_has_bounds() -> None:
    """Between two edges only bounds are known, and bounds on both sides of the objective decide nothing."""
    found = judge(INSIDE, histogram({0.05: 980, 0.075: 15, 0.2: 5}), enough=200)
    assert (found.share_low, found.share_high) == (0.98, 0.995)
    assert found.verdict is Verdict.UNSURE


def test_a_slip_beyond_the_bucket_decides() -> None:
    """A limit between two edges still slips when the upper bound lies below the objective."""
    assert judge(INSIDE, histogram({0.05: 900, 0.3: 100}), enough=200).verdict is Verdict.SLIPPING
    assert judge(INSIDE, histogram({0.05: 1000}), enough=200).verdict is Verdict.MET


def test_few_observations_decide_nothing() -> None:
    """Fewer observations than wanted are no evidence."""
    found = judge(AT_EDGE, histogram({0.3: 199}), enough=200)
    assert (found.verdict, found.observations) == (Verdict.UNSURE, 199)


def test_nothing_observed_is_unknown() -> None:
    """No observation leaves every number unknown, not zero."""
    found = judge(AT_EDGE, histogram({}), enough=200)
    assert (found.share_low, found.quantile_high_s) == (None, None)


def test_a_slip_needs_both_windows() -> None:
    """Two windows in a row must slip; one and a half do not."""
    clock, slo = FakeClock(), Slo((AT_EDGE,), judge_window_s=60.0, min_requests=200)
    traffic, window = Traffic(clock, share_slow=0.05), Window(2.2 * 60)
    verdicts = {}
    for second in range(0, 126, 5):
        window = window.with_snapshot(traffic.read(generation=1))
        assessment = assess(window, slo)
        assert assessment is not None
        verdicts[second] = bool(assessment.slipping())
        clock.at_s += 5
    assert not verdicts[60]
    assert not verdicts[100]
    assert verdicts[120]


def test_counters_of_two_launches_do_not_mix() -> None:
    """A new generation, or a counter that falls, begins a new window."""
    window = Window(600.0).with_snapshot(reading(0, 1, {0.05: 100}))
    assert len(window.with_snapshot(reading(5, 2, {0.05: 200})).snapshots) == 1
    assert len(window.with_snapshot(reading(5, 1, {0.05: 50})).snapshots) == 1
    assert len(window.with_snapshot(reading(5, 1, {0.05: 150})).snapshots) == 2


@given(st.lists(st.integers(0, 1000), min_size=9, max_size=9), st.floats(0.001, 0.5), st.floats(0.5, 0.999))
def test_bounds_enclose_each_other(counts: list[int], limit_s: float, quantile: float) -> None:
    """The lower bound is never above the upper one, and a verdict agrees with both."""
    edges = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, float("inf"))
    found = judge(Target("t", "itl", quantile, limit_s), histogram(dict(zip(edges, counts, strict=True))), enough=1)
    if found.share_low is None or found.share_high is None:
        assert sum(counts) == 0
        return
    assert 0 <= found.share_low <= found.share_high <= 1
    if found.verdict is Verdict.MET:
        assert found.share_low >= quantile
    if found.verdict is Verdict.SLIPPING:
        assert found.share_high < quantile
