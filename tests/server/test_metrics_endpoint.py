"""/metrics: the engine's families and the server's in one scrape, in the format that is asked for."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from nanolens.server.admission import QueueAdmission
from nanolens.server.server_metrics import ServerMetrics
from serve import Server, completion

OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}


def own(server: Server, name: str, **labels: str) -> float:
    """A sample of the server's own."""
    for family in parse_text(server.get("/metrics").body.decode()):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return 0.0


def test_both_formats_hold_what_the_engine_and_what_the_server_counts(tiny_server: Server) -> None:
    plain, open_ = tiny_server.get("/metrics"), tiny_server.get("/metrics", OPENMETRICS)
    assert plain.headers["content-type"].startswith("text/plain")
    assert open_.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert plain.headers["vary"] == open_.headers["vary"] == "Accept"
    first = {family.name for family in parse_text(plain.body.decode())}
    second = {family.name for family in parse_openmetrics(open_.body.decode())}
    for names in (first, second):
        assert {"nanolens_sequences", "nanolens_server_requests_in_flight", "nanolens_server_stream_stalls"} <= names
    assert open_.body.count(b"# EOF") == 1 and open_.body.endswith(b"# EOF\n")


def test_no_name_of_the_server_is_one_of_the_engine(tiny_server: Server) -> None:
    names = [family.name for family in parse_text(tiny_server.get("/metrics").body.decode())]
    assert len(names) == len(set(names))


def test_answers_are_counted_by_route_and_status_and_unknown_paths_together(tiny_server: Server) -> None:
    name = "nanolens_server_responses_total"
    before = own(tiny_server, name, route="/debug/breakpoints/{number}", status="404")
    unknown = own(tiny_server, name, route="other", status="404")
    for number in (98, 99):
        assert tiny_server.request("DELETE", f"/debug/breakpoints/{number}").status == 404
        assert tiny_server.get(f"/nowhere/{number}").status == 404
    assert own(tiny_server, name, route="/debug/breakpoints/{number}", status="404") == before + 2
    assert own(tiny_server, name, route="other", status="404") == unknown + 2


def test_requests_are_in_flight_while_they_run(tiny_server: Server) -> None:
    tiny_server.wait_idle()
    admitted = own(tiny_server, "nanolens_server_requests_admitted_total")
    tiny_server.post("/debug/engine/pause", {})
    try:
        with tiny_server.stream("/v1/completions", completion([1, 2], max_tokens=4)):
            assert own(tiny_server, "nanolens_server_requests_in_flight") == 1
    finally:
        tiny_server.post("/debug/engine/resume", {})
    tiny_server.wait_idle()
    tiny_server.wait_until(lambda: own(tiny_server, "nanolens_server_requests_in_flight") == 0, "empty")
    assert own(tiny_server, "nanolens_server_requests_admitted_total") == admitted + 1


def test_a_server_without_metrics_says_how_to_have_them(tmp_path: Path) -> None:
    with Server(tmp_path, no_metrics=True) as server:
        answer = server.get("/metrics")
        assert answer.status == 404 and "--no-metrics" in answer.error["message"]


def test_stalls_are_counted_with_their_time() -> None:
    metrics = ServerMetrics(QueueAdmission(1, 0))
    metrics.stalls, metrics.stall_seconds = 2, 3.5
    text = metrics.append_to(b"", is_openmetrics=False).decode()
    assert "nanolens_server_stream_stalls_total 2.0" in text
    assert "nanolens_server_stream_stall_seconds_total 3.5" in text
