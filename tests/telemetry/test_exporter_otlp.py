"""OTLP over HTTP and gRPC as it goes over the wire, against small servers of our own."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import ReadableSpan

from journals import busy_engine
from nanolens.errors import InvalidConfig
from nanolens.telemetry.endpoint import parse_endpoint
from nanolens.telemetry.exporter_otlp import GrpcSink, HttpSink, otlp_sink
from nanolens.telemetry.exporter_sender import Sent, SinkAway, SinkRefused
from nanolens.telemetry.spans import SpanBuilder
from otlp_receivers import OtlpServer, free_port, grpc_server, ids

PARTIAL = ExportTraceServiceResponse(
    partial_success=ExportTracePartialSuccess(rejected_spans=3, error_message="too long")
)


@pytest.fixture(scope="module")
def spans() -> list[ReadableSpan]:
    """Some spans of a fake engine."""
    builder, engine = SpanBuilder(), busy_engine()
    from fake_engine import started

    builder.apply(started(engine.core.config, 20))
    builder.apply_all(engine.events)
    return builder.take()[:100]


@pytest.fixture
def server() -> Iterator[OtlpServer]:
    with OtlpServer() as opened:
        yield opened


def http(server: OtlpServer, **headers: str) -> HttpSink:
    return HttpSink(parse_endpoint(server.url), headers)


def test_http_sends_compressed_protobuf_with_headers_over_one_connection(
    server: OtlpServer, spans: list[ReadableSpan]
) -> None:
    sink = http(server, **{"x-key": "secret"})
    for _ in range(3):
        assert sink.send(sink.encode(spans), 5.0) == Sent()
    sink.close()
    assert server.ids == ids(spans * 3)
    for path, headers in server.requests:
        assert path == "/v1/traces"
        assert headers["content-type"] == "application/x-protobuf"
        assert headers["content-encoding"] == "gzip"
        assert headers["x-key"] == "secret"
        assert headers["user-agent"].startswith("nanolens/")


class Trickle:
    """A receiver that answers a byte at a time, for ever: a status line that goes on, or a body after its headers."""

    def __init__(self, start: bytes) -> None:
        self._start = start
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.was_cut = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        with client, contextlib.suppress(OSError):
            client.sendall(self._start)
            for _ in range(2000):  # 20 s
                client.sendall(b"1")
                time.sleep(0.01)
            return
        self.was_cut.set()

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK", b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n"])
def test_a_receiver_that_trickles_its_answer_has_one_deadline_for_all_of_it(
    spans: list[ReadableSpan], start: bytes
) -> None:
    receiver = Trickle(start)
    sink = HttpSink(parse_endpoint(receiver.url), {})
    try:
        with pytest.raises(SinkAway, match="no answer in time"):
            sink.send(sink.encode(spans), 0.3)
        assert receiver.was_cut.wait(10)
    finally:
        sink.close()
        receiver.close()


def test_http_tells_of_a_partial_success(server: OtlpServer, spans: list[ReadableSpan]) -> None:
    server.answers = [(200, {}, PARTIAL)]
    sink = http(server)
    assert sink.send(sink.encode(spans), 5.0) == Sent(3, "too long")


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_http_statuses_that_are_worth_another_try(server: OtlpServer, spans: list[ReadableSpan], status: int) -> None:
    server.answers = [(status, {"retry-after": "7"}, PARTIAL)]
    sink = http(server)
    with pytest.raises(SinkAway, match=str(status)) as caught:
        sink.send(sink.encode(spans), 5.0)
    assert caught.value.retry_after_s == 7.0


@pytest.mark.parametrize("status", [301, 400, 401, 404, 413, 500])
def test_http_statuses_that_are_not(server: OtlpServer, spans: list[ReadableSpan], status: int) -> None:
    server.answers = [(status, {}, PARTIAL)]
    sink = http(server)
    with pytest.raises(SinkRefused, match=str(status)):
        sink.send(sink.encode(spans), 5.0)
    assert sink.send(sink.encode(spans), 5.0) == Sent()


def test_retry_after_may_be_a_date_and_is_never_more_than_five_minutes(
    server: OtlpServer, spans: list[ReadableSpan]
) -> None:
    for value, least, most in (
        ("Fri, 01 Jan 2100 00:00:00 GMT", 300.0, 300.0), ("Fri, 01 Jan 2010 00:00:00 GMT", 0.0, 0.0),
        ("soon", 0.0, 0.0), ("-5", 0.0, 0.0), ("1e9", 300.0, 300.0),
    ):  # fmt: skip
        server.answers = [(503, {"retry-after": value}, PARTIAL)]
        sink = http(server)
        with pytest.raises(SinkAway) as caught:
            sink.send(sink.encode(spans), 5.0)
        assert least <= caught.value.retry_after_s <= most


def test_http_finds_a_receiver_that_was_started_again_between_two_batches(
    server: OtlpServer, spans: list[ReadableSpan]
) -> None:
    sink = http(server)
    sink.send(sink.encode(spans), 5.0)
    server.close()
    with pytest.raises(SinkAway):
        sink.send(sink.encode(spans), 5.0)
    server.open()
    assert sink.send(sink.encode(spans), 5.0) == Sent()


def test_http_to_nobody_is_away(spans: list[ReadableSpan]) -> None:
    sink = HttpSink(parse_endpoint(f"http://127.0.0.1:{free_port()}"), {})
    with pytest.raises(SinkAway, match="refused"):
        sink.send(sink.encode(spans), 5.0)


def test_http_without_an_answer_is_away_after_the_timeout(spans: list[ReadableSpan]) -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sink = HttpSink(parse_endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}"), {})
        with pytest.raises(SinkAway, match="no answer in time"):
            sink.send(sink.encode(spans), 0.1)


def test_grpc_sends_batches_with_metadata_and_tells_of_a_partial_success(spans: list[ReadableSpan]) -> None:
    got: list[tuple[int, dict[str, Any]]] = []

    def answer(body: bytes, context: Any) -> ExportTraceServiceResponse:
        request = ExportTraceServiceRequest.FromString(body)
        count = sum(len(scope.spans) for each in request.resource_spans for scope in each.scope_spans)
        got.append((count, dict(context.invocation_metadata())))
        return PARTIAL if len(got) == 2 else ExportTraceServiceResponse()

    with grpc_server(answer) as port:
        sink = otlp_sink(parse_endpoint(f"grpc://127.0.0.1:{port}"), {"X-Key": "secret"})
        assert sink.send(sink.encode(spans), 5.0) == Sent()
        assert sink.send(sink.encode(spans), 5.0) == Sent(3, "too long")
        sink.close()
    assert [count for count, _ in got] == [len(spans)] * 2
    assert got[0][1]["x-key"] == "secret"


@pytest.mark.parametrize(
    ("code", "again"), [("UNAVAILABLE", True), ("RESOURCE_EXHAUSTED", False), ("INVALID_ARGUMENT", False),
                        ("UNAUTHENTICATED", False), ("ABORTED", True)]
)  # fmt: skip
def test_grpc_codes_say_whether_another_try_is_worth_it(spans: list[ReadableSpan], code: str, again: bool) -> None:
    import grpc

    def answer(body: bytes, context: Any) -> ExportTraceServiceResponse:
        context.abort(getattr(grpc.StatusCode, code), "so it is")
        raise AssertionError("abort raises")

    with grpc_server(answer) as port:
        sink = GrpcSink(parse_endpoint(f"http://127.0.0.1:{port}", "grpc"), {})
        with pytest.raises(SinkAway if again else SinkRefused, match=f"{code}: so it is"):
            sink.send(sink.encode(spans), 5.0)
        sink.close()


def test_grpc_to_nobody_is_away(spans: list[ReadableSpan]) -> None:
    sink = GrpcSink(parse_endpoint(f"grpc://127.0.0.1:{free_port()}"), {})
    with pytest.raises(SinkAway, match=r"UNAVAILABLE|DEADLINE"):
        sink.send(sink.encode(spans), 1.0)
    sink.close()


def test_grpc_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(InvalidConfig, match=r"nanolens\[grpc\]"):
        otlp_sink(parse_endpoint("grpc://127.0.0.1:4317"), {})


def test_a_certificate_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file")
    for url in ("https://127.0.0.1:4318", "grpcs://127.0.0.1:4317"):
        with pytest.raises(InvalidConfig, match=r"OTEL_EXPORTER_OTLP_CERTIFICATE=/no/such/file"):
            otlp_sink(parse_endpoint(url), {})


def test_the_deadline_of_a_try_holds_for_a_kept_connection(server: OtlpServer, spans: list[ReadableSpan]) -> None:
    sink = http(server)
    sink.send(sink.encode(spans), 5.0)
    take = server.take
    server.take = lambda body: (time.sleep(1.0), take(body))[1]  # type: ignore[method-assign]
    with pytest.raises(SinkAway, match="in time"):
        sink.send(sink.encode(spans), 0.05)
