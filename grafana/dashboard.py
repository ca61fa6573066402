"""A dashboard from rows of panels: grid, variables, links between dashboards. Knows no metric but `ENGINE_INFO`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .panels import DATASOURCE, Json, Panel, panel_json

SCHEMA_VERSION = 41  # Grafana 12; newer ones migrate it when they load it
COLUMNS = 24
ENGINE_INFO = "nanolens_engine_info"
TAG = "nanolens"


@dataclass(frozen=True)
class Row:
    """A titled row of panels, which flow over as many lines as they need."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Slo:
    """A dashboard variable that holds a latency objective: one of a histogram's bounds, as its `le` label has it."""

    name: str
    label: str
    description: str
    choices: tuple[str, ...]
    chosen: str


@dataclass(frozen=True)
class Dashboard:
    """One dashboard.

    Attributes:
        name: its file, and the end of its uid.
        title: as listed.
        description: the question that it answers.
        rows: from the top.
    """

    name: str
    title: str
    description: str
    rows: tuple[Row, ...]

    @property
    def panels(self) -> list[Panel]:
        """All its panels."""
        return [panel for row in self.rows for panel in row.panels]


def dashboard_json(board: Dashboard, slos: tuple[Slo, ...]) -> Json:
    """A dashboard in Grafana's classic format (schemaVersion 41)."""
    used = "\n".join([q.expr for panel in board.panels for q in panel.queries] + [p.traces for p in board.panels])
    return {
        "uid": f"nanolens-{board.name}",
        "title": f"nanolens / {board.title}",
        "description": board.description,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timepicker": {"refresh_intervals": ["5s", "10s", "30s", "1m", "5m"]},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [_others()],
        "templating": {"list": [*_scope_variables(), *(_slo_variable(slo, slo.name in used) for slo in slos)]},
        "panels": _grid(board.rows),
    }


def _grid(rows: tuple[Row, ...]) -> list[Json]:
    """Panels with ids and places: each row begins with its title, panels fill lines of 24 columns."""
    placed: list[Json] = []
    y = 0
    for row in rows:
        title = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        placed.append({"id": len(placed) + 1, "type": "row", "title": row.title, "collapsed": False, "panels": []})
        placed[-1]["gridPos"] = title
        y += 1
        x = line = 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, line = 0, y + line, 0
            placed.append(panel_json(panel, len(placed) + 1, x, y))
            x, line = x + panel.width, max(line, panel.rows)
        y += line
    return placed


def _others() -> Json:
    return {
        "type": "dashboards", "title": "nanolens", "tags": [TAG], "asDropdown": True, "includeVars": True,
        "keepTime": True, "targetBlank": False, "icon": "external link", "tooltip": "The other nanolens dashboards",
        "url": "",
    }  # fmt: skip


def _scope_variables() -> list[Json]:
    """Data sources, then job, model, the instances of that model, and their replicas, which all selectors use.

    All replicas are asked for by an expression that series without such a label match, too.
    """
    return [
        _datasource_variable("datasource", "Metrics", "prometheus"),
        _datasource_variable("traces", "Traces", "tempo"),
        _label_variable("job", "Job", f"label_values({ENGINE_INFO}, job)"),
        _label_variable("model", "Model", f'label_values({ENGINE_INFO}{{job=~"$job"}}, model)'),
        _label_variable(
            "instance", "Instance", f'label_values({ENGINE_INFO}{{job=~"$job",model=~"$model"}}, instance)'
        ),
        _label_variable(
            "replica", "Replica", f'label_values({ENGINE_INFO}{{job=~"$job",instance=~"$instance"}}, replica)', ".*"
        ),
    ]


def _variable(name: str, kind: str, label: str, shown: bool = True, **fields: Any) -> Json:
    return {"name": name, "type": kind, "label": label, "hide": 0 if shown else 2, "skipUrlSync": False, **fields}


def _datasource_variable(name: str, label: str, kind: str) -> Json:
    current = {"selected": True, "text": kind.capitalize(), "value": kind}
    return _variable(
        name, "datasource", label, query=kind, regex="", refresh=1, multi=False, includeAll=False, options=[],
        current=current,
    )  # fmt: skip


def _label_variable(name: str, label: str, query: str, all_values: str = "") -> Json:
    variable = _variable(
        name, "query", label, datasource=DATASOURCE, query={"query": query, "refId": name, "qryType": 1}, regex="",
        refresh=2, sort=1, multi=True, includeAll=True, options=[],
        current={"selected": True, "text": ["All"], "value": ["$__all"]},
    )  # fmt: skip
    return variable | ({"allValue": all_values} if all_values else {})


def _slo_variable(slo: Slo, shown: bool) -> Json:
    """Hidden where no panel uses it: a choice made on one board then still goes along to the next."""
    options = [{"text": bound, "value": bound, "selected": bound == slo.chosen} for bound in slo.choices]
    return _variable(
        slo.name, "custom", slo.label, shown, description=slo.description, query=",".join(slo.choices), options=options,
        multi=False, includeAll=False, current={"selected": True, "text": slo.chosen, "value": slo.chosen},
    )  # fmt: skip
