"""Every query of the dashboard with its variables filled in, as Prometheus would get it from Grafana."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).parents[1] / "grafana" / "vllmd.json"

# What Grafana's own variables become at a short range; a test that scrapes often enough finds points in each.
GRAFANA_VARIABLES: Mapping[str, str] = {"__rate_interval": "1m", "__interval": "15s", "__range": "10m"}


@dataclass(frozen=True, slots=True)
class Query:
    """One query, and where in the dashboard it stands. `wants_decision`: it has no answer before the first one."""

    title: str
    expr: str
    wants_decision: bool


def load() -> dict[str, Any]:
    """Return the dashboard."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def queries(**variables: str) -> Iterator[Query]:
    """Yield the queries of all panels and annotations; `name` and `job` are regular expressions, any by default."""
    filled = {"name": ".*", "job": ".*", **GRAFANA_VARIABLES, **variables}
    dashboard = load()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield _query(panel["title"], target["expr"], filled)
    for annotation in dashboard["annotations"]["list"]:
        yield _query(f"annotation {annotation['name']}", annotation["expr"], filled)


def _query(title: str, expr: str, variables: Mapping[str, str]) -> Query:
    """Return a query with its variables filled in, the longest names first."""
    for name in sorted(variables, key=len, reverse=True):
        expr = expr.replace(f"${name}", variables[name])
    return Query(title, expr, "vllmd_decision_timestamp_seconds" in expr)
