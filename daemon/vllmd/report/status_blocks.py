"""The blocks of the status page: targets, load, memory, flags, budget, decisions, the last failure. Pure."""

from collections.abc import Sequence
from datetime import datetime

from vllmd.model.plain import plain
from vllmd.report.drawing import Row, Style, clock, columns, duration, gib, labelled, latency, rate, share, tag
from vllmd.report.handover_text import handover_text
from vllmd.report.live_text import live_rows
from vllmd.report.reading import Fields, age_s, number, part, parts, text, texts, when, whole

_VERDICTS = {"met": Style.GOOD, "slipping": Style.BAD, "unsure": Style.WARN}
_EFFECTS = {"better": Style.GOOD, "serving": Style.GOOD, "worse": Style.BAD, "failed": Style.BAD}


def body(instance: Fields, now: datetime | None) -> list[Row]:
    """Return the blocks, each after an empty line; `now` is when the document was made."""
    standing = [
        *_flags(instance, now),
        *live_rows(instance),
        *_budget(instance),
        *_decisions(instance, now),
        *_failure(instance),
    ]
    blocks = (_slo(instance), _load(instance), _memory(instance), standing)
    return [row for block in blocks if block for row in ([], *block)]


def _slo(instance: Fields) -> list[Row]:
    """Return the table of targets."""
    targets = parts(instance, "slo")
    if not targets:
        return labelled("SLO", "nothing judged yet, or no target set ([slo] in the configuration)", Style.DIM)
    widths = (17, 17, 10, 20, 9, 14, 10)
    names = ("  SLO", "now", "limit", "attained", "needed", "observations", "verdict")
    heading = columns((name, width, Style.BOLD) for name, width in zip(names, widths, strict=True))
    return [heading, *(_target(target, widths) for target in targets)]


def _target(target: Fields, widths: Sequence[int]) -> Row:
    """Return one row of the table of targets."""
    limit_s, verdict = number(target, "threshold_seconds"), text(target, "verdict")
    objective = number(target, "objective")
    cells = (
        f"  {text(target, 'name')}",
        latency(number(target, "now_low_seconds"), number(target, "now_high_seconds")),
        latency(limit_s, limit_s),
        share(number(target, "attained_low"), number(target, "attained_high")),
        "-" if objective is None else f"{objective * 100:g} %",
        whole(target, "observations"),
    )
    plain_cells = [(cell, width, Style.PLAIN) for cell, width in zip(cells, widths, strict=False)]
    return columns([*plain_cells, (verdict, widths[-1], _VERDICTS.get(verdict, Style.PLAIN))])


def _load(instance: Fields) -> list[Row]:
    """Return what is asked of the server, and whether that is fresh."""
    load, data = part(instance, "load"), part(instance, "data")
    rows: list[Row] = []
    if load:
        kv_usage = number(load, "kv_cache_usage")
        asked = f"running {whole(load, 'running')}   waiting {whole(load, 'waiting')}"
        speeds = (
            f"{rate(number(load, 'requests_per_second'))} req/s   "
            f"in {rate(number(load, 'prompt_tokens_per_second'))} tok/s   "
            f"out {rate(number(load, 'generation_tokens_per_second'))} tok/s"
        )
        kv = "" if kv_usage is None else f"   KV cache {kv_usage * 100:.0f} %"
        rows += labelled("Load", f"{asked}   {speeds}{kv}")
    age = number(data, "age_seconds")
    if age is not None and instance.get("state") == "serving":
        rows += labelled("" if rows else "Load", f"metrics {duration(age)} old", Style.DIM)
    problem = text(instance, "problem", "")
    if problem:
        rows += labelled("Problem", problem, Style.WARN)
    pending = texts(instance, "pending")
    if pending:
        rows += labelled("Next launch", f"will have otherwise: {', '.join(map(plain, pending))}", Style.WARN)
    missing = texts(data, "missing_metrics")
    if missing:
        rows += labelled("Metrics", f"vLLM no longer exports: {', '.join(missing)}", Style.WARN)
    return rows


def _memory(instance: Fields) -> list[Row]:
    """Return where the memory of each GPU goes, the host's, and what the start log said where no GPU tells it."""
    gpus = parts(instance, "memory")
    rows = [row for gpu in gpus for row in _gpu(gpu, alone=len(gpus) == 1)]
    host = part(instance, "host_memory")
    if number(host, "total_bytes") is not None:
        free, whole_size = gib(number(host, "free_bytes")), gib(number(host, "total_bytes"))
        rows += labelled("Host memory", f"{free} of {whole_size} GiB free")
    said = _sizes(part(instance, "start"))
    told = any(_sizes(gpu) for gpu in gpus)
    return rows + (labelled("vLLM's start", f"{' │ '.join(said)} GiB") if said and not told else [])


def _sizes(source: Fields) -> list[str]:
    """Return the parts of a launch that are known."""
    kinds = (("weights", "weights"), ("KV", "kv_cache"), ("activation", "activation"), ("graphs", "graphs"))
    sizes = [(name, number(source, f"{kind}_bytes")) for name, kind in kinds]
    return [f"{name} {gib(size)}" for name, size in sizes if size is not None]


def _gpu(gpu: Fields, *, alone: bool) -> list[Row]:
    """Return one GPU, and every process on it that is not ours."""
    label, whole_size = "GPU memory" if alone else f"GPU {whole(gpu, 'index')}", gib(number(gpu, "total_bytes"))
    used, free = gib(number(gpu, "used_bytes")), gib(number(gpu, "free_bytes"))
    if said := _sizes(gpu):
        rows = labelled(label, f"{' │ '.join([*said, *_other(gpu), f'free {free}'])} GiB")
        rows += labelled(f"of {whole_size} GiB", f"used {used}, {text(gpu, 'name')}")
    else:
        ours = number(gpu, "ours_bytes")
        held = "" if ours is None else f", ours {gib(ours)}"
        rows = labelled(label, f"used {used} of {whole_size} GiB{held}, free {free}   {text(gpu, 'name')}")
    for process in parts(gpu, "foreign"):
        holder = f"pid {whole(process, 'pid')} {text(process, 'command')}"
        rows += labelled("", f"not ours {gib(number(process, 'bytes'))} GiB: {holder}", Style.WARN, limit=1)
    return rows


def _other(gpu: Fields) -> list[str]:
    """Return what the server needs beside the parts: outside torch, the CUDA context, the driver's own."""
    outside, rest = number(gpu, "non_torch_bytes"), number(gpu, "other_bytes")
    if rest is None:
        return [] if outside is None else [f"non-torch {gib(outside)}"]
    return [f"other {gib(rest + (outside or 0.0))}"]


def _flags(instance: Fields, now: datetime | None) -> list[Row]:
    """Return the flags that differ from the operator's command."""
    moved = [flag for flag in parts(instance, "flags") if flag.get("value") != flag.get("baseline")]
    if not moved:
        return labelled("Flags", "all as in your command")
    labels = ("Flags", "off baseline", *[""] * len(moved))
    return [_flag(flag, label, now) for flag, label in zip(moved, labels, strict=False)]


def _flag(flag: Fields, label: str, now: datetime | None) -> Row:
    """Return one flag: from the operator's value to the present one, and which decision set it when."""
    change = f"{text(flag, 'baseline', 'unset')} -> {text(flag, 'value', 'unset')}"
    age = age_s(flag, "since", now)
    set_by = text(flag, "decision", "") + ("" if age is None else f", {duration(age)} ago")
    return [
        tag(label),
        *columns(((text(flag, "name"), 26, Style.PLAIN), (change, 26, Style.PLAIN))),
        (set_by, Style.ID),
    ]


def _budget(instance: Fields) -> list[Row]:
    """Return what is used of the budget."""
    budget = part(instance, "budget")
    if not budget:
        return []
    hour, day, crashes = (_used(part(budget, name)) for name in ("restarts_hour", "restarts_day", "crashes"))
    told = f"voluntary restarts {hour} this hour, {day} today; crashes {crashes}, breaker {text(budget, 'breaker')}"
    rows = labelled("Budget", told, Style.BAD if budget.get("breaker") == "open" else Style.PLAIN)
    down = part(instance, "outage_seconds")
    causes = ", ".join(f"{cause} {lost_s:.3g} s" for cause in down if (lost_s := number(down, cause)))
    return rows + (labelled("", plain(f"without service so far: {causes}")) if causes else [])


def _used(limited: Fields) -> str:
    """Return what is used of one limit."""
    return f"{whole(limited, 'used')} of {whole(limited, 'limit')}"


def _decisions(instance: Fields, now: datetime | None) -> list[Row]:
    """Return the last decision, and the last change that was made if that is another one."""
    last = part(instance, "last_decision")
    if not last:
        return labelled("Last decision", "none yet: nothing has ended and nothing was judged")
    rows = labelled("Last decision", _decision(last, now)) + _brought(last)
    done = [change for change in parts(instance, "decisions") if change.get("action") != "advise"]
    if done and done[-1].get("id") != last.get("id"):
        rows += labelled("Last change", _decision(done[-1], now)) + _brought(done[-1])
    return rows


def _decision(decision: Fields, now: datetime | None) -> str:
    """Return one decision: a hold is never shown without its reason."""
    if decision.get("action") == "hold":
        until = when(decision, "until")
        ending = "" if until is None else f", until {clock(until)}"
        return f"hold - {text(decision, 'message')} ({text(decision, 'reason')}{ending})"
    moved = [f"{text(c, 'flag')} {text(c, 'from')} -> {text(c, 'to')}" for c in parts(decision, "changes")]
    what = f"{text(decision, 'action')} {', '.join(moved) or 'with the same flags'}"
    return f"{text(decision, 'id')} {duration(age_s(decision, 'time', now))} ago: {what} - {text(decision, 'message')}"


def _brought(decision: Fields) -> list[Row]:
    """Return what a change brought, as far as it is known."""
    if decision.get("action") in ("hold", "advise"):
        return []
    verified, outcome = part(decision, "verification"), part(decision, "outcome")
    told = handover_text(decision)
    met = labelled("", told, Style.DIM) if told else []
    if verified:
        effect = text(verified, "effect")
        style = _EFFECTS.get(effect, Style.WARN)
        return labelled("", f"verified: {effect} - {text(verified, 'message')}", style) + met
    if not outcome and decision.get("action") == "live":
        return []
    if not outcome:
        return labelled("", "under way", Style.DIM)
    down = number(outcome, "outage_seconds")
    served = "serves" if outcome.get("served") is True else "did not come to serve"
    cost = "" if down is None else f", {down:.3g} s down"
    return labelled("", f"generation {whole(outcome, 'generation')} {served}{cost}; not verified yet", Style.DIM) + met


def _failure(instance: Fields) -> list[Row]:
    """Return the last failure of a server that does not serve: what, where in the log, and the line itself."""
    failure = part(instance, "last_failure")
    if not failure or instance.get("state") == "serving":
        return []
    code = failure.get("exit_code")
    ended = "" if code is None else f", exit code {whole(failure, 'exit_code')}"
    where = f"{text(failure, 'class')} ({text(failure, 'phase')}, generation {whole(failure, 'generation')}{ended})"
    rows = labelled("Last failure", f"{where}: {text(failure, 'summary')}", Style.BAD)
    evidence = part(failure, "evidence")
    if evidence:
        rows += labelled("", f"line {whole(evidence, 'line')}: {text(evidence, 'text')}", limit=3)
    log = text(failure, "log", "")
    return rows + (labelled("", f"log {log}") if log else [])
