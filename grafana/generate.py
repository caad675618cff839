"""Writes vllmd.json, the dashboard; with --check it only compares, and fails on a difference.

Queries name only what the exporter always exports for an instance that serves, so that no panel stays empty.
"""  # noqa: INP001 - a script beside its output, not a package

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from panels import (
    DATASOURCE,
    OURS,
    SCHEMA_VERSION,
    Json,
    dashed,
    lines,
    mappings,
    organised,
    panel,
    placed,
    query,
    steps,
)
from server_rows import live, load, restarts

from vllmd.model.decision import Verdict
from vllmd.model.server import ServerState

OUTPUT = Path(__file__).with_name("vllmd.json")

STATE_COLOURS: Mapping[str, str] = {
    ServerState.SERVING: "green",
    ServerState.STARTING: "blue",
    ServerState.DRAINING: "yellow",
    ServerState.BACKOFF: "orange",
    ServerState.HELD: "red",
    ServerState.STOPPED: "text",
}
PAUSE_COLOURS: Mapping[str, str] = {"acting": "green", "paused": "yellow"}
VERDICT_COLOURS: Mapping[str, str] = {Verdict.MET: "green", Verdict.UNSURE: "yellow", Verdict.SLIPPING: "red"}


def numbered(metric: str, label: str, members: Iterable[str], kept: str) -> str:
    """Return an expression that turns a one-hot metric into the number (from 1) of the member that holds."""
    terms = (f'{n} * {metric}{{{OURS},{label}="{member}"}}' for n, member in enumerate(members, start=1))
    return f"sum by ({kept}) ({' or '.join(terms)})"


STATE = numbered("vllmd_engine_state", "state", STATE_COLOURS, "name")
PAUSED = f"1 + vllmd_paused{{{OURS}}}"
VERDICT = numbered("vllmd_slo_verdict", "verdict", VERDICT_COLOURS, "name, slo")


def tiles() -> list[Json]:
    """Return the first row: one number each."""
    slipping = f'sum by (name) (vllmd_slo_verdict{{{OURS},verdict="slipping"}})'
    outage = f"sum by (name) (increase(vllmd_outage_seconds_total{{{OURS}}}[$__range]))"
    budget = f'min by (name) (vllmd_budget_remaining_ratio{{{OURS},budget=~"restarts.*"}})'
    age = "Time since the server's metrics were last read; without them vllmd decides nothing."
    rows = (
        ("State", "What the server does.", STATE, {"mappings": mappings(STATE_COLOURS)}),
        ("Targets that slip", "Not met in the last window.", slipping, steps("none", (None, "green"), (1, "red"))),
        (
            "Flags off baseline",
            "Flags that differ from the operator's command.",
            f"vllmd_flags_off_baseline{{{OURS}}}",
            steps("none", (None, "green"), (1, "blue")),
        ),
        (
            "Without service",
            "Seconds without service in the range shown, whatever the cause.",
            outage,
            steps("s", (None, "green"), (1, "yellow"), (300, "red")),
        ),
        (
            "Restart budget left",
            "The scarcer of the hourly and the daily budget of voluntary restarts.",
            budget,
            steps("percentunit", (None, "red"), (0.01, "yellow"), (0.5, "green")),
        ),
        (
            "Age of the metrics",
            age,
            f"vllmd_data_age_seconds{{{OURS}}}",
            steps("s", (None, "green"), (60, "yellow"), (300, "red")),
        ),
    )
    look: Json = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "background", "graphMode": "none"}
    return [panel("stat", t, d, (4, 4), [query(e, "{{name}}")], defaults, options=look) for t, d, e, defaults in rows]


def states() -> list[Json]:
    """Return the timelines of the server's state, of the targets' verdicts and of the operator's pauses."""
    return [
        panel(
            "state-timeline",
            "State of the server",
            "Decisions are drawn over it as annotations.",
            (12, 6),
            [query(STATE, "{{name}}")],
            {"mappings": mappings(STATE_COLOURS)},
        ),
        panel(
            "state-timeline",
            "Verdict of each target",
            "Unsure: too few observations, or the limit lies inside a histogram bucket that decides it.",
            (12, 6),
            [query(VERDICT, "{{name}} {{slo}}")],
            {"mappings": mappings(VERDICT_COLOURS)},
        ),
        panel(
            "state-timeline",
            "Paused by the operator",
            "While it is paused vllmd changes and restarts nothing.",
            (24, 3),
            [query(PAUSED, "{{name}}")],
            {"mappings": mappings(PAUSE_COLOURS)},
        ),
    ]


def targets() -> list[Json]:
    """Return the targets: the quantile with its limit, and the share with its objective."""
    return [
        panel(
            "timeseries",
            "Latency: bounds of the quantile, and the limit",
            "A histogram tells a quantile only to its bucket: it lies between low and high.",
            (12, 8),
            [
                query(f"vllmd_slo_quantile_seconds{{{OURS}}}", "{{name}} {{slo}} {{bound}}"),
                query(f"vllmd_slo_limit_seconds{{{OURS}}}", "{{name}} {{slo}} limit"),
            ],
            lines("s", step=True),
            overrides=dashed("limit"),
        ),
        panel(
            "timeseries",
            "Share within the limit, and what is needed",
            "Exact where the limit is a bucket edge, bounds elsewhere.",
            (12, 8),
            [
                query(f"vllmd_slo_share_ratio{{{OURS}}}", "{{name}} {{slo}} {{bound}}"),
                query(f"vllmd_slo_objective_ratio{{{OURS}}}", "{{name}} {{slo}} needed"),
            ],
            {**lines("percentunit", step=True), "max": 1},
            overrides=dashed("needed"),
        ),
    ]


def flags() -> list[Json]:
    """Return the flags against the operator's baseline, as a table and over time."""
    kinds = {"value": "now", "baseline": "baseline", "min": "lower guard", "max": "upper guard"}
    drawn = [f'label_replace(vllmd_flag_{kind}{{{OURS}}}, "is", "{name}", "", "")' for kind, name in kinds.items()]
    return [
        panel(
            "table",
            "Flags against baseline",
            "Every flag that vllmd may move or has moved; the decision names what set it.",
            (12, 7),
            [query(f"vllmd_flag_info{{{OURS}}}", table=True)],
            transformations=organised(
                {"name": "instance", "value": "now"},
                ("name", "flag", "baseline", "value", "decision"),
                ("Time", "Value", "__name__", "job", "instance"),
            ),
        ),
        panel(
            "timeseries",
            "Flags over time",
            "The value in force, the operator's (dashed) and the guards; switches are 0 and 1.",
            (12, 7),
            [query(" or ".join(drawn), "{{name}} {{flag}} {{is}}")],
            lines("none", log=True, step=True),
            overrides=dashed("baseline"),
        ),
    ]


def decisions() -> list[Json]:
    """Return the table of the decisions, with the effect of those that were verified."""
    made = f"vllmd_decision_timestamp_seconds{{{OURS}}} * 1000"
    verified = f"vllmd_decision_verification{{{OURS}}}"
    identity = "instance, name, id"
    expr = f"{made} * on ({identity}) group_left (effect) {verified} or on ({identity}) {made}"
    when = [{"matcher": {"id": "byName", "options": "when"}, "properties": [{"id": "unit", "value": "dateTimeAsIso"}]}]
    return [
        panel(
            "table",
            "Decisions of the last 24 hours",
            "Each with its reason and, once it was verified, its effect.",
            (24, 8),
            [query(expr, table=True)],
            overrides=when,
            transformations=organised(
                {"name": "instance", "Value": "when"},
                ("Value", "name", "id", "action", "trigger", "change", "reason", "effect"),
                ("Time", "__name__", "job", "instance"),
            ),
        )
    ]


def memory() -> list[Json]:
    """Return who holds the memory, and where the launch's goes."""
    gpu = f'vllmd_gpu_memory_bytes{{{OURS},kind=~"total|used|free|ours|foreign"}}'
    host = f"vllmd_host_memory_bytes{{{OURS}}}"
    start = f"vllmd_start_memory_bytes{{{OURS}}}"
    kinds = "weights|kv_cache|activation|non_torch|graphs|unexplained|foreign|free"
    launched = f'vllmd_gpu_memory_bytes{{{OURS},kind="weights"}}'
    spent = f'vllmd_gpu_memory_bytes{{{OURS},kind=~"{kinds}"}} and on (instance, name, gpu) {launched}'
    return [
        panel(
            "timeseries",
            "GPU memory",
            "Total, used, free, of ours and of others. The host's memory where there is no GPU.",
            (12, 7),
            [query(f"{gpu} or on (instance, name) {host}", "{{name}} {{gpu}} {{kind}}")],
            lines("bytes"),
            overrides=dashed("total"),
        ),
        panel(
            "timeseries",
            "Where the GPU's memory goes",
            "The launch's parts, others' and what is free, on the launch's fullest GPU; without one, the start log's.",
            (12, 7),
            [
                query(
                    f"{spent} or on (instance, name) {start} or on (instance, name) {host}", "{{name}} {{gpu}} {{kind}}"
                )
            ],
            lines("bytes", stacked=True),
        ),
    ]


def costs() -> list[Json]:
    """Return why nothing was done, what changes and crashes cost, and what is left of the budget."""
    holds = f"sum by (name, by) (increase(vllmd_suppressed_total{{{OURS}}}[$__rate_interval]))"
    outage = f"sum by (name, cause) (increase(vllmd_outage_seconds_total{{{OURS}}}[$__rate_interval]))"
    return [
        panel(
            "timeseries",
            "Why nothing was done",
            "Decisions to hold, by their reason.",
            (8, 7),
            [query(holds, "{{name}} {{by}}")],
            lines("none", stacked=True, bars=True),
        ),
        panel(
            "timeseries",
            "Without service, by cause",
            "Seconds without service: changes of ours, crashes, the operator.",
            (8, 7),
            [query(outage, "{{name}} {{cause}}")],
            lines("s", stacked=True, bars=True),
        ),
        panel(
            "timeseries",
            "Budget left",
            "Voluntary restarts, and crashes until the breaker opens.",
            (8, 7),
            [query(f"vllmd_budget_remaining_ratio{{{OURS}}}", "{{name}} {{budget}}")],
            {**lines("percentunit", step=True), "max": 1},
        ),
    ]


def variables() -> list[Json]:
    """Return the variables: where Prometheus is, which instances of vllmd, which job scrapes vLLM."""

    def labels(name: str, title: str, metric: str) -> Json:
        expr = f"label_values({metric}, {name})"
        return {
            "name": name,
            "label": title,
            "type": "query",
            "datasource": DATASOURCE,
            "query": {"query": expr, "refId": name},
            "refresh": 2,
            "includeAll": True,
            "allValue": ".*",
            "multi": True,
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        }

    return [
        {
            "name": "datasource",
            "label": "Prometheus",
            "type": "datasource",
            "query": "prometheus",
            "current": {"selected": False, "text": "default", "value": "default"},
        },
        labels("name", "Instance", "vllmd_build_info"),
        labels("job", "vLLM's job", "vllm:num_requests_running"),
    ]


def annotations() -> list[Json]:
    """Return the decisions as annotations: every point of the query is one, at the time that is its value."""
    return [
        {
            "name": "Decisions",
            "enable": True,
            "iconColor": "orange",
            "datasource": DATASOURCE,
            "expr": f'vllmd_decision_timestamp_seconds{{{OURS},action!="hold"}} * 1000',
            "step": "30s",
            "useValueForTime": True,
            "titleFormat": "{{name}} {{id}} {{action}}: {{change}}",
            "textFormat": "{{reason}}",
            "tagKeys": "trigger,action",
        }
    ]


def dashboard() -> Json:
    """Return the whole dashboard."""
    rows = (tiles(), states(), targets(), flags(), decisions(), memory(), costs(), restarts(), live(), load())
    return {
        "uid": "vllmd",
        "title": "vllmd",
        "description": "What vllmd does with a vLLM server, and why.",
        "tags": ["vllmd"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "utc",
        "links": [
            {
                "type": "dashboards",
                "title": "vLLM",
                "tags": ["vllm"],
                "icon": "external link",
                "tooltip": "Dashboards of the server itself",
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
                "targetBlank": False,
            }
        ],
        "templating": {"list": variables()},
        "annotations": {"list": annotations()},
        "panels": placed([each for row in rows for each in row]),
    }


def rendered() -> str:
    """Return the dashboard as the text of its file."""
    return json.dumps(dashboard(), indent=2) + "\n"


def main() -> int:
    """Write the file, or compare it; return the exit code."""
    if "--check" not in sys.argv[1:]:
        OUTPUT.write_text(rendered(), encoding="utf-8")
        return 0
    if OUTPUT.exists() and OUTPUT.read_text(encoding="utf-8") == rendered():
        return 0
    sys.stderr.write(f"{OUTPUT} is not what {Path(__file__).name} makes: run it\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
