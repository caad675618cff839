"""What single values cannot show: bounds that contradict each other, and settings that are allowed but unwise."""

import difflib
from collections.abc import Iterator

from vllmd.config import schema
from vllmd.config.buckets import HISTOGRAM, edges_beside
from vllmd.config.durations import show_duration
from vllmd.config.entries import Entries
from vllmd.errors import Finding, Severity
from vllmd.model.settings import Settings


def check_guards(settings: Settings, entries: Entries) -> Iterator[Finding]:
    """Yield an error for each guard whose minimum lies above its maximum."""
    for flag, bounds in settings.guard.bounds.items():
        if bounds.low is None or bounds.high is None or bounds.low <= bounds.high:
            continue
        low, high = entries[f"guard.{flag}.min"], entries[f"guard.{flag}.max"]
        message = f"{flag} has a minimum above its maximum"
        finding = Finding(
            "E106", message, high.key, high.written, f"{bounds.low:g} or more", notes=(f"min is set in {low.origin}",)
        )
        yield high.source.at_value(finding, high.path)


def warnings(settings: Settings, entries: Entries) -> Iterator[Finding]:
    """Yield what may stay as it is, and will probably surprise."""
    yield from _limits_between_edges(settings, entries)
    yield from _short_windows(settings, entries)
    yield from _idle_budget(settings, entries)
    yield from _idle_guards(settings, entries)


def _limits_between_edges(settings: Settings, entries: Entries) -> Iterator[Finding]:
    for target in settings.slo.targets:
        edges = edges_beside(target.metric, target.limit_s)
        if not edges:
            continue
        nearest = ", ".join(_spaced(edge) for edge in edges)
        yield _warning(
            "W310",
            f"{target.name} = {_spaced(target.limit_s)} is not a bucket edge of {HISTOGRAM[target.metric]}",
            entries,
            f"slo.{target.name}",
            wanted=nearest,
            note=f"attainment would be interpolated; nearest edges: {nearest}",
        )


def _short_windows(settings: Settings, entries: Entries) -> Iterator[Finding]:
    window_s, interval_s = settings.slo.judge_window_s, settings.engine.scrape_interval_s
    if window_s < 2 * interval_s:
        yield _warning(
            "W311",
            f"judge_window = {show_duration(window_s)} holds fewer than two scrapes",
            entries,
            "slo.judge_window" if "slo.judge_window" in entries else "engine.scrape_interval",
            wanted=f"{show_duration(2 * interval_s)} or more",
            note=f"the server is scraped every {show_duration(interval_s)}; no window would ever decide anything",
        )
    if settings.budget.soak_s < window_s:
        yield _warning(
            "W312",
            f"soak = {show_duration(settings.budget.soak_s)} is shorter than judge_window",
            entries,
            "budget.soak" if "budget.soak" in entries else "slo.judge_window",
            wanted=f"{show_duration(window_s)} or more",
            note=f"a change would be verified on less than one window of {show_duration(window_s)}",
        )


def _idle_budget(settings: Settings, entries: Entries) -> Iterator[Finding]:
    hour, day = settings.budget.restarts_per_hour, settings.budget.restarts_per_day
    if hour > day:
        yield _warning(
            "W313",
            f"restarts_per_hour = {hour} is more than restarts_per_day = {day}",
            entries,
            "budget.restarts_per_hour" if "budget.restarts_per_hour" in entries else "budget.restarts_per_day",
            wanted=f"at most {day} an hour",
            note="the limit of the day is reached first",
        )


def _idle_guards(settings: Settings, entries: Entries) -> Iterator[Finding]:
    for path in entries:
        flag = schema.guarded_flag(path)
        if flag is None:
            continue
        if flag not in schema.MOVABLE:
            near = difflib.get_close_matches(flag, schema.MOVABLE, 1)
            meant = f'did you mean "{near[0]}"? ' if near else ""
            yield _warning(
                "W314",
                f"{flag} has a guard, but vllmd never moves it",
                entries,
                path,
                wanted=", ".join(schema.MOVABLE),
                note=f"{meant}vllmd moves {', '.join(schema.MOVABLE)}",
            )
        elif flag in settings.guard.frozen and "guard.frozen" in entries and flag in settings.guard.bounds:
            note = f"frozen in {entries['guard.frozen'].origin} wins: the flag is not touched"
            yield _warning("W315", f"{flag} has a guard and is frozen", entries, path, wanted="one of them", note=note)


def _warning(code: str, message: str, entries: Entries, path: str, *, wanted: str, note: str) -> Finding:
    """Return a warning that points at a key. It has no column's worth of advice, only a note."""
    entry = entries[path]
    finding = Finding(
        code, message, entry.key, entry.written, wanted, severity=Severity.WARNING, notes=(note, *entry.notes)
    )
    return entry.source.at_key(finding, entry.path)


def _spaced(seconds: float) -> str:
    """Return a latency as prose writes it: "90 ms", "2.5 s"."""
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"
