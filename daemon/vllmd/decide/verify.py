"""What a change brought: each target before it and after its soak, at like load.

The quantile decides first, by the bucket that holds it, and only within one bucket the share within the limit: on the
way down the ladder a prompt takes two steps of half the length, so that more gaps are beyond a tight limit while each
is shorter, and the share alone would take back what helps.
"""

from dataclasses import dataclass

from vllmd.decide.assess import judge_span, load_between
from vllmd.model.decision import Assessment, Change, Effect, Load, TargetAssessment, Verdict, Verification
from vllmd.model.settings import Slo
from vllmd.model.snapshot import Window

# Not judged after a launch: caches fill and kernels compile (control theory of the project: 60 s).
WARMUP_S = 60.0
# A soak that sees another load, or too little of it, is prolonged this often before the answer is "unknown".
SOAKS = 3
# Like load: prompt tokens a second within this factor of those before. Wider, and the load explains the difference.
LIKE_LOAD = 1.5
# The share outside the limit must change by a tenth of itself and by 0.1 points to count: below it, two windows of
# one configuration differ as much.
# More requests than these waiting beyond those before: not the chance of one reading.
_QUEUE = 4.0
_RELATIVE, _ABSOLUTE = 0.10, 0.001


@dataclass(frozen=True, slots=True)
class Trial:
    """A change under verification: the assessment that led to it, and since when it is in force and served (unix).

    `cold`: with a launch, whose caches fill and whose kernels compile; a live change has none.
    """

    change: Change
    before: Assessment
    serving_since_s: float
    cold: bool = True


def warmup_s(soak_s: float) -> float:
    """Return how long after a launch nothing is judged: a minute, or a quarter of a shorter soak."""
    return min(WARMUP_S, soak_s / 4)


def verify(trial: Trial, window: Window, slo: Slo, soak_s: float, now_s: float) -> Verification | None:
    """Return the effect of a change; None while it soaks."""
    age_s = now_s - trial.serving_since_s
    if age_s < soak_s:
        return None
    warm_s = trial.serving_since_s + (warmup_s(soak_s) if trial.cold else 0.0)
    soaked = window.since(warm_s).snapshots
    last_chance = age_s >= SOAKS * soak_s
    if len(soaked) < 2:  # noqa: PLR2004 - a span has two ends
        return _unknown(trial, now_s, "no metrics during the soak") if last_chance else None
    after = judge_span(soaked[0], soaked[-1], slo, span_s=0.5 * soak_s)
    load = load_between(soaked[0], soaked[-1])
    enough = [t for t in after if t.observations >= slo.min_requests]
    if trial.change.proposal.trigger not in {t.target.name for t in enough}:
        return _unknown(trial, now_s, "too few observations during the soak") if last_chance else None
    if not alike(trial.before.load, load):
        return _unknown(trial, now_s, "the load was another one during the soak") if last_chance else None
    return _compare(trial, tuple(enough), now_s)


def _compare(trial: Trial, after: tuple[TargetAssessment, ...], now_s: float) -> Verification:
    """Worse if any target became worse, better if the one that led to the change did, else the same."""
    before = {t.target.name: t for t in trial.before.now}
    effects = {t.target.name: effect_on(before.get(t.target.name), t) for t in after}
    led = trial.change.proposal.trigger
    worse = [name for name, effect in effects.items() if effect is Effect.WORSE]
    named = worse[0] if worse else led if led in effects else next(iter(effects), led)
    effect = Effect.WORSE if worse else effects.get(named, Effect.UNKNOWN)
    was, now = before.get(named), next((t for t in after if t.target.name == named), None)
    share_was, share_now = (was.share_low if was else None), (now.share_low if now else None)
    text = f"{named}: {_told(now)}; before: {_told(was)}"
    return Verification(trial.change.id, now_s, effect, text, share_was, share_now)


def effect_on(before: TargetAssessment | None, after: TargetAssessment) -> Effect:
    """Return what became of one target."""
    if before is None or before.share_low is None or after.share_low is None:
        return Effect.UNKNOWN
    # A target that still holds is not harmed: every ITL remedy costs some TTFT.
    harm = Effect.SAME if after.verdict is Verdict.MET else Effect.WORSE
    if before.quantile_low_s is not None and after.quantile_low_s is not None:
        if after.quantile_low_s < before.quantile_low_s:
            return Effect.BETTER
        if after.quantile_low_s > before.quantile_low_s:
            return harm
    outside_before, outside_after = 1 - before.share_low, 1 - after.share_low
    threshold = max(_ABSOLUTE, _RELATIVE * outside_before)
    if outside_after > outside_before + threshold:
        return harm
    return Effect.BETTER if outside_after < outside_before - threshold else Effect.SAME


def alike(before: Load | None, after: Load | None) -> bool:
    """Return whether two loads can be compared."""
    if before is None or after is None or before.prompt_tokens_per_s <= 0:
        return False
    ratio = after.prompt_tokens_per_s / before.prompt_tokens_per_s
    # What is counted is what was served: less of it beside a longer queue is the change's own doing.
    queued = (after.waiting or 0.0) > (before.waiting or 0.0) + _QUEUE
    return ratio <= LIKE_LOAD and (ratio >= 1 / LIKE_LOAD or queued)


def _unknown(trial: Trial, now_s: float, why: str) -> Verification:
    return Verification(trial.change.id, now_s, Effect.UNKNOWN, why)


def _told(found: TargetAssessment | None) -> str:
    if found is None or found.share_low is None or found.quantile_low_s is None:
        return "unknown"
    low, high = found.quantile_low_s * 1000, found.quantile_high_s
    span = f"above {low:g} ms" if high is None else f"{low:g}-{high * 1000:g} ms"
    return f"{span}, {found.share_low:.2%} within {found.target.limit_s * 1000:g} ms"
