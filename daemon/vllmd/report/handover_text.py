"""What is said of how connections came over a restart, drawn from its part of a decision's document. Pure."""

import math

from vllmd.report.reading import Fields, number, part, text


def handover_text(decision: Fields) -> str:
    """Return it in one line; empty where the decision ended no restart."""
    restart = part(part(decision, "outcome"), "restart")
    if not restart:
        return ""
    cut = _count(number(restart, "requests_cut"), "request", "cut")
    if plain := text(restart, "plain", ""):
        return f"plain restart, connections were refused meanwhile: {plain}; {cut}"
    refused = number(restart, "requests_refused")
    told = "" if not refused else f", {refused:.0f} refused with 503"
    return f"{text(restart, 'kind')} restart: {_held(restart)}; {cut}{told}"


def _held(restart: Fields) -> str:
    held, longest_s = number(restart, "connections_held"), number(restart, "longest_wait_seconds")
    if not held:
        return "no connection had to wait" if held == 0 else "how many connections waited is not known"
    most = number(restart, "most_held_at_once")
    at_once = "" if most is None or most == held else f" ({most:.0f} at once)"
    longest = "" if longest_s is None else f", {math.ceil(longest_s * 10) / 10:g} s at most"
    return f"{_count(held, 'connection', 'waited')}{at_once}{longest}"


def _count(count: float | None, noun: str, what: str) -> str:
    """Return "3 requests cut", "no request cut", or that it is not known."""
    if count is None:
        return f"{noun}s {what}: not known"
    if not count:
        return f"no {noun} {what}"
    return f"{count:.0f} {noun}{'' if count == 1 else 's'} {what}"
