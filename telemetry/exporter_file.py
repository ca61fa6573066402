"""Spans as lines of a file: each line is an OTLP TracesData message in JSON, as OpenTelemetry's file exporter has it.

Ids are hexadecimal and 64-bit numbers are text there, which is how OTLP's JSON differs from protobuf's own.
"""

from __future__ import annotations

import base64
import logging
import os
from pathlib import Path
from typing import Any

import msgspec
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan

from ..errors import InvalidConfig
from .exporter_sender import Sent, SinkAway
from .segment_files import is_segment

LINE_START = b'{"resourceSpans":['
_BLOCK = 1 << 20

logger = logging.getLogger("nanolens.exporter")


class FileSink:
    """Appends batches to a file, a line each.

    A write that fails (a full disk) is tried again, like a receiver that is away; what it left is cut off first. So is
    half a line at the end of the file that is opened.

    Args:
        path: the file; made where it does not exist.
        keep: bytes of it to keep: what stands behind them was written after the cursor that is resumed, and comes
            again. None keeps all.

    Raises:
        InvalidConfig: it can't be opened for writing, or ends with something else.
    """

    def __init__(self, path: Path, keep: int | None = None) -> None:
        self.name = str(path)
        if is_segment(path):
            raise InvalidConfig(f"file={self.name}: is a segment of a journal, or named like one; give another file")
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            length = os.fstat(self._file).st_size
            self._plain = not _is_special(self._file)
            if keep is not None and keep < length and self._plain:
                os.ftruncate(self._file, keep)
                length = keep
            if self._plain:
                length = self._mend(path, length)
        except OSError as error:
            raise InvalidConfig(f"file={self.name}: can't be written ({error.strerror})") from error
        self.size = length

    def _mend(self, path: Path, length: int) -> int:
        """Give a last line without an end one if it is whole, or cut it off if it is half a line: the new length.

        Raises:
            InvalidConfig: it is no line of spans.
        """
        tail = _tail(path, length)
        if not tail:
            return length
        head = tail[: len(LINE_START)]
        if not LINE_START.startswith(head):
            raise InvalidConfig(f"file={self.name}: its last line is none of spans; give another file, or a new one")
        try:
            msgspec.json.decode(tail)
        except msgspec.DecodeError:
            logger.warning("%s: its last line is half a line, as a kill leaves it; its %d bytes are cut off",
                           self.name, len(tail))  # fmt: skip
            os.ftruncate(self._file, length - len(tail))
            return length - len(tail)
        return length + os.write(self._file, b"\n")

    def encode(self, spans: list[ReadableSpan]) -> bytes:
        """One line."""
        message = encode_spans(spans)
        resources = [
            {
                "resource": {"attributes": _attributes(each.resource.attributes)},
                "scopeSpans": [
                    {
                        "scope": {"name": scope.scope.name, "version": scope.scope.version},
                        "spans": [_span(span) for span in scope.spans],
                    }
                    for scope in each.scope_spans
                ],
            }
            for each in message.resource_spans
        ]
        return msgspec.json.encode({"resourceSpans": resources}) + b"\n"

    def send(self, payload: bytes, timeout_s: float) -> Sent:
        """Append a line. Errors: SinkAway."""
        written = 0
        try:
            while written < len(payload):
                written += os.write(self._file, payload[written:])
        except OSError as error:
            if written and self._plain:
                os.ftruncate(self._file, self.size)
            raise SinkAway(f"can't be written ({error.strerror})") from error
        self.size += len(payload)
        return Sent()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _tail(path: Path, length: int) -> bytes:
    """What stands behind the last end of a line within so many bytes."""
    tail = b""
    with path.open("rb") as file:
        while len(tail) < length and b"\n" not in tail:
            start = max(0, length - len(tail) - _BLOCK)
            file.seek(start)
            tail = file.read(length - len(tail) - start) + tail
    return tail.rpartition(b"\n")[2]


def _is_special(file: int) -> bool:
    """Whether it is a pipe or a device, which can't be cut."""
    import stat

    return not stat.S_ISREG(os.fstat(file).st_mode)


def _span(span: Any) -> dict[str, Any]:
    """A span of the protobuf message, as OTLP's JSON has it. What is empty is left out."""
    found: dict[str, Any] = {
        "traceId": span.trace_id.hex(),
        "spanId": span.span_id.hex(),
        "parentSpanId": span.parent_span_id.hex(),
        "traceState": span.trace_state,
        "flags": span.flags,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_time_unix_nano),
        "endTimeUnixNano": str(span.end_time_unix_nano),
        "attributes": _attributes(span.attributes),
        "droppedAttributesCount": span.dropped_attributes_count,
        "events": [
            {
                "timeUnixNano": str(event.time_unix_nano),
                "name": event.name,
                "attributes": _attributes(event.attributes),
            }
            for event in span.events
        ],
        "droppedEventsCount": span.dropped_events_count,
        "links": [
            {
                "traceId": link.trace_id.hex(),
                "spanId": link.span_id.hex(),
                "attributes": _attributes(link.attributes),
                "flags": link.flags,
            }
            for link in span.links
        ],
        "droppedLinksCount": span.dropped_links_count,
        "status": {"code": span.status.code} | ({"message": span.status.message} if span.status.message else {}),
    }
    return {name: value for name, value in found.items() if value or name == "status"}


def _attributes(attributes: Any) -> list[dict[str, Any]]:
    return [{"key": item.key, "value": _value(item.value)} for item in attributes]


def _value(value: Any) -> dict[str, Any]:
    kind = value.WhichOneof("value")
    match kind:
        case "string_value":
            return {"stringValue": value.string_value}
        case "bool_value":
            return {"boolValue": value.bool_value}
        case "int_value":
            return {"intValue": str(value.int_value)}
        case "double_value":
            return {"doubleValue": _double(value.double_value)}
        case "bytes_value":
            return {"bytesValue": base64.b64encode(value.bytes_value).decode()}
        case "array_value":
            return {"arrayValue": {"values": [_value(item) for item in value.array_value.values]}}
        case "kvlist_value":
            return {"kvlistValue": {"values": _attributes(value.kvlist_value.values)}}
    return {}


def _double(value: float) -> float | str:
    """JSON has no NaN and no infinities; protobuf's JSON writes their names."""
    if value != value:
        return "NaN"
    return value if abs(value) != float("inf") else ("Infinity" if value > 0 else "-Infinity")
