"""What `vllmd doctor` reads from the status of an instance: the daemon, the shim in its server, its restarts. Pure."""

from collections.abc import Iterable

from vllmd.report.doctor_text import Check, Health, restart_check
from vllmd.report.reading import Fields, number, part, parts, text, texts, whole
from vllmd.report.status_text import Seen

_SHIM_STEP = "daemon/vllmd_shim/README.md says what it needs of each vLLM; all else works without"


def daemon_check(seen: Seen) -> Check:
    """Return whether the daemon answers, and whether anything is wrong with what it does."""
    name, instance = seen.name, seen.instance
    if seen.denied:
        return Check("daemon", Health.WARN, seen.problem, f"sudo vllmd doctor {name}, or join its socket's group")
    if not seen.live:
        last = f"; it was {text(instance, 'state')} when it last told" if instance else ""
        step = f"systemctl start vllmd@{name}, or vllmd run; what follows is what is expected, not what runs"
        return Check("daemon", Health.WARN, f"does not answer: {seen.problem}{last}", step)
    state = text(instance, "state")
    if state == "held":
        said = f"held, the server stays down: {text(instance, 'message')}"
        return Check("daemon", Health.BAD, said, f"vllmd explain {name}, then vllmd restart {name}")
    if part(instance, "paused"):
        return Check("daemon", Health.WARN, f"{state}, paused by the operator", f"vllmd resume {name}")
    return Check("daemon", Health.OK, f"{state}, generation {whole(instance, 'generation')}")


def running_checks(instance: Fields) -> tuple[Check, ...]:
    """Return the shim and the restarts of the running server; none where no server serves."""
    live = part(instance, "live")
    if not live:
        return ()
    return (_metrics_read(instance), _shim(live), restart_check(text(live, "plain_restart", "") or None))


def _shim(live: Fields) -> Check:
    """Return what vllmd_shim can do in the running server, and what is off there, with each reason once."""
    knobs, beat = parts(live, "flags"), part(live, "heartbeat")
    works = [f"{text(knob, 'flag')} live" for knob in knobs if not text(knob, "off", "")]
    if beat:
        works.append(f"{whole(beat, 'steps')} steps seen")
    if number(live, "requests_in_flight") is not None:
        works.append("requests counted")
    off: dict[str, list[str]] = {}
    for knob in knobs:
        if reason := text(knob, "off", ""):
            off.setdefault(reason, []).append(text(knob, "flag"))
    missing = [f"{', '.join(flags)} not live: {reason}" for reason, flags in off.items()]
    if not beat and works:
        missing.append("no step seen yet, an idle engine makes none")
    if number(live, "requests_in_flight") is None:
        missing.append("requests not counted")
    said = _joined(works, missing)
    return Check("shim", Health.WARN, said, _SHIM_STEP) if off or not works else Check("shim", Health.OK, said)


def _joined(works: Iterable[str], missing: Iterable[str]) -> str:
    return "; ".join(filter(None, (", ".join(works), *missing)))


def _metrics_read(instance: Fields) -> Check:
    """Return whether the server's own metrics are read, and which of their names are missing."""
    data = part(instance, "data")
    age_s, missing = number(data, "age_seconds"), texts(data, "missing_metrics")
    if missing:
        said = f"vLLM {text(instance, 'vllm', '?')} does not export: {', '.join(missing)}"
        return Check(
            "scrape", Health.WARN, said, "what reads them decides nothing; a newer vllmd may know the new names"
        )
    if age_s is None:
        return Check("scrape", Health.WARN, "the server's /metrics was not read yet", "wait for the next reading")
    return Check("scrape", Health.OK, f"every metric that vllmd reads is exported, read {age_s:.0f} s ago")
