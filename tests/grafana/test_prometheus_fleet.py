"""A real Prometheus scrapes a fleet and its router: each query of the fleet's board finds data, and alerts tell.

The replicas are one run, joined under three names as the front of a fleet joins them.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from busy_run import BusyRun
from nanolens.grafana.board_fleet import BOARD
from nanolens.grafana.panels import Panel, Query
from nanolens.server.fleet_messages import Report
from nanolens.server.fleet_metrics import RouterMetrics
from nanolens.server.fleet_view import FleetView
from prometheus_server import PrometheusServer
from promql_checks import with_values
from scraped_exporter import GRAFANA, SCRAPES, WINDOW, scrapes, start_exporter

pytestmark = pytest.mark.slow

QUERIES = [(panel, query) for panel in BOARD.panels for query in panel.queries]
WAIT_S = 5.0


class Front:
    """What a fleet of three shows of one exporter; a replica's engine dies when a test says so."""

    def __init__(self, exporter: str) -> None:
        self.view = FleetView()
        self.view.update(["r0", "r1", "r2"])
        self.metrics = RouterMetrics(self.view, 3)
        front = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with urllib.request.urlopen(f"http://{exporter}/metrics", timeout=WAIT_S) as answer:
                    scrape = answer.read()
                body = front.scrape(scrape)
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.target = f"127.0.0.1:{self.http.server_address[1]}"

    def scrape(self, of_one: bytes) -> bytes:
        """All that there is, and more requests each time."""
        names = self.view.replicas
        for name in names:
            self.metrics.routed[name, "prefix"] += 2
            self.metrics.retried[name] += 1
            self.metrics.broken[name] += 1
        return self.metrics.joined(dict.fromkeys(names, of_one), False)

    def lose(self, replica: str) -> None:
        """An engine is killed, and Ray takes the replica away."""
        self.view.take(Report(replica, trouble="the engine has stopped", is_engine_gone=True))
        self.view.update(set(self.view.replicas) - {replica})


@dataclass
class Scraped:
    """A Prometheus that still answers, and the time of its samples."""

    server: PrometheusServer
    start: float
    end: float
    values: dict[str, str]
    before: set[str]


@pytest.fixture(scope="module")
def scraped(require: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """A fleet of some seconds under a Prometheus, in the middle of which a replica is lost."""
    program = require("prometheus")
    folder = tmp_path_factory.mktemp("fleet")
    with BusyRun(folder / "journal") as run:
        exporter, target = start_exporter(folder)
        front = Front(target)
        threading.Thread(target=front.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            with PrometheusServer(program, GRAFANA, front.target, folder) as server:
                server.wait_for(lambda: run.steps > 100 and scrapes(server) >= SCRAPES, "to have scraped a few times")
                before = alerts(server)
                front.lose("r2")
                server.wait_for(lambda: "NanolensReplicaLost" in alerts(server), "to alert of a replica that was lost")
                end = time.time()
                values = {"__rate_interval": WINDOW, "__range": "6s", "job": "nanolens", "replica": "r0|r2"}
                yield Scraped(server, end - 2, end, values, before)
        finally:
            exporter.kill()
            exporter.communicate()
            front.http.shutdown()
            front.http.server_close()


def alerts(server: PrometheusServer) -> set[str]:
    """Names of those that fire."""
    return {each["labels"]["alertname"] for each in server.get("alerts")["alerts"] if each["state"] == "firing"}


@pytest.mark.parametrize(("panel", "query"), QUERIES, ids=lambda value: getattr(value, "title", ""))
def test_a_query_of_the_fleet_finds_sane_data_of_the_replicas_chosen(
    scraped: Scraped, panel: Panel, query: Query
) -> None:
    found = scraped.server.values(with_values(query.expr, **scraped.values), scraped.start, scraped.end)
    assert found, query.expr
    for series, points in found.items():
        assert points and all(query.low <= value <= query.high for value in points), f"{series}: {points}"
        assert json.loads(series).get("replica") != "r1", series


def test_a_replica_that_was_lost_is_told_by_name_and_nothing_was_before(scraped: Scraped) -> None:
    assert "NanolensReplicaLost" not in scraped.before
    (found,) = [
        each for each in scraped.server.get("alerts")["alerts"] if each["labels"]["alertname"] == "NanolensReplicaLost"
    ]
    assert (found["labels"]["replica"], found["labels"]["reason"]) == ("r2", "engine_gone")
    assert found["annotations"]["summary"].startswith("Replica r2 of 127.0.0.1:")
    waiting = [each["labels"] for each in scraped.server.get("alerts")["alerts"] if each["state"] == "pending"]
    assert "NanolensFleetShort" in {labels["alertname"] for labels in waiting}


def test_the_variable_lists_the_replicas(scraped: Scraped) -> None:
    found = scraped.server.get("label/replica/values", match="nanolens_engine_info")
    assert found == ["r0", "r1", "r2"]


def test_ratios_of_one_engine_are_recorded_for_each_replica(scraped: Scraped) -> None:
    found = scraped.server.values("instance:nanolens_kv_used:ratio", scraped.start, scraped.end)
    assert {json.loads(series)["replica"] for series in found} >= {"r0", "r1"}
    of_address = scraped.server.values("instance:nanolens_first_tokens:increase5m", scraped.start, scraped.end)
    assert all("replica" not in json.loads(series) for series in of_address) and of_address
