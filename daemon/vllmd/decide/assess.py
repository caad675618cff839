"""From a window to an assessment: each target over the last span and over the span before it."""

from collections.abc import Sequence

from vllmd.model.decision import Assessment, Load, Target, TargetAssessment, Verdict
from vllmd.model.settings import Slo
from vllmd.model.snapshot import Histogram, Snapshot, Window

# A span counts when its readings cover this much of it: a scrape more or less is no reason to wait.
_COVERED = 0.9


def assess(window: Window, slo: Slo) -> Assessment | None:
    """Return what the window says against the targets; None while it holds nothing."""
    if not window.snapshots:
        return None
    end = window.snapshots[-1]
    middle = _reading_at(window.snapshots, end.at_s - slo.judge_window_s)
    start = _reading_at(window.snapshots, middle.at_s - slo.judge_window_s)
    return Assessment(
        at_s=end.at_s,
        generation=end.generation,
        now=judge_span(middle, end, slo),
        before=judge_span(start, middle, slo),
        load=load_between(middle, end),
    )


def judge_span(first: Snapshot, last: Snapshot, slo: Slo, span_s: float | None = None) -> tuple[TargetAssessment, ...]:
    """Judge every target on what was observed between two readings of one generation.

    `span_s` is how long they must lie apart to decide anything (by default the operator's window).
    """
    wanted_s = slo.judge_window_s if span_s is None else span_s
    covered = last.at_s - first.at_s >= _COVERED * wanted_s
    return tuple(
        judge(target, _observed(first, last, target.metric), slo.min_requests if covered else None)
        for target in slo.targets
    )


def judge(target: Target, observed: Histogram | None, enough: int | None) -> TargetAssessment:
    """Judge one target on a histogram. Fewer than `enough` observations decide nothing; None: nothing decides.

    On a bucket edge the share is exact. Between two edges it lies between the shares at them, and only a bound that
    is on one side of the objective decides.
    """
    if observed is None or observed.count <= 0:
        return TargetAssessment(target, Verdict.UNSURE, 0, None, None, None, None)
    edges = observed.buckets
    total = observed.count
    below = [n for edge, n in edges if edge <= target.limit_s]
    above = [n for edge, n in edges if edge >= target.limit_s]
    low = (below[-1] if below else 0.0) / total
    high = (above[0] if above else total) / total
    quantile_low, quantile_high = _quantile_bounds(observed, target.quantile)
    verdict = Verdict.UNSURE
    if enough is not None and total >= enough:
        verdict = _verdict(low, high, target.quantile)
    return TargetAssessment(target, verdict, int(total), low, high, quantile_low, quantile_high)


def load_between(first: Snapshot, last: Snapshot) -> Load | None:
    """Return the load between two readings; None when they are one reading or have no metrics."""
    seconds = last.at_s - first.at_s
    if seconds <= 0 or first.metrics is None or last.metrics is None:
        return None
    before, after, gauges = first.metrics.counters, last.metrics.counters, last.metrics.gauges

    def per_s(name: str) -> float:
        return max(0.0, after.get(name, 0.0) - before.get(name, 0.0)) / seconds

    return Load(
        requests_per_s=per_s("requests_finished"),
        prompt_tokens_per_s=per_s("prompt_tokens"),
        generation_tokens_per_s=per_s("generation_tokens"),
        running=gauges.get("requests_running"),
        waiting=gauges.get("requests_waiting"),
        kv_cache_usage=gauges.get("kv_cache_usage"),
    )


def _verdict(share_low: float, share_high: float, quantile: float) -> Verdict:
    if share_low >= quantile:
        return Verdict.MET
    return Verdict.SLIPPING if share_high < quantile else Verdict.UNSURE


def _quantile_bounds(observed: Histogram, quantile: float) -> tuple[float | None, float | None]:
    """Return the edges of the bucket that holds the quantile; None above the last finite edge."""
    lower = 0.0
    for edge, cumulated in observed.buckets:
        if cumulated >= quantile * observed.count:
            return lower, edge if edge != float("inf") else None
        lower = edge
    return lower, None


def _observed(first: Snapshot, last: Snapshot, metric: str) -> Histogram | None:
    if first.metrics is None or last.metrics is None or first is last:
        return None
    before, after = first.metrics.histograms.get(metric), last.metrics.histograms.get(metric)
    return after.minus(before) if before is not None and after is not None else None


def _reading_at(snapshots: Sequence[Snapshot], at_s: float) -> Snapshot:
    """Return the last reading not later than a time, the first one if all are later."""
    earlier = [s for s in snapshots if s.at_s <= at_s]
    return earlier[-1] if earlier else snapshots[0]
