"""The metrics server: formats, addresses, and scrapes beside a thread that applies events."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable

import pytest

from fake_engine import FakeEngine
from metric_runs import fed, rich_run, samples
from nanolens.errors import InvalidConfig
from nanolens.telemetry.metrics import Metrics
from nanolens.telemetry.metrics_server import MetricsServer, serve_metrics, wants_openmetrics

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


def get(
    server: MetricsServer, path: str = "/metrics", accept: str | None = None, method: str = "GET"
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=20)
    try:
        connection.request(method, path, headers={"Accept": accept} if accept is not None else {})
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


@pytest.fixture
def require_promtool(require: Callable[[str], str]) -> str:
    return require("promtool")


def test_without_a_wish_a_scrape_is_in_the_classic_format() -> None:
    metrics = fed(rich_run(True))
    with serve_metrics(metrics, 0) as server:
        status, headers, body = get(server)
        assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert body == metrics.render() and int(headers["Content-Length"]) == len(body)
        assert get(server, "/metrics?debug=1")[2] == body


def test_prometheus_gets_openmetrics() -> None:
    metrics = fed(rich_run(True))
    with serve_metrics(metrics, 0) as server:
        status, headers, body = get(server, accept=PROMETHEUS)
    assert status == 200
    assert headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert body == metrics.render(openmetrics=True) and body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (PROMETHEUS, True),
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/json", False),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; Version=1.0.0; charset=utf-8", True),
        ("application/openmetrics-text; version=2.0.0", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=0.3,text/plain;q=0.5", False),
        ("text/plain;q=0.5 , application/openmetrics-text;q=0.5", True),
        ("application/openmetrics-text;q=often", False),
        (";;,=,q", False),
    ],
)
def test_the_accept_header_decides(accept: str, openmetrics: bool) -> None:
    assert wants_openmetrics(accept) is openmetrics


def test_other_paths_are_told_where_the_metrics_are() -> None:
    with serve_metrics(Metrics(), 0) as server:
        status, _, body = get(server, "/")
        assert status == 404 and b"/metrics" in body
        assert get(server, method="POST")[0] == 501
        head = get(server, method="HEAD")
        assert head[0] == 200 and head[2] == b"" and int(head[1]["Content-Length"]) > 1000


def test_it_listens_on_this_machine_alone_and_says_where() -> None:
    with serve_metrics(Metrics(), 0) as server:
        assert server.host == "127.0.0.1" and server.port > 0
        assert server.url == f"http://127.0.0.1:{server.port}/metrics"


def test_a_port_that_is_taken_is_refused_with_its_number() -> None:
    with serve_metrics(Metrics(), 0) as server:
        with pytest.raises(InvalidConfig, match=rf"metrics_port={server.port}: can't listen on 127\.0\.0\.1:"):
            serve_metrics(Metrics(), server.port)
    with pytest.raises(InvalidConfig, match="metrics_port=70000"):
        serve_metrics(Metrics(), 70000)
    with pytest.raises(InvalidConfig, match=re.escape("192.0.2.1:0")):
        serve_metrics(Metrics(), 0, "192.0.2.1")  # an address of nobody (RFC 5737)


def test_a_closed_server_gives_its_port_and_threads_back() -> None:
    before = threading.active_count()
    server = serve_metrics(Metrics(), 0)
    get(server)
    server.close()
    server.close()
    assert threading.active_count() == before
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((server.host, server.port), timeout=5).close()
    serve_metrics(Metrics(), server.port).close()


def test_metrics_that_cannot_be_rendered_are_an_error_of_that_scrape_alone() -> None:
    class Failing:
        fails = True

        def render(self, openmetrics: bool = False) -> bytes:
            if self.fails:
                raise RuntimeError("no")
            return b"fine\n"

    metrics = Failing()
    with serve_metrics(metrics, 0) as server:
        assert get(server)[0] == 500
        metrics.fails = False
        assert get(server)[::2] == (200, b"fine\n")


def test_a_scraper_that_goes_away_or_talks_nonsense_harms_nobody() -> None:
    with serve_metrics(Metrics(), 0) as server:
        socket.create_connection((server.host, server.port), timeout=5).close()
        with socket.create_connection((server.host, server.port), timeout=5) as client:
            client.sendall(b"\0\xff nonsense\r\n\r\n")
            client.recv(100)
        assert get(server)[0] == 200


@pytest.mark.parametrize("asked", [b"", b"GET /met", b"GET /metrics HTTP/1.1\r\nAccept: */*\r\n"])
def test_a_client_that_has_not_asked_does_not_hold_up_the_close(asked: bytes) -> None:
    server = serve_metrics(Metrics(), 0)
    stop = threading.Event()

    def trickle(client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while asked and not stop.wait(0.02):
                client.sendall(b"X")

    with socket.create_connection((server.host, server.port), timeout=5) as client:
        client.sendall(asked)
        get(server)  # it is in another thread's hands by now
        trickling = threading.Thread(target=trickle, args=(client,), daemon=True)
        trickling.start()
        closing = threading.Thread(target=server.close, daemon=True)
        closing.start()
        closing.join(8.0)  # less than a client may take
        assert not closing.is_alive()
        stop.set()
        trickling.join(10)


def test_a_client_that_trickles_is_cut_off_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanolens.telemetry.metrics_server.CLIENT_TIMEOUT_S", 0.2)
    with serve_metrics(Metrics(), 0) as server:
        with socket.create_connection((server.host, server.port), timeout=5) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            with pytest.raises(OSError):  # which error depends on who is first
                for _ in range(1000):  # 20 s
                    client.sendall(b"x")
                    time.sleep(0.02)
        assert get(server)[0] == 200


def test_an_answer_that_is_under_way_when_the_server_is_closed_comes_whole() -> None:
    class Slow:
        asked, go = threading.Event(), threading.Event()

        def render(self, openmetrics: bool = False) -> bytes:
            self.asked.set()
            self.go.wait(10)
            return b"whole\n" * 1000

    metrics = Slow()
    server = serve_metrics(metrics, 0)
    found: list[bytes] = []
    scrape = threading.Thread(target=lambda: found.append(get(server)[2]))
    scrape.start()
    assert metrics.asked.wait(10)
    threading.Timer(0.1, metrics.go.set).start()
    server.close()
    scrape.join(10)
    assert found == [b"whole\n" * 1000]


def test_a_scrape_sees_whole_frames_while_others_apply_them() -> None:
    """Within a frame a sequence is at times in no state: 8 live ones, of which 4 run, are 8 in every scrape."""
    engine = FakeEngine(max_num_seqs=4, num_blocks=64)
    for number in range(8):
        engine.add(range(number * 20, number * 20 + 9), 200)
    engine.step()
    metrics = Metrics(clock=lambda: 0)
    metrics.apply_all(engine.events)
    engine.core.recorder.subscribe(metrics.apply_all)
    stop, wrong, scrapes = threading.Event(), [], []

    def scrape() -> None:
        while not stop.is_set():
            found = samples(get(server)[2])
            statuses = sum(number for (name, _), number in found.items() if name == "nanolens_sequences")
            blocks = sum(number for (name, _), number in found.items() if name == "nanolens_kv_blocks")
            scrapes.append(found)
            if (statuses, blocks) != (8, 64):
                wrong.append((statuses, blocks))

    with serve_metrics(metrics, 0) as server:
        threads = [threading.Thread(target=scrape) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(100):
            engine.step()
        while len(scrapes) < 4:
            engine.core.recorder.flush(-1)
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong and len(scrapes) >= 4


def test_promtool_finds_nothing_to_complain_about(require_promtool: str) -> None:
    for metrics in (fed(rich_run(True)), fed(rich_run(False)[:50]), Metrics()):
        checked = subprocess.run(
            [require_promtool, "check", "metrics"], input=metrics.render(), capture_output=True, timeout=60
        )
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
