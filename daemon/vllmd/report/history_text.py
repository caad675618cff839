"""The table of `vllmd history`, drawn from its document. Pure."""

import textwrap
from collections.abc import Sequence
from datetime import UTC

from vllmd.report.drawing import WIDTH, Look, Row, Style, columns
from vllmd.report.handover_text import handover_text
from vllmd.report.reading import Fields, number, part, parts, text, when

_COLUMNS = (("ID", 6), ("WHEN (UTC)", 15), ("TRIGGER", 23), ("CHANGE", 37), ("DOWN", 7))
_MOST_FLAGS = 5  # lines of one decision
_MOST_LINES = 3  # of what a restart meant for its clients
_MINUTE_S = 60.0
_LONG_S = 1000.0  # from here on minutes read better
_SHORT_S = 10.0  # below, tenths matter

# What set a decision off, where the ledger's word is not the operator's.
_TRIGGERS = {"admin": "asked for", "live": "set live", "first": "first launch", "quiet": "quiet time"}
# An effect or a state of a decision: its health (which has a glyph) and its word.
_RESULTS = {
    "serving": ("ok", "serves"),
    "better": ("ok", "better"),
    "same": ("attention", "same"),
    "unknown": ("attention", "unsure"),
    "worse": ("failed", "worse"),
    "failed": ("failed", "failed"),
    "called-off": ("stopped", "not done"),
}


def history_page(document: Fields, look: Look) -> str:
    """Return the table of a history document, newest first, with what is not shown and what to type next."""
    decisions, name = parts(document, "decisions"), text(document, "name")
    rows: list[Row] = [columns((title, width, Style.DIM) for title, width in (*_COLUMNS, ("RESULT", 7)))]
    for decision in decisions:
        rows += _lines(decision, look)
    if not decisions:
        rows = [[("No decision is recorded of that time and kind.", Style.PLAIN)]]
    footer = [[(line, Style.PLAIN)] for line in (_sum(decisions), _hidden(document), *_next(document, name)) if line]
    return look.render([*rows, [], *footer])


def trigger_text(decision: Fields) -> str:
    """Return what set a decision off; a hold has its reason."""
    if decision.get("action") == "hold":
        return text(decision, "reason")
    trigger = text(decision, "trigger")
    known = _TRIGGERS.get(trigger, trigger)
    back = "rollback" in (decision.get("action"), decision.get("reason"))
    return f"rollback {known}" if back else known


def change_lines(decision: Fields) -> list[str]:
    """Return what a decision moves, a line a flag."""
    if decision.get("action") == "hold":
        return [f"none: {text(decision, 'message')}"]
    moved = [f"{text(c, 'flag')} {text(c, 'from')} -> {text(c, 'to')}" for c in parts(decision, "changes")]
    if not moved and decision.get("action") == "live":
        return [f"none: {text(decision, 'message')}"]
    return moved or ["same flags again" if decision.get("action") == "retry" else "same flags"]


def down_text(decision: Fields) -> str:
    """Return how long a change took the service away."""
    down_s = number(decision, "outage_seconds")
    if down_s is None:
        return "-"
    if down_s >= _LONG_S:
        return f"{down_s / _MINUTE_S:.0f} min"
    return f"{down_s:.1f} s" if down_s < _SHORT_S else f"{down_s:.0f} s"


def result_of(decision: Fields) -> tuple[str, str]:
    """Return the health of a decision's result, and the result in a word."""
    if decision.get("action") == "hold":
        return ("stopped", "held")
    if decision.get("action") == "advise":
        return ("stopped", "advised")
    if decision.get("action") == "live" and not parts(decision, "changes"):
        return ("attention", "lost")
    if decision.get("action") == "live" and decision.get("domain") == "admin":
        return ("ok", "set")
    verified, outcome = part(decision, "verification"), part(decision, "outcome")
    if verified:
        return _RESULTS.get(text(verified, "effect"), ("unknown", text(verified, "effect")))
    if not outcome:
        return ("unknown", "open")
    return ("attention", "serves") if outcome.get("served") is True else ("failed", "failed")


def _lines(decision: Fields, look: Look) -> list[Row]:
    """Return the lines of one decision: one, one more for each further flag, and what a restart meant for clients."""
    at = when(decision, "time")
    first, *others = change_lines(decision)[:_MOST_FLAGS]
    day = "-" if at is None else f"{at.astimezone(UTC):%m-%d %H:%M:%S}"
    health, word = result_of(decision)
    glyph, style = look.glyph(health)
    cells = (text(decision, "id"), day, trigger_text(decision), first, down_text(decision))
    styles = (Style.ID, *[Style.PLAIN] * (len(cells) - 1))
    sizes = [width for _, width in _COLUMNS]
    indent = " " * sum(sizes[:3])
    return [
        [*columns(zip(cells, sizes, styles, strict=True)), (f"{glyph} {word}", style)],
        *([(indent, Style.PLAIN), (other, Style.PLAIN)] for other in others),
        *([(" " * sizes[0], Style.PLAIN), (line, Style.DIM)] for line in _told(handover_text(decision), sizes[0])),
    ]


def _told(line: str, indent: int) -> list[str]:
    """Return a sentence, wrapped."""
    return textwrap.wrap(line, WIDTH - indent, max_lines=_MOST_LINES, placeholder=" ...", break_on_hyphens=False)


def _called_off(decision: Fields) -> bool:
    return text(part(decision, "verification"), "effect") == "called-off"


def _sum(decisions: Sequence[Fields]) -> str:
    """Return how many changes are shown, and what they cost."""
    made = [d for d in decisions if d.get("action") not in ("hold", "advise") and not _called_off(d)]
    if not made:
        return ""
    down = [down_s for d in made if (down_s := number(d, "outage_seconds")) is not None]
    count = "1 change" if len(made) == 1 else f"{len(made)} changes"
    return f"{count} made, {sum(down):.0f} s without service for it."


def _hidden(document: Fields) -> str:
    """Return what is not shown."""
    holds, unreadable = number(document, "hidden_holds"), number(document, "unreadable")
    kept = f"{holds:.0f} {'hold' if holds == 1 else 'holds'} not shown (--all). " if holds else ""
    lost = f"{unreadable:.0f} entries of another version cannot be read. " if unreadable else ""
    older = text(document, "before", "")
    return f"{kept}{lost}{f'Next page: --before {older}' if older else ''}".rstrip()


def _next(document: Fields, name: str) -> list[str]:
    """Return what to type next."""
    decisions = parts(document, "decisions")
    shown = next((d for d in decisions if d.get("action") != "hold"), decisions[0] if decisions else None)
    if shown is None:
        return [f"`vllmd status {name}` for what it does"]
    return [f"`vllmd explain {text(shown, 'id')} {name}` for the reasoning"]
