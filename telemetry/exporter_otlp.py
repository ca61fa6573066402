"""OTLP as it goes over a wire: protobuf over HTTP and over gRPC, and who is to be tried again (OTLP 1.x, "Failures").

Knows nothing of queues; a batch is handed over once.
"""

from __future__ import annotations

import gzip
import http.client
import os
import ssl
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan

from .. import __version__
from ..errors import InvalidConfig
from .endpoint import Endpoint
from .exporter_deadline import Deadline, connect
from .exporter_sender import Sent, SinkAway, SinkRefused

RETRY_STATUS = frozenset({429, 502, 503, 504})
RETRY_CODES = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)
GRPC_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
MAX_BODY = 1 << 20
_USER_AGENT = f"nanolens/{__version__}"


def otlp_sink(endpoint: Endpoint, headers: Mapping[str, str]) -> HttpSink | GrpcSink:
    """The sink for an endpoint.

    Args:
        endpoint: of the receiver.
        headers: sent with every batch.

    Raises:
        InvalidConfig: gRPC without its package, or a certificate that can't be read.
    """
    return (GrpcSink if endpoint.protocol == "grpc" else HttpSink)(endpoint, headers)


class HttpSink:
    """OTLP/HTTP with binary protobuf and gzip, over one connection that is kept.

    Args:
        endpoint: of the receiver.
        headers: sent with every batch.
    """

    size = 0

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str]) -> None:
        self.name = str(endpoint)
        self._endpoint = endpoint
        self._tls = _tls_context() if endpoint.is_secure else None
        self._headers = dict(headers) | {
            "content-type": "application/x-protobuf", "content-encoding": "gzip", "user-agent": _USER_AGENT,
        }  # fmt: skip
        self._connection: http.client.HTTPConnection | None = None

    def encode(self, spans: list[ReadableSpan]) -> bytes:
        """The request's message."""
        return bytes(encode_spans(spans).SerializeToString())

    def send(self, payload: bytes, timeout_s: float) -> Sent:
        """POST a batch. Errors: SinkAway, SinkRefused."""
        body, deadline = gzip.compress(payload, 1), time.monotonic() + timeout_s
        kept = self._connection is not None
        try:
            status, reason, retry_after, answer = self._post(body, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            left = deadline - time.monotonic()
            if not kept or isinstance(error, TimeoutError) or left <= 0:
                raise SinkAway(_words(error)) from error
            return self.send(payload, left)  # it had been closed since the last batch: once more, on a new one
        if 200 <= status < 300:
            return _partial_success(answer)
        why = f"HTTP {status} {reason}".strip()
        if status in RETRY_STATUS:
            raise SinkAway(why, _seconds(retry_after))
        raise SinkRefused(why)

    def close(self) -> None:
        """Close the connection; the next batch opens one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, body: bytes, timeout_s: float) -> tuple[int, str, str, bytes]:
        """One try. A socket's timeout is for each read alone, so a deadline ends a receiver that trickles."""
        at = self._endpoint
        with Deadline(timeout_s) as deadline:
            if self._connection is None:
                self._connection = connect(at.host, at.port, self._tls, deadline, timeout_s)
            elif self._connection.sock is not None:
                deadline.watch(self._connection.sock)
                self._connection.sock.settimeout(timeout_s)
            self._connection.request("POST", at.path, body, self._headers)
            response = self._connection.getresponse()
            answer = response.read(MAX_BODY)
            if response.read(1):
                self.close()  # an answer without end
            return response.status, response.reason, response.getheader("retry-after") or "", answer


class GrpcSink:
    """OTLP/gRPC with gzip, over one channel.

    Args:
        endpoint: of the receiver.
        headers: sent as metadata with every batch.

    Raises:
        InvalidConfig: the package grpcio is not installed.
    """

    size = 0

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str]) -> None:
        try:
            import grpc
        except ImportError as error:
            raise InvalidConfig(
                "OTLP over gRPC needs the package grpcio: pip install 'nanolens[grpc]', or take OTLP over HTTP"
            ) from error
        self._grpc = grpc
        self.name = str(endpoint)
        options = [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 5000),
                   ("grpc.primary_user_agent", _USER_AGENT)]  # fmt: skip
        if endpoint.is_secure:
            credentials = grpc.ssl_channel_credentials(_read_certificate())
            self._channel = grpc.secure_channel(endpoint.authority, credentials, options)
        else:
            self._channel = grpc.insecure_channel(endpoint.authority, options)
        self._call = self._channel.unary_unary(
            GRPC_METHOD, request_serializer=None, response_deserializer=ExportTraceServiceResponse.FromString
        )
        self._metadata = [(name.lower(), value) for name, value in headers.items()]

    def encode(self, spans: list[ReadableSpan]) -> bytes:
        """The request's message."""
        return bytes(encode_spans(spans).SerializeToString())

    def send(self, payload: bytes, timeout_s: float) -> Sent:
        """Call Export with a batch. Errors: SinkAway, SinkRefused."""
        try:
            answer = self._call(
                payload, timeout=timeout_s, metadata=self._metadata, compression=self._grpc.Compression.Gzip
            )
        except self._grpc.RpcError as error:
            raise self._failure(error) from error
        return Sent(answer.partial_success.rejected_spans, answer.partial_success.error_message)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _failure(self, error: Any) -> SinkAway | SinkRefused:
        """RESOURCE_EXHAUSTED is worth another try only where the receiver says when."""
        code, details = error.code().name, error.details() or ""
        trailers = dict(error.trailing_metadata() or ())
        can_retry = code == "RESOURCE_EXHAUSTED" and b"RetryInfo" in trailers.get("grpc-status-details-bin", b"")
        why = f"gRPC {code}: {details}"[:300]
        return SinkAway(why) if code in RETRY_CODES or can_retry else SinkRefused(why)


def _partial_success(answer: bytes) -> Sent:
    try:
        partial = ExportTraceServiceResponse.FromString(answer).partial_success
    except DecodeError:
        return Sent()  # taken; what it says of it is no protobuf
    return Sent(max(0, partial.rejected_spans), partial.error_message)


def _seconds(retry_after: str) -> float:
    """The value of a Retry-After header: seconds, or a date; at most five minutes."""
    try:
        seconds = float(retry_after) if retry_after else 0.0
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after).timestamp() - time.time()
        except ValueError:
            return 0.0
    return min(max(0.0, seconds), 300.0)


def _words(error: Exception) -> str:
    """An error of the network in words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text[:300]


def _certificate() -> str | None:
    return os.environ.get("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE") or os.environ.get("OTEL_EXPORTER_OTLP_CERTIFICATE")


def _read_certificate() -> bytes | None:
    path = _certificate()
    try:
        return Path(path).read_bytes() if path else None
    except OSError as error:
        raise InvalidConfig(f"OTEL_EXPORTER_OTLP_CERTIFICATE={path}: can't be read ({error.strerror})") from error


def _tls_context() -> ssl.SSLContext:
    path = _certificate()
    try:
        return ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfig(f"OTEL_EXPORTER_OTLP_CERTIFICATE={path}: no certificates ({_words(error)})") from error
