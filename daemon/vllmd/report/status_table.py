"""The table of several instances, with a note under it for each that needs attention. Pure."""

from collections.abc import Sequence

from vllmd.report.drawing import Look, Row, Style, columns, labelled
from vllmd.report.next_step import next_steps
from vllmd.report.pause_text import paused_mark
from vllmd.report.reading import Fields, part, parts, text, whole
from vllmd.report.status_text import Seen, headline

_COLUMNS = (
    ("INSTANCE", 12),
    ("STATE", 9),
    ("MODE", 16),
    ("MODEL", 20),
    ("SLO", 9),
    ("RESTARTS", 9),
    ("FLAGS", 6),
    ("DECISION", 15),
)


def table(seen: Sequence[Seen], look: Look) -> str:
    """Return one line an instance, then what to do about those that need it."""
    width = max(map(len, ("OK", *(look.glyph(_health(s))[0] for s in seen))))
    gap = (" " * (width + 2), Style.PLAIN)
    heading = [gap, *columns((name, size, Style.DIM) for name, size in _COLUMNS)]
    notes = [row for s in seen if _health(s) != "ok" for row in _note(s, look)]
    ending: list[Row] = [[], [("`vllmd status NAME` for the page of one", Style.PLAIN)]]
    return look.render([heading, *(_line(s, look, width) for s in seen), *([[], *notes] if notes else []), *ending])


def _health(seen: Seen) -> str:
    """Return the health of an instance; unknown when its daemon did not answer."""
    return text(seen.instance, "health", "unknown") if seen.live else "unknown"


def _line(seen: Seen, look: Look, width: int) -> Row:
    """Return the line of one instance."""
    glyph, style = look.glyph(_health(seen))
    cells = ((cell, size, Style.PLAIN) for cell, (_, size) in zip(_cells(seen), _COLUMNS, strict=True))
    return [(f"{glyph:<{width}}  ", style), *columns(cells)]


def _cells(seen: Seen) -> tuple[str, ...]:
    """Return the texts of one line, in the order of the columns."""
    instance = seen.instance
    if not seen.live:
        return (seen.name, "unknown", *["-"] * (len(_COLUMNS) - 2))
    mode, hour = part(instance, "mode"), part(part(instance, "budget"), "restarts_hour")
    moved = sum(1 for flag in parts(instance, "flags") if flag.get("value") != flag.get("baseline"))
    last = part(instance, "last_decision")
    return (
        seen.name,
        text(instance, "state", "unknown"),
        f"{text(mode, 'memory')}/{text(mode, 'latency')}",
        text(instance, "model"),
        _slo(instance),
        f"{whole(hour, 'used')} of {whole(hour, 'limit')}",
        f"{moved} off" if moved else "base",
        f"{text(last, 'id', '')} {text(last, 'action')}".strip() if last else "none yet",
    )


def _slo(instance: Fields) -> str:
    """Return what the targets say, in one word."""
    verdicts = [slo.get("verdict") for slo in parts(instance, "slo")]
    if "slipping" in verdicts:
        return "slipping"
    if not verdicts:
        return "-"
    return "met" if set(verdicts) == {"met"} else "unsure"


def _note(seen: Seen, look: Look) -> list[Row]:
    """Return why an instance needs attention, and what to type."""
    glyph, style = look.glyph(_health(seen))
    told = f"{headline(seen.instance)}: {text(seen.instance, 'message')}" if seen.live else seen.problem
    first: Row = [(f"{glyph} {seen.name}  ", style), (told, Style.PLAIN)]
    pause = part(seen.instance, "paused") if seen.live else {}
    paused: list[Row] = [[("  ", Style.PLAIN), paused_mark(pause, look)]] if pause else []
    failure = part(seen.instance, "last_failure")
    past = text(seen.instance, "state") in {"serving", "stopped"}
    cause = [] if past or not failure else labelled("cause", text(failure, "summary"))
    steps = next_steps(seen.instance, seen.name, live=seen.live, denied=seen.denied)
    return [first, *paused, *cause, *(row for step in steps[:1] for row in labelled("next", step))]
