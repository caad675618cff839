"""What is said of live values: on the status page, and by the command that sets them. Pure."""

from vllmd.report.drawing import Row, Style, clock, labelled
from vllmd.report.reading import Fields, number, part, parts, text, when, whole


def live_rows(instance: Fields) -> list[Row]:
    """Return the rows of the status page: what is set, what cannot be set and why, and why a restart would be plain."""
    live = part(instance, "live")
    knobs = parts(live, "flags")
    rows = [(set_line(knob), Style.WARN) for knob in knobs if number(knob, "asked") is not None]
    reasons: dict[str, list[str]] = {}
    for knob in knobs:
        reasons.setdefault(text(knob, "off", ""), []).append(text(knob, "flag"))
    rows += [(f"{', '.join(flags)} not live: {why}", Style.DIM) for why, flags in reasons.items() if why]
    found: list[Row] = []
    for line, style in rows:
        found += labelled("" if found else "Live", line, style)
    if plain := text(live, "plain_restart", ""):
        found += labelled("Restart", f"would refuse connections: {plain}", Style.DIM)
    return found


def set_line(knob: Fields) -> str:
    """Return what is asked for, until when, and what is in force: "max-num-batched-tokens 256 of 2048, …"."""
    asked, launched = number(knob, "asked"), whole(knob, "launched")
    if off := text(knob, "off", ""):
        return f"{text(knob, 'flag')} not live: {off}"
    if asked is None:
        return f"{text(knob, 'flag')} {launched}, as launched{_in_force(knob)}"
    until = when(knob, "until")
    end = "until it is set again" if until is None else f"until {clock(until)}"
    by = text(knob, "by", "")
    return f"{text(knob, 'flag')} {asked:.0f} of {launched}, {f'set by {by} ' if by else ''}{end}{_in_force(knob)}"


def _in_force(knob: Fields) -> str:
    """Return what is in force where that is not what is asked for; empty where it is."""
    if knob.get("settled") is not True:
        return "; in force from the engine's next step on, which an idle one makes with its next request"
    wanted = number(knob, "asked") or number(knob, "launched")
    in_force = number(knob, "in_force")
    return "" if in_force == wanted else f"; in force {in_force:.0f}, which the running requests need"
