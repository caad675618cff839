"""What to type next, from an instance's status. Only commands that exist."""

from vllmd.report.reading import Fields, number, part, parts, text, texts


def next_steps(instance: Fields, name: str, *, live: bool, denied: bool = False) -> tuple[str, ...]:
    """Return one or two lines, each with a command; `live` says whether the daemon answered.

    In this order: no permission, a dead daemon, a pause, a server that is held, one that is on its way, one that is
    not what is configured, an advice, all well.
    """
    if denied:
        return (f"`sudo vllmd status {name}`, or join the group of the control socket",)
    if not live:
        return _daemon_is_dead(name)
    if part(instance, "paused") and instance.get("state") != "stopped":
        return (f"`vllmd resume {name}` to end the pause", f"`vllmd history {name}` for all changes")
    match instance.get("state"):
        case "held" | "stopped":
            why = f"`vllmd explain {name}` for why"
            return (*_log(instance), f"{why}, `vllmd restart {name}` once the cause is gone")
        case "serving":
            return _serving(instance, name)
        case _:
            return (*_log(instance), f"`vllmd status {name} -w` to watch")


def _daemon_is_dead(name: str) -> tuple[str, ...]:
    """Return how to get the daemon back."""
    return (
        f"`systemctl status vllmd@{name}` where it is a service, else start `vllmd run` again",
        f"`vllmd history {name}` for all changes, `vllmd status {name} --json` for all that was told last",
    )


def _serving(instance: Fields, name: str) -> tuple[str, ...]:
    """Return the steps for a server that serves."""
    last = part(instance, "last_decision")
    changed = [text(change, "id") for change in parts(instance, "decisions")]
    reasons = f"`vllmd explain {changed[-1]} {name}` for the reasoning, " if changed else ""
    everything = f"{reasons}`vllmd history {name}` for all changes"
    if texts(instance, "pending"):
        return (f"`vllmd restart {name}` for a launch with what is configured and installed now", everything)
    if last.get("action") == "advise":
        domain = text(last, "domain", "latency")
        return (f'set mode.{domain} = "active" and start vllmd again to let it act on {text(last, "id")}', everything)
    return (f"`vllmd status {name} -w` to watch", everything)


def _log(instance: Fields) -> tuple[str, ...]:
    """Return how to read the log of the failure, at the line that decided, or else the present one."""
    failure = part(instance, "last_failure")
    line, failed = number(part(failure, "evidence"), "line"), text(failure, "log", "")
    if failed and line is not None:
        return (f"`less +{int(line)} {failed}`",)
    path = failed or text(instance, "log", "")
    return (f"`less +G {path}`",) if path else ()
