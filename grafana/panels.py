"""The building blocks of a Grafana dashboard: queries, panels, how they are drawn, where they lie."""  # noqa: INP001 - beside its script

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]

SCHEMA_VERSION = 39  # Grafana 10.4
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
OURS = 'name=~"$name"'
THEIRS = 'job=~"$job"'
_COLUMNS = 24


def query(expr: str, legend: str = "", *, table: bool = False) -> Json:
    """Return one query of a panel; a table asks for the present moment only."""
    shape = {"format": "table", "instant": True, "range": False} if table else {"range": True}
    return {"datasource": DATASOURCE, "editorMode": "code", "expr": expr, "legendFormat": legend, **shape}


def mappings(colours: Mapping[str, str]) -> list[Json]:
    """Return what draws the numbers of `numbered` as words and colours."""
    options = {
        str(n): {"index": n, "text": str(member), "color": colour}
        for n, (member, colour) in enumerate(colours.items(), start=1)
    }
    return [{"type": "value", "options": options}]


def panel(
    kind: str,
    title: str,
    description: str,
    size: tuple[int, int],
    queries: Sequence[Json],
    defaults: Json | None = None,
    **more: Json | list[Json],
) -> Json:
    """Return a panel of (width, height) without its place."""
    targets = [{**found, "refId": chr(ord("A") + n)} for n, found in enumerate(queries)]
    width, height = size
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "gridPos": {"w": width, "h": height},
        "targets": targets,
        "fieldConfig": {"defaults": defaults or {}, "overrides": more.pop("overrides", [])},
        **more,
    }


def lines(unit: str, *, stacked: bool = False, bars: bool = False, log: bool = False, step: bool = False) -> Json:
    """Return the defaults of a time series."""
    custom: Json = {
        "drawStyle": "bars" if bars else "line",
        "fillOpacity": 60 if bars else 10 if stacked else 0,
        "lineInterpolation": "stepAfter" if step else "linear",
        "showPoints": "never",
        "stacking": {"mode": "normal" if stacked else "none"},
        "scaleDistribution": {"type": "log", "log": 10} if log else {"type": "linear"},
    }
    return {"unit": unit, "min": 0, "custom": custom} if not log else {"unit": unit, "custom": custom}


def dashed(name: str) -> list[Json]:
    """Return the override that draws the series whose names end like this as a red dashed line."""
    style = {"fill": "dash", "dash": [10, 6]}
    return [
        {
            "matcher": {"id": "byRegexp", "options": f".*{name}$"},
            "properties": [
                {"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}},
                {"id": "custom.lineStyle", "value": style},
            ],
        }
    ]


def organised(names: dict[str, str], order: Sequence[str], hidden: Sequence[str]) -> list[Json]:
    """Return the transformation that names, orders and hides a table's columns."""
    return [
        {
            "id": "organize",
            "options": {
                "excludeByName": dict.fromkeys(hidden, True),
                "indexByName": {column: n for n, column in enumerate(order)},
                "renameByName": names,
            },
        }
    ]


def steps(unit: str, *limits: tuple[float | None, str]) -> Json:
    """Return a unit, and the colour from each value on."""
    found = [{"value": value, "color": colour} for value, colour in limits]
    return {"unit": unit, "thresholds": {"mode": "absolute", "steps": found}}


def placed(panels: Sequence[Json]) -> list[Json]:
    """Return the panels with ids and places: left to right, a new row where one does not fit."""
    x = y = height = 0
    found = []
    for number, each in enumerate(panels, start=1):
        size = each["gridPos"]
        if x + size["w"] > _COLUMNS:
            x, y, height = 0, y + height, 0
        found.append({"id": number, **each, "gridPos": {**size, "x": x, "y": y}})
        x, height = x + size["w"], max(height, size["h"])
    return found
