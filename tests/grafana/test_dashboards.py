"""The dashboards: what is checked in is what the program makes, and what it makes misleads nobody."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import promql_parser as ql
import pytest
from prometheus_client.utils import floatToGoString

from nanolens.grafana import generate
from nanolens.grafana.boards import BOARDS, SLOS
from nanolens.grafana.not_shown import NOT_SHOWN
from nanolens.grafana.panels import Panel, Query
from nanolens.telemetry.metric_families import BY_NAME, LATENCY_BUCKETS
from promql_checks import (
    PROMETHEUS_OWN,
    base_name,
    matchers,
    nodes,
    router_families,
    selectors,
    unguarded_divisions,
    with_values,
)  # fmt: skip

PANELS = [(board.name, panel) for board in BOARDS for panel in board.panels]
QUERIES = [(name, panel, query) for name, panel in PANELS for query in panel.queries]
EXPRESSIONS = sorted({query.expr for _, _, query in QUERIES})
FAMILIES = {**BY_NAME, **router_families()}
OF_ADDRESS = PROMETHEUS_OWN | {name for name, family in router_families().items() if "replica" not in family.labels}
HISTOGRAMS = {family.name for family in BY_NAME.values() if family.kind == "histogram"}
WANTED = {
    "Overview", "Queue and scheduling", "KV cache and prefix cache", "Preemption and recompute", "Steps and host time",
    "Fleet", "Telemetry itself",
}  # fmt: skip
MOST_SERIES_LABELS = {
    "finish_reason", "reason", "status", "state", "kind", "mode", "outcome", "direction", "le", "instance", "replica",
    "rank",
}  # fmt: skip


def loaded(name: str) -> dict[str, Any]:
    return json.loads((generate.FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def each_panel(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def test_the_files_are_what_the_program_makes() -> None:
    assert generate.differences(generate.FOLDER) == []
    assert generate.main(["--check"]) == 0


def test_check_finds_a_changed_a_missing_and_a_foreign_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate.write(tmp_path)
    (tmp_path / "overview.json").write_text("{}")
    (tmp_path / "steps.json").unlink()
    (tmp_path / "mine.json").write_text("{}")
    assert generate.main(["--check", "--folder", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "overview.json: differs" in told and "steps.json: missing" in told and "mine.json: no builder" in told


def test_writing_leaves_nothing_to_write(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{}")
    assert generate.main(["--folder", str(tmp_path)]) == 0
    assert generate.differences(tmp_path) == [] and not (tmp_path / "old.json").exists()


def test_the_boards_that_were_asked_for_are_there() -> None:
    assert {board.title for board in BOARDS} == WANTED
    assert len({board.name for board in BOARDS}) == len(BOARDS)


@pytest.mark.parametrize("name", [board.name for board in BOARDS])
def test_a_board_is_in_the_current_format_with_its_variables(name: str) -> None:
    board = loaded(name)
    assert 36 <= board["schemaVersion"] <= 41
    variables = [variable["name"] for variable in board["templating"]["list"]]
    assert variables == ["datasource", "traces", "job", "model", "instance", "replica", "ttft_slo", "itl_slo"]
    assert board["uid"] == f"nanolens-{name}" and "id" not in board


@pytest.mark.parametrize("name", [board.name for board in BOARDS])
def test_panels_have_ids_of_their_own_and_do_not_overlap(name: str) -> None:
    board = loaded(name)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("name", [board.name for board in BOARDS])
def test_every_panel_has_a_unit_a_description_and_a_link_to_traces(name: str) -> None:
    for panel in each_panel(loaded(name)):
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"], panel["title"]
        assert len(panel["description"]) > 20 and panel["description"].endswith("."), panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        (link,) = defaults["links"]
        pane = json.loads(parse_qs(urlsplit(link["url"]).query)["panes"][0])["traces"]
        assert pane["datasource"] == "${traces}" and pane["range"] == {"from": "${__from}", "to": "${__to}"}
        (query,) = pane["queries"]
        assert query["queryType"] == "traceql"
        assert re.fullmatch(r'\{ resource\.service\.name = "nanolens"( && .+)? \}', query["query"])


def test_titles_on_a_board_are_told_apart() -> None:
    for board in BOARDS:
        titles = [panel.title for row in board.rows for panel in row.panels]
        assert sorted(set(titles)) == sorted(titles), board.name


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_an_expression_parses_and_divides_by_nothing_that_can_be_zero(expr: str) -> None:
    ready = with_values(expr)
    ql.parse(ready)
    assert unguarded_divisions(ready) == []


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_an_expression_is_narrowed_by_the_variables_and_uses_their_interval(expr: str) -> None:
    for selector in selectors(with_values(expr)):
        of_one = set() if selector.name in OF_ADDRESS else {"replica"}
        assert {"job", "instance"} | of_one <= set(matchers(selector)), selector.name
    assert set(re.findall(r"\[(.*?)\]", expr)) <= {"$__rate_interval", "$__range"}


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_an_expression_adds_up_before_it_shows_so_that_series_stay_few(expr: str) -> None:
    outer = [node for node in nodes(with_values(expr)) if isinstance(node, ql.AggregateExpr)]
    assert outer
    for node in outer:
        labels = set(node.modifier.labels) if node.modifier else set()
        assert labels <= MOST_SERIES_LABELS | {"model", "version", "run_id"}


@pytest.mark.parametrize(("board", "panel", "query"), QUERIES, ids=lambda value: getattr(value, "title", None))
def test_a_query_asks_for_metrics_and_label_values_that_are_declared(board: str, panel: Panel, query: Query) -> None:
    for selector in selectors(with_values(query.expr)):
        if selector.name in PROMETHEUS_OWN:
            continue
        family = FAMILIES[base_name(selector.name, HISTOGRAMS)]
        assert family.kind != "histogram" or selector.name != family.name, "a histogram has no series of its own name"
        for label, value in matchers(selector).items():
            if label == "le":
                assert value in map(floatToGoString, family.buckets)
            elif label not in ("job", "instance", "replica"):
                assert value in family.labels[label]


@pytest.mark.parametrize(("board", "panel", "query"), QUERIES, ids=lambda value: getattr(value, "title", None))
def test_a_counter_is_shown_as_its_growth_and_a_gauge_as_it_is(board: str, panel: Panel, query: Query) -> None:
    expr = with_values(query.expr)
    ranged = {n.vector_selector.name for n in nodes(expr) if isinstance(n, ql.MatrixSelector)}
    for selector in selectors(expr):
        family = FAMILIES.get(base_name(selector.name, HISTOGRAMS))
        grows = family is not None and family.kind in ("counter", "histogram")
        assert grows == (selector.name in ranged), selector.name


def test_all_replicas_are_asked_for_by_what_matches_series_of_one_server_too() -> None:
    for board in BOARDS:
        (variable,) = [v for v in loaded(board.name)["templating"]["list"] if v["name"] == "replica"]
        assert variable["includeAll"] and variable["multi"] and re.fullmatch(variable["allValue"], "")
        assert variable["query"]["query"].startswith("label_values(") and '$instance' in variable["query"]["query"]


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_what_tells_instances_apart_tells_replicas_apart(expr: str) -> None:
    for node in nodes(with_values(expr)):
        if isinstance(node, ql.AggregateExpr) and node.modifier and "instance" in node.modifier.labels:
            assert "replica" in node.modifier.labels or {s.name for s in selectors(node.prettify())} <= OF_ADDRESS


def test_only_panels_of_latencies_with_exemplars_ask_for_them() -> None:
    for _, panel, query in QUERIES:
        names = {base_name(s.name, HISTOGRAMS) for s in selectors(with_values(query.expr))}
        if query.exemplars:
            assert all(FAMILIES[name].has_exemplars for name in names), panel.title
    shown = {n for *_, q in QUERIES if q.exemplars for n in re.findall(r"nanolens_\w+_seconds", q.expr)}
    assert {"nanolens_time_to_first_token_seconds", "nanolens_inter_token_seconds", "nanolens_request_seconds"} <= shown


def test_every_exported_metric_is_on_a_panel_or_on_the_list_that_says_why_not() -> None:
    shown = {base_name(s.name, HISTOGRAMS) for expr in EXPRESSIONS for s in selectors(with_values(expr))}
    assert set(FAMILIES) - shown == set(NOT_SHOWN)
    assert all(len(reason) > 10 for reason in NOT_SHOWN.values())


def test_objectives_are_bounds_of_the_latency_buckets() -> None:
    bounds = set(map(floatToGoString, LATENCY_BUCKETS))
    for slo in SLOS:
        assert set(slo.choices) <= bounds and slo.chosen in slo.choices
