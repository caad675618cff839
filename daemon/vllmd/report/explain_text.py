"""The page of `vllmd explain`: one decision, or why nothing is done now, drawn from its document. Pure."""

from vllmd.decide.log_phase import DOING
from vllmd.model.server import Phase
from vllmd.report.drawing import Look, Style, clock, duration, share
from vllmd.report.handover_text import handover_text
from vllmd.report.history_text import change_lines, down_text, trigger_text
from vllmd.report.limits_text import limits
from vllmd.report.pause_text import paused_line
from vllmd.report.reading import Fields, number, part, parts, text, when, whole
from vllmd.report.sections import Line, Section, as_markdown, as_page, command, quote
from vllmd.report.wording import quantity

_ACTIONS = {
    "advise": "advice, nothing was done",
    "restart": "drained restart",
    "recover": "launch with other flags after a failure",
    "retry": "launch with the same flags after a failure",
    "rollback": "back to the flags before",
    "live": "set in the running server",
    "remember": "first launch with flags that served before",
    "hold": "nothing was done",
}
_EFFECTS = {"better": Style.GOOD, "serving": Style.GOOD, "worse": Style.BAD, "failed": Style.BAD}
# What set it off, where no failure did.
_CAUSES = {
    "admin": "The operator asked for a restart.",
    "live": "The operator set a value in the running server, or it came to its end.",
    "first": "vllmd started, and the ledger holds flags that served on this hardware with this model.",
    "quiet": "Nothing had failed for so long that a step back towards your own flags could be tried.",
}
# What an operator can do about a hold, by its reason.
_HELP = {
    "no_targets": "set a target in [slo] of the configuration",
    "thin_evidence": "more traffic, or a lower min_requests in [slo]",
    "frozen": "take the flag out of `frozen` in [guard]",
    "guard": "widen the flag's bounds in [guard]",
    "budget": "wait, or allow more restarts in [budget]",
    "observe_only": 'say "active" in [mode]',
    "live_set": "`vllmd set NAME FLAG=launched` ends what is set",
    "hangs": "`vllmd resume` lets vllmd end it and start it again; `vllmd restart` waits for its drain first",
    "blind": "see whether the server's /metrics answers",
}


def explain_page(document: Fields, look: Look) -> str:
    """Return the page for a terminal."""
    return as_page(*_content(document), look)


def explain_markdown(document: Fields) -> str:
    """Return the same as Markdown, to be pasted into a ticket."""
    return as_markdown(*_content(document))


def _content(document: Fields) -> tuple[str, list[Section]]:
    """Return the heading and the sections."""
    if text(document, "asked", ""):
        return _heading(document), _of_decision(document)
    state = text(part(document, "present"), "state", "unknown")
    known = state if document.get("live") is True or state == "stopped" else f"state unknown, was {state}"
    return f"{text(document, 'name')}  {known}: why nothing is done now", _of_now(document)


def _heading(document: Fields) -> str:
    """Return which decision it is, of when, and what kind."""
    decision = part(document, "decision")
    action = text(decision, "action")
    when_text = clock(when(decision, "time"))
    off = ", called off" if text(part(decision, "verification"), "effect") == "called-off" else ""
    return f"{text(decision, 'id')}  {text(document, 'name')}  {when_text}  {_ACTIONS.get(action, action)}{off}"


# One decision


def _of_decision(document: Fields) -> list[Section]:
    """Return the sections about one decision."""
    decision = part(document, "decision")
    if decision.get("action") == "hold":
        return [Section("Why", _hold(decision)), Section("What you can do", _help(document, decision))]
    return [
        Section("What happened", _happened(document, decision)),
        Section("Why", _why(decision)),
        Section("What it changes", tuple(Line(line) for line in change_lines(decision))),
        Section("Limits", limits(document, decision)),
        Section("Result", _result(decision)),
        Section("Undo", _undo(document, decision)),
    ]


def _happened(document: Fields, decision: Fields) -> tuple[Line, ...]:
    """Return the failure with its line and its log, or what else set the decision off."""
    failure = part(document, "failure")
    if not failure:
        trigger = text(decision, "trigger", "")
        slo = f"The target {trigger} was not met." if decision.get("domain") == "latency" and trigger else ""
        return (Line(_CAUSES.get(trigger) or slo or f"{trigger_text(decision)}: no failure is recorded for it."),)
    code = failure.get("exit_code")
    ended = "" if code is None else f", exit code {whole(failure, 'exit_code')}"
    where = f"{text(failure, 'class')} ({text(failure, 'phase')}, generation {whole(failure, 'generation')}{ended})"
    lines = [Line(f"{clock(when(failure, 'time'))}: {where}: {text(failure, 'summary')}", style=Style.BAD)]
    evidence, log = part(failure, "evidence"), text(failure, "log", "")
    at_line = number(evidence, "line")
    if evidence:
        lines.append(quote(f"line {whole(evidence, 'line')}: {text(evidence, 'text')}"))
    if log:
        lines.append(command(f"less +{'G' if at_line is None else int(at_line)} {log}", "is the log of that launch"))
    return tuple(lines)


def _why(decision: Fields) -> tuple[Line, ...]:
    """Return the reason, and the numbers that it rests on."""
    numbers = part(decision, "numbers")
    told = ", ".join(quantity(name, value) for name in numbers if (value := number(numbers, name)) is not None)
    lines = [Line(text(decision, "message")), Line(f"by the policy {text(decision, 'reason')}")]
    return (*lines, Line(told)) if told else tuple(lines)


def _result(decision: Fields) -> tuple[Line, ...]:
    """Return what was done, and what it brought."""
    if decision.get("action") == "advise":
        return (Line("Nothing was done: the mode is advisory."),)
    outcome, verified = part(decision, "outcome"), part(decision, "verification")
    lines: list[Line] = []
    if outcome:
        served = "serves" if outcome.get("served") is True else "did not come to serve"
        down = down_text(decision)
        lines.append(
            Line(f"generation {whole(outcome, 'generation')} {served}{'' if down == '-' else f', {down} down'}")
        )
        took = part(outcome, "start_seconds")
        known = [(phase, number(took, phase)) for phase in Phase]
        phases = [f"{DOING[phase]} {seconds:.0f} s" for phase, seconds in known if seconds is not None]
        lines += [Line(f"its start: {', '.join(phases)}")] * bool(phases)
    if told := handover_text(decision):
        lines.append(Line(told))
    if verified:
        effect = text(verified, "effect")
        lines.append(Line(f"{effect}: {text(verified, 'message')}", style=_EFFECTS.get(effect, Style.WARN)))
        shares = [number(verified, key) for key in ("before", "after")]
        if None not in shares:
            lines.append(Line(f"share within the limit {' -> '.join(share(s, s) for s in shares)}"))
    if decision.get("action") == "live" and not parts(decision, "changes"):
        return (Line("What was set is given up; the next launch begins with the launched value."),)
    if decision.get("action") == "live":
        lines.append(Line("It holds from the engine's next step on; `vllmd status` says what is in force."))
    return tuple(lines) or (Line("No outcome is recorded: it is under way, or vllmd ended before it was known."),)


def _undo(document: Fields, decision: Fields) -> tuple[Line, ...]:
    """Return how to get rid of what a change did."""
    name = text(document, "name")
    flags = [text(change, "flag") for change in parts(decision, "changes")]
    if decision.get("action") == "advise" or not flags:
        return (Line("There is nothing to undo: no flag was changed."), command(f"vllmd status {name}", "for now"))
    if decision.get("action") == "live":
        lasts = "; so does a restart of the server" if decision.get("domain") == "admin" else " for this vllmd"
        return (command(f"vllmd set {name} {flags[0]}=launched", f"ends it{lasts}"),)
    present = parts(part(document, "present"), "flags")
    in_force = [text(f, "name") for f in present if f.get("decision") == decision.get("id")]
    now = f"Still in force: {', '.join(in_force)}." if in_force else "None of its flags is in force by it any more."
    return (
        Line(now),
        command(f"vllmd forget {name}", "and then a start of vllmd launches your own flags again"),
        command(f"vllmd pause {name}", "keeps vllmd from changing anything until then"),
        Line(f'To keep it for good: frozen = ["{flags[0]}"] in [guard] of the configuration.'),
    )


# Why nothing is done now


def _of_now(document: Fields) -> list[Section]:
    """Return the sections about the present."""
    present, decision = part(document, "present"), part(document, "decision")
    sections = [Section("Now", _now(document, present))]
    if decision:
        sections.append(Section("The last hold that was recorded", _hold(decision)))
    holds = part(present, "holds")
    counted = sorted(((number(holds, reason) or 0.0, reason) for reason in holds), reverse=True)
    told = tuple(Line(f"{reason} {count:.0f}") for count, reason in counted)
    sections.append(Section("Holds since vllmd began, by reason", told or (Line("none"),)))
    return [*sections, Section("What you can do", _help(document, _standing(document)))]


def _now(document: Fields, present: Fields) -> tuple[Line, ...]:
    """Return what goes on, and the last decision."""
    lines = []
    if document.get("live") is not True:
        lines.append(Line("vllmd is not running, so nothing is decided.", style=Style.BAD))
    paused, last = part(present, "paused"), part(present, "last_decision")
    if paused:
        lines.append(Line(paused_line(paused), style=Style.WARN))
    lines.append(Line(text(present, "message", "it has told nothing yet")))
    if last.get("action") == "hold":
        lines.append(Line(f"hold ({text(last, 'reason')}): {text(last, 'message')}"))
    elif last:
        lines.append(Line(f"the last decision was to act: {text(last, 'id')}, {text(last, 'action')}"))
    return tuple(lines)


def _standing(document: Fields) -> Fields:
    """Return the hold that stands: the last decision if it is one, else the last that was recorded."""
    last = part(part(document, "present"), "last_decision")
    return last if last.get("action") == "hold" else part(document, "decision")


def _hold(decision: Fields) -> tuple[Line, ...]:
    """Return a hold with its reason, its time and its end."""
    until = when(decision, "until")
    ending = () if until is None else (Line(f"until {clock(until)}"),)
    reason = Line(f"{text(decision, 'reason')}: {text(decision, 'message')}")
    return (Line(clock(when(decision, "time"))), reason, *ending)


def _help(document: Fields, hold: Fields) -> tuple[Line, ...]:
    """Return what helps against a hold, and where to look on."""
    name, reason = text(document, "name"), text(hold, "reason", "")
    present = part(document, "present")
    age = number(part(present, "data"), "age_seconds")
    lines = []
    if document.get("live") is not True:
        lines.append(Line("Start vllmd again."))
    if part(present, "paused"):
        lines.append(command(f"vllmd resume {name}", "ends the pause"))
    elif present.get("state") == "held":
        lines.append(command(f"vllmd restart {name}", "once the cause is gone"))
    if reason in _HELP:
        fresh = f" (last read {duration(age)} ago)" if reason == "blind" and age is not None else ""
        lines.append(Line(f"{_HELP[reason]}{fresh}"))
    return (*lines, command(f"vllmd history {name} --all", "for all that was decided, holds too"))
