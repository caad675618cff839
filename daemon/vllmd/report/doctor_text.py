"""The page and the document of `vllmd doctor`: one line a check, and what to do where it is not well. Pure."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from vllmd.model.plain import plain
from vllmd.report.drawing import WIDTH, Look, Row, Style

DOCTOR_SCHEMA = "vllmd.doctor/v1"

_NAME_WIDTH = 11
_TEXT_LIMIT = 600
_MOST_LINES = 4


class Health(StrEnum):
    """What a check says. Only BAD fails `vllmd doctor`."""

    OK = "ok"
    WARN = "attention"  # it works, with less
    BAD = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what it looked at, what it says, and what the operator does next (empty: nothing)."""

    name: str
    health: Health
    said: str
    step: str = ""


# What to do about a reason for a plain restart, by words of that reason (act/parked_port.py, act/live_block.py).
_PLAIN_STEPS = (
    ("tcp_migrate_req is 0", "as root: sysctl -w net.ipv4.tcp_migrate_req=1; systemd/sysctl.d/20-vllmd.conf keeps it"),
    ("no net.ipv4.tcp_migrate_req", "a kernel of Linux 5.14 or later; until then restarts refuse connections"),
    ("UNIX socket", "--host and --port instead of --uds"),
    ("API servers", "--api-server-count=1, if one is enough for your load"),
    ("VLLM_PLUGINS", "add vllmd_shim to VLLM_PLUGINS in engine.env_file, then vllmd restart"),
    ("engine.shim", "engine.shim = true, a reload, then vllmd restart"),
    (
        "cannot be parked here",
        "let the container or its seccomp filter allow SO_REUSEPORT and SO_ATTACH_REUSEPORT_CBPF",
    ),
    ("vllmd_shim", "see the line about the shim"),
)


def restart_check(plain_because: str | None) -> Check:
    """Return what is said of restarts: planned, or plain for a reason."""
    if plain_because is None:
        return Check("restart", Health.OK, "planned: connections wait for the next server, none is refused")
    step = next((step for words, step in _PLAIN_STEPS if words in plain_because), "")
    return Check("restart", Health.WARN, f"plain, connections are refused meanwhile: {plain_because}", step)


def failed(checks: Sequence[Check]) -> bool:
    """Whether something is bad."""
    return any(check.health is Health.BAD for check in checks)


def doctor_page(name: str, checks: Sequence[Check], look: Look) -> str:
    """Return the page, at most 100 columns wide but for what is to be typed."""
    counts = {health: sum(check.health is health for check in checks) for health in Health}
    summary = f"{name}: {counts[Health.BAD]} bad, {counts[Health.WARN]} to look at, {counts[Health.OK]} ok"
    return look.render([row for check in checks for row in _rows(check, look)] + [[], [(summary, Style.BOLD)]])


def _rows(check: Check, look: Look) -> list[Row]:
    mark, style = look.glyph(check.health)
    indent = (4 if look.ascii else 1) + 1 + _NAME_WIDTH
    lines = textwrap.wrap(
        plain(check.said, _TEXT_LIMIT),
        WIDTH - indent,
        max_lines=_MOST_LINES,
        placeholder=" ...",
        break_on_hyphens=False,
    )
    first, *others = lines or [""]
    head: Row = [
        (f"{mark:<{4 if look.ascii else 1}} ", style),
        (f"{check.name:<{_NAME_WIDTH}}", Style.BOLD),
        (first, Style.PLAIN),
    ]
    rows: list[Row] = [head, *([(" " * indent + line, Style.PLAIN)] for line in others)]
    return rows + ([[(" " * indent + f"-> {plain(check.step, _TEXT_LIMIT)}", Style.COMMAND)]] if check.step else [])


def doctor_document(name: str, checks: Sequence[Check]) -> dict[str, Any]:
    """Return the same for scripts."""
    words = {Health.OK: "ok", Health.WARN: "warn", Health.BAD: "bad"}
    found = [
        {"check": check.name, "verdict": words[check.health], "message": check.said, "step": check.step or None}
        for check in checks
    ]
    return {"schema": DOCTOR_SCHEMA, "name": name, "bad": failed(checks), "checks": found}
