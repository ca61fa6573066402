"""Panels as values, and the JSON that Grafana's dashboard format wants for them. Knows no metric and no dashboard."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from .promql import RANGE
from .trace_links import trace_link

Json = dict[str, Any]
Kind = Literal["timeseries", "stat", "heatmap", "table"]

DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
GOOD, WARN, BAD = "green", "orange", "red"
Steps = tuple[tuple[float | None, str], ...]


@dataclass(frozen=True)
class Query:
    """One expression of a panel.

    Attributes:
        expr: PromQL with Grafana's variables.
        legend: name of its series; `{{label}}` stands for a label's value.
        low: no value of a sane run is below it, in the metric's own unit.
        high: nor above this one.
        exemplars: show exemplars, which lead to traces; for expressions over one histogram.
    """

    expr: str
    legend: str
    low: float = 0.0
    high: float = math.inf
    exemplars: bool = False


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        kind: how it looks; "heatmap" wants the buckets of one histogram, "table" labels of instant vectors.
        title: what it shows.
        description: what that means, and what to look for.
        unit: Grafana's id of the unit of its values.
        queries: what it draws.
        traces: TraceQL condition for the traces that a click on a point leads to; "": all of that time.
        steps: thresholds, from the lowest: (value or None for the base, colour).
        stack: whether series add up.
        highest: the axis ends here; None: where the data does.
        columns: of a table, the labels to show.
        width: in columns of 24.
        height: in Grafana's rows; None takes the kind's own.
    """

    kind: Kind
    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    traces: str = ""
    steps: Steps = ()
    stack: bool = False
    highest: float | None = None
    columns: tuple[str, ...] = ()
    width: int = 8
    height: int | None = None

    @property
    def rows(self) -> int:
        """Height in Grafana's rows."""
        return self.height or (4 if self.kind == "stat" else 8)


def panel_json(panel: Panel, panel_id: int, x: int, y: int) -> Json:
    """A panel at a place of the grid."""
    return {
        "id": panel_id,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.rows},
        "targets": [_target(panel, query, chr(ord("A") + i)) for i, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _OPTIONS[panel.kind](panel),
    } | _transformations(panel)


def _target(panel: Panel, query: Query, ref: str) -> Json:
    at_once = panel.kind == "table" or RANGE in query.expr  # one figure for all the time shown
    return {
        "refId": ref,
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend,
        "format": {"heatmap": "heatmap", "table": "table"}.get(panel.kind, "time_series"),
        "exemplar": query.exemplars,
        "instant": at_once,
        "range": not at_once,
    }


def _defaults(panel: Panel) -> Json:
    steps = panel.steps or ((None, "blue" if panel.kind == "stat" else GOOD),)
    defaults: Json = {
        "unit": panel.unit,
        "links": [trace_link(panel.traces)],
        "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in steps]},
        "mappings": [],
        "custom": _custom(panel),
    }
    if all(query.low >= 0 for query in panel.queries):
        defaults["min"] = 0
    if panel.highest is not None:
        defaults["max"] = panel.highest
    return defaults


def _custom(panel: Panel) -> Json:
    if panel.kind == "heatmap":
        return {"hideFrom": {"legend": False, "tooltip": False, "viz": False}}
    if panel.kind != "timeseries":
        return {}
    return {
        "drawStyle": "line",
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "fillOpacity": 40 if panel.stack else 8,
        "gradientMode": "none",
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if panel.stack else "none", "group": "A"},
        "axisPlacement": "auto",
        "scaleDistribution": {"type": "linear"},
        "thresholdsStyle": {"mode": "dashed" if len(panel.steps) > 1 else "off"},
    }


def _transformations(panel: Panel) -> Json:
    if panel.kind != "table":
        return {}
    shown = {name: i for i, name in enumerate(panel.columns)}
    rules = {"include": {"names": list(panel.columns)}}
    organize = {"excludeByName": {}, "indexByName": shown, "renameByName": {}}
    return {
        "transformations": [
            {"id": "filterFieldsByName", "options": rules},
            {"id": "organize", "options": organize},
        ]
    }


def _timeseries_options(panel: Panel) -> Json:
    return {
        "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["mean", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _stat_options(panel: Panel) -> Json:
    return {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "orientation": "auto",
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "textMode": "auto",
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
    }


def _heatmap_options(panel: Panel) -> Json:
    return {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "mode": "scheme", "scheme": "Spectral", "scale": "exponential", "exponent": 0.5, "fill": "dark-orange",
            "reverse": True, "steps": 64,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": True, "showColorScale": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": panel.unit},
        "cellValues": {"unit": "ops"},
    }  # fmt: skip


def _table_options(panel: Panel) -> Json:
    return {"showHeader": True, "cellHeight": "sm", "frameIndex": 0}


_OPTIONS = {
    "timeseries": _timeseries_options,
    "stat": _stat_options,
    "heatmap": _heatmap_options,
    "table": _table_options,
}
