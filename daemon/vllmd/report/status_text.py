"""The text page of one instance, drawn from its status document as `vllmd status NAME` shows it. Pure."""

from dataclasses import dataclass
from datetime import datetime

from vllmd.report.drawing import Look, Row, Style, clock, duration, labelled
from vllmd.report.next_step import next_steps
from vllmd.report.pause_text import paused_mark
from vllmd.report.reading import Fields, age_s, part, parts, text, when, whole
from vllmd.report.status_blocks import body


@dataclass(frozen=True, slots=True)
class Seen:
    """What could be learned of one instance. `problem` is empty when the daemon itself answered."""

    name: str
    document: Fields | None
    problem: str = ""
    denied: bool = False  # the daemon may well live: the caller may not ask it

    @property
    def instance(self) -> Fields:
        """The instance's part of the document; empty when there is none."""
        found = [] if self.document is None else parts(self.document, "instances")
        return next((i for i in found if i.get("name") == self.name), found[0] if found else {})

    @property
    def live(self) -> bool:
        """Whether the daemon answered."""
        return not self.problem

    @property
    def told_at(self) -> datetime | None:
        """When the document was made."""
        return None if self.document is None else when(self.document, "time")


def page(seen: Seen, look: Look, now: datetime | None = None) -> str:
    """Return the page of one instance, at most 100 columns wide. `now` is only needed when the daemon is dead."""
    if not seen.instance:
        return look.render(_nothing_known(seen, look))
    return look.render([*_head(seen, look, now), *body(seen.instance, seen.told_at), [], *_next(seen)])


def _nothing_known(seen: Seen, look: Look) -> list[Row]:
    """Return the page of an instance that left nothing to show."""
    glyph, style = look.glyph("unknown")
    return [
        [(f"{glyph} {seen.name}  state unknown", style)],
        *labelled("", seen.problem or "the daemon has nothing to tell yet"),
        [],
        *_next(seen),
    ]


def _head(seen: Seen, look: Look, now: datetime | None) -> list[Row]:
    """Return who it is, what state it is in and since when."""
    instance, told_at = seen.instance, seen.told_at
    # A daemon that told "stopped" ended as it was asked to: nothing about it is unknown.
    known = seen.live or instance.get("state") == "stopped"
    glyph, style = look.glyph(text(instance, "health") if known else "unknown")
    state = headline(instance) if known else f"state unknown, was {headline(instance)}"
    rows: list[Row] = [
        [(f"{glyph} {text(instance, 'name')}  {state}", style)],
        [(f"  {_facts(seen)}", Style.DIM)],
    ]
    if not seen.live:
        silent = "" if now is None or told_at is None else f", {duration((now - told_at).total_seconds())} ago"
        told = f"vllmd is not running; last seen {clock(told_at)}{silent} ({seen.problem})"
        rows += labelled("Daemon", told, Style.BAD)
    paused = part(instance, "paused")
    if paused:
        rows.append([("  ", Style.PLAIN), paused_mark(paused, look)])
    rows.append([(f"  {_process(instance, told_at)}", Style.PLAIN)])
    rows.append([(f"  {text(instance, 'model', 'model not known yet')}", Style.PLAIN)])
    return rows + labelled("Now", text(instance, "message"))


def _process(instance: Fields, told_at: datetime | None) -> str:
    """Return since when the state lasts, and which process it is about."""
    lasting = duration(age_s(instance, "since", told_at))
    known = [f"{name} {whole(instance, name)}" for name in ("generation", "pid") if instance.get(name)]
    return ", ".join([f"since {clock(when(instance, 'since'))} ({lasting})", *known, text(instance, "url")])


def headline(instance: Fields) -> str:
    """Return the state in words, and what the targets say of a server that serves."""
    state = text(instance, "state", "unknown")
    if state != "serving":
        return state
    verdicts = {text(slo, "name"): text(slo, "verdict") for slo in parts(instance, "slo")}
    slipping = [name for name, verdict in verdicts.items() if verdict == "slipping"]
    if slipping:
        return f"serving, slipping: {', '.join(slipping)}"
    if not verdicts:
        return "serving, no SLO judged"
    return "serving, SLO met" if set(verdicts.values()) == {"met"} else "serving, SLO unsure"


def _facts(seen: Seen) -> str:
    """Return versions, modes and the place in one line."""
    instance, document = seen.instance, seen.document or {}
    mode = part(instance, "mode")
    found = [
        "simulated server" if instance.get("simulated") is True else "",
        f"vllmd {text(document, 'vllmd')}",
        f"vLLM {text(instance, 'vllm', '?')}",
        f"memory {text(mode, 'memory')}, latency {text(mode, 'latency')}",
        text(document, "host", ""),
    ]
    return " · ".join(fact for fact in found if fact)


def _next(seen: Seen) -> list[Row]:
    """Return the next steps as rows."""
    steps = next_steps(seen.instance, seen.name, live=seen.live, denied=seen.denied)
    return [[(f"  {step}", Style.COMMAND)] for step in steps]
