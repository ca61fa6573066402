"""Receivers for tests of the exporter: an OTLP/HTTP server of our own, one for gRPC, rotel before it, and lists."""

from __future__ import annotations

import contextlib
import gzip
import os
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import ReadableSpan

from nanolens.telemetry.exporter_sender import Sent, SinkAway, SinkRefused

DEADLINE_S = 30.0


def wait_until(what: Callable[[], object], message: str = "it did not happen") -> None:
    """Poll until something holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline, message
        time.sleep(0.01)


def free_port() -> int:
    """A port that nobody listened at a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def ids(spans: Iterable[ReadableSpan]) -> Counter[str]:
    """Span ids in hex, counted."""
    return Counter(f"{span.get_span_context().span_id:016x}" for span in spans)


class OtlpServer:
    """An OTLP/HTTP receiver that keeps what it gets.

    `answers` holds (status, headers, response) for the next requests; then everything is taken. It can be closed and
    opened again at the same port.
    """

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.answers: list[tuple[int, dict[str, str], ExportTraceServiceResponse]] = []
        self._server: ThreadingHTTPServer | None = None
        self.open()

    def open(self) -> None:
        """Listen."""
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """Refuse connections from here on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def is_open(self) -> bool:
        return self._server is not None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ids(self) -> Counter[str]:
        """Span ids in hex, counted."""
        return Counter(span.span_id.hex() for span in self.spans)

    def take(self, body: bytes) -> tuple[int, dict[str, str], ExportTraceServiceResponse]:
        """Answer a request."""
        answer = self.answers.pop(0) if self.answers else (200, {}, ExportTraceServiceResponse())
        if answer[0] == 200:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append({a.key: a.value.string_value for a in resource.resource.attributes})
                for scope in resource.scope_spans:
                    self.spans.extend(scope.spans)
        return answer

    def __enter__(self) -> OtlpServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    owner: OtlpServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        if not self.owner.is_open:  # a connection that was kept from before
            self.close_connection = True
            return
        self.owner.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        body = self.rfile.read(int(self.headers["content-length"])) if "content-length" in self.headers else b"".join(
            self._chunks()
        )
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        status, headers, response = self.owner.take(body)
        answer = response.SerializeToString()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        with contextlib.suppress(OSError):  # a client that gave up
            self.end_headers()
            self.wfile.write(answer)

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().strip(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def grpc_server(answer: Callable[[bytes, Any], ExportTraceServiceResponse]) -> Iterator[int]:
    """An OTLP/gRPC receiver; gives its port. `answer` gets a request's bytes and the context."""
    import grpc

    method = grpc.unary_unary_rpc_method_handler(
        answer, request_deserializer=None, response_serializer=ExportTraceServiceResponse.SerializeToString
    )
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"Export": method})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


@contextlib.contextmanager
def rotel(sink_url: str, log: Path) -> Iterator[tuple[int, int]]:
    """rotel, which forwards what it gets to our own server; gives its ports for HTTP and gRPC.

    Raises:
        ImportError: it is not installed, or can't run here.
    """
    import rotel as package

    agent = Path(package.__file__).with_name("rotel-agent")
    http, grpc = free_port(), free_port()
    command = [
        str(agent), "start", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}", "--otlp-http-endpoint", f"127.0.0.1:{http}",
        "--exporter", "otlp", "--otlp-exporter-protocol", "http", "--otlp-exporter-endpoint", sink_url,
        "--batch-timeout", "50ms", "--otlp-exporter-retry-initial-backoff", "100ms",
        "--otlp-exporter-retry-max-backoff", "500ms",
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | {"RUST_LOG": ""})
    try:
        for port in (http, grpc):
            _await_port(process, port, log)
        yield http, grpc
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            text = log.read_text(errors="replace")
            if "error while loading shared libraries" in text or "GLIBC" in text:
                raise ImportError(f"rotel can't run here: {text.strip()}")
            raise AssertionError(f"rotel ended with {process.returncode}: {text}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.01)
    raise AssertionError("rotel did not listen in time")


class ListSink:
    """A sink in memory.

    Attributes:
        batches: what was taken.
        away: whether it is away now; `away_after`: the number of batches after which it goes away for good.
        refuses: whether it refuses the batch with this number.
        rejects: spans of each batch that it rejects.
    """

    name = "list"
    size = 0

    def __init__(self, away_after: int | None = None) -> None:
        self.batches: list[list[ReadableSpan]] = []
        self.away = False
        self.away_after = away_after
        self.refuses: set[int] = set()
        self.rejects = 0
        self.tries = 0
        self._next = 0
        self._encoded: dict[bytes, list[ReadableSpan]] = {}

    @property
    def spans(self) -> list[ReadableSpan]:
        return [span for batch in self.batches for span in batch]

    def encode(self, spans: list[ReadableSpan]) -> bytes:
        key = str(self._next).encode()
        self._next += 1
        self._encoded[key] = spans
        return key

    def send(self, payload: bytes, timeout_s: float) -> Sent:
        self.tries += 1
        if self.away or (self.away_after is not None and len(self.batches) >= self.away_after):
            raise SinkAway("away")
        if int(payload) in self.refuses:
            raise SinkRefused("not this one")
        self.batches.append(self._encoded.pop(payload))
        return Sent(self.rejects, "some were bad" if self.rejects else "")

    def close(self) -> None:
        pass
