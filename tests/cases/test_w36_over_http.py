"""W36 over HTTP: a caller's trace parent is kept whatever the header's case; a bad one never breaks the request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from otlp_receivers import OtlpServer, wait_until
from serve import VOCAB_SIZE, Server, completion

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"
MALFORMED = ["", "00-abc-def-01", f"00-{TRACE}-{SPAN}", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01",
             f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE.upper()}-{SPAN.upper()}-01", "garbage " * 40]  # fmt: skip
HEADERS = ["traceparent", "TraceParent", "TRACEPARENT"]
ERROR = 2  # the status code of OTLP


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpServer]:
    with OtlpServer() as opened:
        yield opened


@pytest.fixture(scope="module")
def server(receiver: OtlpServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("w36"), otlp=receiver.url) as server:
        yield server


def root_of(receiver: OtlpServer, name: str) -> Any:
    """The one root span of a request, once it has come: the span whose parent is none of ours."""

    def found() -> list[Any]:
        own = {span.span_id for span in receiver.spans}
        spans = [span for span in receiver.spans if span.parent_span_id not in own]
        return [span for span in spans if _text(span, "nanolens.request") == name]

    wait_until(found, f"no root span of {name}")
    (span,) = found()
    assert span.end_time_unix_nano >= span.start_time_unix_nano > 0
    return span


def _text(span: Any, name: str) -> str:
    return next((str(each.value.string_value) for each in span.attributes if each.key == name), "")


def send(server: Server, name: str, headers: dict[str, str], prompt: list[int] | None = None) -> int:
    body = completion([1, 2, 3] if prompt is None else prompt, max_tokens=3)
    return server.post("/v1/completions", body, {"X-Request-Id": name} | headers).status


@pytest.mark.parametrize("header", HEADERS)
def test_a_valid_parent_is_the_parent(server: Server, receiver: OtlpServer, header: str) -> None:
    assert send(server, f"valid-{header}", {header: VALID}) == 200
    root = root_of(receiver, f"valid-{header}")
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, SPAN)


@pytest.mark.parametrize("number", range(len(MALFORMED)))
def test_a_malformed_one_begins_a_trace_of_its_own(server: Server, receiver: OtlpServer, number: int) -> None:
    assert send(server, f"malformed-{number}", {"traceparent": MALFORMED[number]}) == 200
    root = root_of(receiver, f"malformed-{number}")
    assert root.parent_span_id == b"" and root.trace_id.hex() != TRACE


def test_none_begins_a_trace_of_its_own(server: Server, receiver: OtlpServer) -> None:
    assert send(server, "none", {}) == 200
    assert root_of(receiver, "none").parent_span_id == b""


def test_a_refused_request_has_a_root_span_with_its_status(server: Server, receiver: OtlpServer) -> None:
    assert send(server, "refused", {"traceparent": VALID}, [VOCAB_SIZE]) == 400
    root = root_of(receiver, "refused")
    assert (root.status.code, root.parent_span_id.hex()) == (ERROR, SPAN)


def test_an_aborted_request_has_a_root_span_with_its_status(server: Server, receiver: OtlpServer) -> None:
    headers = {"X-Request-Id": "aborted", "TraceParent": VALID}
    with server.stream("/v1/completions", completion([5], max_tokens=800), headers) as stream:
        next(stream.events())
    root = root_of(receiver, "aborted")
    assert (root.status.code, root.parent_span_id.hex()) == (ERROR, SPAN)


def test_no_two_spans_share_an_id(server: Server, receiver: OtlpServer) -> None:
    for number in range(6):
        assert send(server, f"same-{number}", {"traceparent": VALID}) == 200
    for number in range(6):
        root_of(receiver, f"same-{number}")
    assert Counter(span.span_id for span in receiver.spans).most_common(1)[0][1] == 1
