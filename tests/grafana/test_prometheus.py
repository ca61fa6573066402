"""A real Prometheus scrapes the exporter of a run that is under way: each query finds data, and no nonsense.

One run, one exporter process and one Prometheus for all tests here. Nothing is asserted about how long anything takes.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from busy_run import BusyRun
from nanolens.grafana.boards import BOARDS
from nanolens.grafana.dashboard import dashboard_json
from nanolens.grafana.panels import Panel, Query
from nanolens.telemetry.metric_families import BY_NAME
from prometheus_server import PrometheusServer
from promql_checks import with_values
from scraped_exporter import GRAFANA, SCRAPES, WINDOW, scrapes, start_exporter

pytestmark = pytest.mark.slow

QUERIES = [
    (board.name, panel, query) for board in BOARDS for panel in board.panels for query in panel.queries
    if "nanolens_router_" not in query.expr  # which are a fleet's: see test_prometheus_fleet.py
]  # fmt: skip
TEMPLATED = [v for board in BOARDS[:1] for v in dashboard_json(board, ())["templating"]["list"] if v["type"] == "query"]


@dataclass
class Scraped:
    """What is left of the run: a Prometheus that still answers, the time of its samples, and the exported spans."""

    server: PrometheusServer
    start: float
    end: float
    trace_ids: set[str]
    attributes: set[str]
    values: dict[str, str]


@pytest.fixture(scope="module")
def scraped(require: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """A run of some seconds under a Prometheus, over by the time that tests see it."""
    program = require("prometheus")
    folder = tmp_path_factory.mktemp("scraped")
    with BusyRun(folder / "journal") as run:
        exporter, target = start_exporter(folder)
        try:
            with PrometheusServer(program, GRAFANA, target, folder) as server:
                server.wait_for(lambda: run.steps > 100 and scrapes(server) >= SCRAPES, "to have scraped a few times")
                end = time.time()
                start = end - 3
                instances = server.get("label/instance/values", match="nanolens_engine_info")
                values = {
                    "__rate_interval": WINDOW, "__range": "6s", "job": "nanolens", "replica": ".*",
                    "instance": "|".join(map(re.escape, instances)).replace("\\", "\\\\"),
                }  # fmt: skip
                run.stop()
                errors = exporter.communicate(timeout=60)[1]
                assert exporter.returncode == 0, errors
                spans = spans_of(folder / "spans.jsonl")
                names = {attribute["key"] for span in spans for attribute in span["attributes"]}
                yield Scraped(server, start, end, {span["traceId"] for span in spans}, names, values)
        finally:
            exporter.kill()
            exporter.communicate()


def spans_of(path: Path) -> list[dict[str, Any]]:
    messages = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    scopes = [scope for m in messages for resource in m["resourceSpans"] for scope in resource["scopeSpans"]]
    return [span for scope in scopes for span in scope["spans"]]


@pytest.mark.parametrize(
    ("board", "panel", "query"), QUERIES, ids=[f"{board}: {p.title}: {q.legend}" for board, p, q in QUERIES]
)
def test_a_query_finds_sane_data(scraped: Scraped, board: str, panel: Panel, query: Query) -> None:
    expr = with_values(query.expr, **scraped.values)
    found = scraped.server.values(expr, scraped.start, scraped.end)
    assert found, expr
    for series, points in found.items():
        assert points and all(query.low <= value <= query.high for value in points), f"{series}: {points}"


@pytest.mark.parametrize("variable", TEMPLATED, ids=lambda variable: variable["name"])
def test_a_variable_has_values(scraped: Scraped, variable: dict[str, Any]) -> None:
    asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
    assert asked is not None
    selector = with_values(asked[1], **scraped.values, model="fake")
    expected = {"job": ["nanolens"], "model": ["fake"]}
    found = scraped.server.get(f"label/{asked[2]}/values", match=selector, start=scraped.start, end=scraped.end)
    wanted = 0 if variable["name"] == "replica" else 1  # one server has no such label, and its boards work
    assert found == expected.get(variable["name"], found) and len(found) == wanted


@pytest.mark.parametrize("name", BY_NAME)
def test_every_declared_metric_is_scraped(scraped: Scraped, name: str) -> None:
    series = name + "_count" if BY_NAME[name].kind == "histogram" else name
    found = scraped.server.get("series", match=series, start=scraped.start, end=scraped.end)
    assert found
    for labels in found:
        own = set(labels) - {"__name__", "job", "instance"}
        assert own == set(BY_NAME[name].labels)


@pytest.mark.parametrize(
    ("panel", "query"), [(p, q) for _, p, q in QUERIES if q.exemplars], ids=lambda value: getattr(value, "title", "")
)
def test_exemplars_lead_to_spans_that_were_exported(scraped: Scraped, panel: Panel, query: Query) -> None:
    expr = with_values(query.expr, **scraped.values)
    found = scraped.server.get("query_exemplars", query=expr, start=scraped.end - 60, end=scraped.end)
    traces = {e["labels"]["trace_id"] for series in found for e in series["exemplars"]}
    assert traces and traces <= scraped.trace_ids


def test_links_ask_for_attributes_that_spans_have(scraped: Scraped) -> None:
    conditions = {panel.traces for board in BOARDS for panel in board.panels}
    asked = {name for condition in conditions for name in re.findall(r"span\.([\w.]+)", condition)}
    assert len(asked) > 5 and asked <= scraped.attributes


def test_rules_evaluate_and_a_run_without_failures_would_raise_no_alert(scraped: Scraped) -> None:
    groups = scraped.server.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 20
    assert {rule["health"] for rule in rules} == {"ok"} and not any(rule.get("lastError") for rule in rules)
    fired = scraped.server.values('ALERTS{alertstate="firing"}', scraped.start, scraped.end)
    assert {json.loads(labels)["alertname"] for labels in fired} <= {"NanolensSwapFailures"}  # moves fail here
    recorded = {rule["name"] for rule in rules if rule["type"] == "recording"}
    for name in recorded:
        found = scraped.server.values(name, scraped.start, scraped.end)
        most = 1 if ":ratio" in name else math.inf
        assert found or name.startswith("replica:"), name
        assert all(0 <= value <= most for points in found.values() for value in points), name


def test_prometheus_has_nothing_to_complain_about(scraped: Scraped) -> None:
    assert scraped.server.log == ""
