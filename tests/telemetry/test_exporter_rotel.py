"""A real receiver of OTLP, rotel, takes the spans over HTTP and gRPC, and forwards them to a server of our own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from journals import busy_engine
from nanolens.inspector.trace_cli import main as nano_trace
from nanolens.telemetry.reader import JournalReader
from nanolens.telemetry.spans import SpanBuilder
from otlp_receivers import OtlpServer, ids, rotel, wait_until

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with preemptions, siblings, an abort and refusals, ended in order."""
    path = tmp_path_factory.mktemp("journal")
    engine = busy_engine(path)
    for parent in (TRACEPARENT, "00-short", None):
        with pytest.raises(ValueError, match="prompt"):
            engine.add_request([], None, traceparent=parent)
    engine.close()
    return path


@pytest.fixture(scope="module")
def expected(journal: Path) -> list[ReadableSpan]:
    builder = SpanBuilder()
    for frame in JournalReader(journal).frames():
        builder.apply_all(frame.events)
    return builder.take()


@pytest.fixture(scope="module")
def receiver(
    tmp_path_factory: pytest.TempPathFactory, lacks: Callable[[str], NoReturn]
) -> Iterator[tuple[OtlpServer, int, int]]:
    """Our own server, and rotel's ports for HTTP and gRPC before it."""
    with OtlpServer() as server:
        try:
            with rotel(server.url, tmp_path_factory.mktemp("rotel") / "log") as (http, grpc):
                yield server, http, grpc
        except ImportError as error:
            lacks(f"rotel ({error})")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_every_span_arrives_as_it_was_built(
    journal: Path, expected: list[ReadableSpan], receiver: tuple[OtlpServer, int, int], tmp_path: Path, protocol: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    server, http, grpc = receiver
    server.spans.clear()
    port = grpc if protocol == "grpc" else http
    arguments = ["--otlp", f"http://127.0.0.1:{port}", "--otlp-protocol", protocol, "--batch", "64"]
    assert nano_trace(["export", str(journal), *arguments, "--cursor", str(tmp_path / "cursor")]) == 0
    assert f"{len(expected)} spans recorded, {len(expected)} exported\n" in capsys.readouterr().err
    wait_until(lambda: len(server.spans) >= len(expected))
    assert server.ids == ids(expected)
    got = {span.span_id.hex(): span for span in server.spans}
    for span in expected:
        same = got[f"{span.get_span_context().span_id:016x}"]
        assert same.trace_id.hex() == f"{span.get_span_context().trace_id:032x}"
        assert same.parent_span_id.hex() == (f"{span.parent.span_id:016x}" if span.parent is not None else "")
        assert (same.name, same.start_time_unix_nano, same.end_time_unix_nano) == (
            span.name, span.start_time, span.end_time,
        )  # fmt: skip
        assert {attribute.key for attribute in same.attributes} == set(span.attributes or {})
        assert len(same.links) == len(span.links)
        assert same.status.code == span.status.status_code.value


def test_a_refused_request_has_one_ended_root_span_under_its_callers(
    journal: Path, receiver: tuple[OtlpServer, int, int], tmp_path: Path
) -> None:
    server, http, _ = receiver
    server.spans.clear()
    assert nano_trace(["export", str(journal), "--otlp", f"http://127.0.0.1:{http}", "--keep", "failed",
                       "--cursor", str(tmp_path / "cursor")]) == 0  # fmt: skip
    wait_until(lambda: len(server.spans) >= 3)
    refused = [span for span in server.spans if span.status.code == 2]
    assert len({span.span_id for span in refused}) == len(refused) == 3
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano > 0 for span in refused)
    parents = Counter((span.trace_id.hex(), span.parent_span_id.hex()) for span in refused)
    assert parents[TRACEPARENT[3:35], TRACEPARENT[36:52]] == 1
    assert sum(count for (_, parent), count in parents.items() if not parent) == 2
    assert len(parents) == 3


def test_what_was_sent_while_the_receivers_own_endpoint_was_down_arrives_too(
    journal: Path, expected: list[ReadableSpan], receiver: tuple[OtlpServer, int, int], tmp_path: Path
) -> None:
    server, http, _ = receiver
    server.spans.clear()
    server.close()
    try:
        assert nano_trace(["export", str(journal), "--otlp", f"http://127.0.0.1:{http}",
                           "--cursor", str(tmp_path / "cursor")]) == 0  # fmt: skip
    finally:
        server.open()
    wait_until(lambda: set(server.ids) == set(ids(expected)))
