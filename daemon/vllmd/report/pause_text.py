"""What is said of a pause: on the status page, and by the commands that begin and end it. Pure."""

import textwrap

from vllmd.report.drawing import WIDTH, Look, Row, Span, Style, clock, duration
from vllmd.report.reading import Fields, number, part, text, when

_INDENT = "  "


def paused_line(paused: Fields) -> str:
    """Return until when and by whom, from the `paused` of a status document: "paused until … by root (reason)"."""
    until = when(paused, "until")
    end = "until `vllmd resume`" if until is None else f"until {clock(until)}"
    reason = text(paused, "reason", "")
    kept = ", crashes are recovered" if paused.get("keep_recovery") is True else ""
    return f"paused {end} by {text(paused, 'by', '?')}{f' ({reason})' if reason else ''}{kept}"


def paused_mark(paused: Fields, look: Look) -> Span:
    """Return the same behind the mark of attention."""
    glyph, style = look.glyph("attention")
    return (f"{glyph} {paused_line(paused)}", style)


def paused_page(name: str, answer: Fields, look: Look) -> str:
    """Return what `vllmd pause` prints: until when, and exactly what is done and what is not."""
    paused = part(answer, "paused")
    glyph, style = look.glyph("attention")
    told = (_contract(paused, name), _now(text(answer, "state", "unknown"), paused))
    body = [row for said in told if said for row in _wrapped(said)]
    return look.render([[(f"{glyph} {name} {paused_line(paused)}", style)], *body, *_wrapped(_end(paused, name))])


def resumed_page(name: str, answer: Fields, look: Look) -> str:
    """Return what `vllmd resume` prints: how long it was paused, and what the server does now."""
    state = text(answer, "state", "unknown")
    glyph, style = look.glyph("ok" if state == "serving" else "attention")
    paused_s = number(answer, "paused_seconds")
    after = "" if paused_s is None else f" after {duration(paused_s)}"
    message = text(answer, "message", "")
    return look.render(
        [
            [(f"{glyph} {name} resumed{after} ({state})", style)],
            *(_wrapped(message) if message not in ("", state) else []),
            [(f"{_INDENT}`vllmd status {name} -w` to watch", Style.PLAIN)],
        ]
    )


def _contract(paused: Fields, name: str) -> str:
    """Return what the pause does."""
    if paused.get("keep_recovery") is True:
        return (
            "No flag is changed and no restart made while it serves. After a crash it is started again, "
            "with other flags where these help."
        )
    return (
        "The server is left as it is: no change, no restart, also none after a crash (--keep-recovery allows that "
        f"one). `vllmd restart {name}`, and a start of vllmd itself, still start it."
    )


def _now(state: str, paused: Fields) -> str:
    """Return what the pause means in the server's present state; empty where it serves."""
    match state:
        case "serving":
            return ""
        case "starting" | "draining":
            return f"It is {state} now: that goes on."
        case "held" | "stopped" if paused.get("keep_recovery") is not True:
            return f"It is {state} now, and stays down."
        case _:
            return f"It is {state} now."


def _end(paused: Fields, name: str) -> str:
    """Return how the pause ends."""
    by_itself = "" if when(paused, "until") is None else "It ends by itself; sooner: "
    return f"{by_itself}`vllmd resume {name}`"


def _wrapped(said: str) -> list[Row]:
    """Return a text as indented rows."""
    return [[(_INDENT + line, Style.PLAIN)] for line in textwrap.wrap(said, WIDTH - len(_INDENT))]
