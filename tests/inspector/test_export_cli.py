"""`nano-trace export`: flags, what is said, exit codes, files and cursors."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from journals import busy_engine, started, stopped, writer_of
from nanolens.errors import InvalidConfig
from nanolens.inspector.export_cli import add_export
from nanolens.inspector.trace_cli import main
from nanolens.telemetry.cursor import CursorFile, Place, cursor_path
from nanolens.telemetry.endpoint import parse_endpoint
from nanolens.telemetry.exporter_options import Export, ExportOptions
from nanolens.telemetry.reader import JournalReader, Position
from nanolens.telemetry.spans import SpanBuilder
from otlp_receivers import OtlpServer, ids, wait_until


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    engine = busy_engine(tmp_path / "journal")
    engine.close()
    return tmp_path / "journal"


def expected(journal: Path) -> list[Any]:
    builder = SpanBuilder()
    for frame in JournalReader(journal, "run").frames():
        builder.apply_all(frame.events)
    return builder.take()


def file_spans(path: Path) -> list[dict[str, Any]]:
    """The spans of a file, as JSON."""
    return [
        span
        for line in path.read_text().splitlines()
        for resource in msgspec.json.decode(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def test_a_file_holds_otlp_json(journal: Path, tmp_path: Path) -> None:
    out = tmp_path / "spans.jsonl"
    assert main(["export", str(journal), "--file", str(out), "--batch", "100"]) == 0
    spans, whole = file_spans(out), expected(journal)
    assert len(out.read_text().splitlines()) == -(-len(whole) // 100)
    for got, span in zip(spans, whole, strict=True):
        context = span.get_span_context()
        assert got["traceId"] == f"{context.trace_id:032x}"
        assert got["spanId"] == f"{context.span_id:016x}"
        assert got.get("parentSpanId", "") == (f"{span.parent.span_id:016x}" if span.parent else "")
        assert (got["startTimeUnixNano"], got["endTimeUnixNano"]) == (str(span.start_time), str(span.end_time))
        assert {item["key"] for item in got.get("attributes", [])} == set(span.attributes)
        assert [link["spanId"] for link in got.get("links", [])] == [f"{x.context.span_id:016x}" for x in span.links]
    resource = msgspec.json.decode(out.read_text().splitlines()[0])["resourceSpans"][0]["resource"]
    assert {"key": "service.name", "value": {"stringValue": "nanolens"}} in resource["attributes"]


@pytest.mark.parametrize("flag", ["--csv", "--perfetto"])
def test_what_is_written_once_is_not_followed(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    out = tmp_path / "out"
    assert main(["export", str(journal), flag, str(out), "--follow"]) == 2
    said = capsys.readouterr().err
    assert f"{flag} writes what the journal holds now: leave --follow out" in said and said.count("\n") == 1
    assert not out.exists()


def test_exporting_twice_gives_the_same_spans(journal: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert main(["export", str(journal), "--once", "--file", str(tmp_path / name)]) == 0
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_run_that_was_exported_to_its_end_is_not_sent_again_unless_asked(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with OtlpServer() as server:
        arguments = ["export", str(journal), "--otlp", server.url]
        assert main(arguments) == 0
        first = server.ids
        assert first == ids(expected(journal))
        assert main(arguments) == 0
        assert "exported to its end before" in capsys.readouterr().err
        assert server.ids == first
        assert main([*arguments, "--from-start"]) == 0
        assert server.ids == first + first


def test_a_file_that_was_removed_is_written_anew(journal: Path, tmp_path: Path) -> None:
    out = tmp_path / "spans.jsonl"
    for _ in range(2):
        assert main(["export", str(journal), "--file", str(out)]) == 0
        assert len(file_spans(out)) == len(expected(journal))
        out.unlink()


def test_a_cursor_of_another_run_is_told_of_and_passed_over(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cursor = tmp_path / "cursor"
    CursorFile(cursor).save("another", Place(Position(3, 100), Position(3, 200)))
    with OtlpServer() as server:
        assert main(["export", str(journal), "--otlp", server.url, "--cursor", str(cursor)]) == 0
        assert server.ids == ids(expected(journal))
    told = capsys.readouterr().err
    assert "is of run another" in told
    assert "--run another" in told


NEWER = '{"version":99,"run":"r","join":[1,0],"frame":[1,0],"count":0,"ended":false}'


def test_a_run_that_was_left_in_the_middle_is_named_when_a_later_one_is_exported(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = writer_of(journal, "later")
    writer.append([stopped()])
    writer.close()
    with OtlpServer() as server:
        place, receiver = Place(Position(1, 23), Position(1, 23)), parse_endpoint(server.url).file_name
        CursorFile(cursor_path(journal, "run", receiver)).save("run", place)
        CursorFile(journal / "gone.cursor").save("gone", place)
        assert main(["export", str(journal), "--otlp", server.url, "--run", "later"]) == 0
        assert "run run was not exported to its end; --run run does that" in capsys.readouterr().err
        assert not (journal / "gone.cursor").exists()
        assert main(["export", str(journal), "--otlp", server.url, "--run", "run"]) == 0
        assert server.ids == ids(expected(journal))


@pytest.mark.parametrize("content", ["", "{", '{"version":1}', NEWER])
def test_a_file_that_is_no_cursor_is_named(journal: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    with OtlpServer() as server:
        cursor = cursor_path(journal, "run", parse_endpoint(server.url).file_name)
        cursor.write_text(content)
        assert main(["export", str(journal), "--otlp", server.url]) == 2
        told = capsys.readouterr().err
        assert cursor.name in told
        assert "--from-start" in told
        assert main(["export", str(journal), "--otlp", server.url, "--from-start"]) == 0


def test_each_receiver_gets_all_of_a_run(journal: Path) -> None:
    with OtlpServer() as one, OtlpServer() as two:
        assert main(["export", str(journal), "--otlp", one.url]) == 0
        assert main(["export", str(journal), "--otlp", two.url]) == 0
        assert one.ids == two.ids == ids(expected(journal))
        assert main(["export", str(journal), "--otlp", one.url]) == 0
        assert one.ids == two.ids


def test_a_run_that_another_receiver_has_in_part_is_not_told_of(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = writer_of(journal, "later")
    writer.append([stopped()])
    writer.close()
    CursorFile(cursor_path(journal, "run", "another-4318-0")).save("run", Place(Position(1, 23), Position(1, 23)))
    with OtlpServer() as server:
        assert main(["export", str(journal), "--otlp", server.url, "--run", "later"]) == 0
    assert "was not exported" not in capsys.readouterr().err
    assert cursor_path(journal, "run", "another-4318-0").exists()


def test_a_cursor_that_is_no_regular_file_is_refused_and_stays(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/full")
    for path in (pipe, link, tmp_path):
        with OtlpServer() as server:
            for more in ([], ["--from-start"]):
                assert main(["export", str(journal), "--otlp", server.url, "--cursor", str(path), *more]) == 2
            assert f"{path}: a cursor must be a regular file" in capsys.readouterr().err
            assert not server.spans
    assert pipe.is_fifo() and link.is_symlink()


@pytest.mark.parametrize("line", [b"", b'{"resourceSpans":[]}\n'])
def test_half_a_line_at_the_end_of_a_file_without_a_cursor_is_cut_off(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: bytes
) -> None:
    out = tmp_path / "spans.jsonl"
    out.write_bytes(line + b'{"resourceSpans":[{"half')
    assert main(["export", str(journal), "--file", str(out)]) == 0
    assert "half a line" in capsys.readouterr().err
    assert len(file_spans(out)) == len(expected(journal))


def test_a_last_line_that_lacks_no_more_than_its_end_stays(journal: Path, tmp_path: Path) -> None:
    out = tmp_path / "spans.jsonl"
    out.write_bytes(b'{"resourceSpans":[]}')
    assert main(["export", str(journal), "--file", str(out)]) == 0
    assert out.read_bytes().startswith(b'{"resourceSpans":[]}\n{"resourceSpans":[{')
    assert len(file_spans(out)) == len(expected(journal))


def test_a_file_that_ends_with_something_else_is_left_alone(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "notes.txt"
    out.write_bytes(b"dear diary")
    assert main(["export", str(journal), "--file", str(out)]) == 2
    assert "its last line is none of spans" in capsys.readouterr().err
    assert out.read_bytes() == b"dear diary"


def test_headers_and_the_endpoint_come_from_the_environment_too(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OtlpServer() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-one=1,x-two=2")
        assert main(["export", str(journal), "--header", "X-Two=two"]) == 0
        _, headers = server.requests[0]
        assert (headers["x-one"], headers["x-two"]) == ("1", "two")
        assert server.ids == ids(expected(journal))


def test_rules_are_asked(journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "spans.jsonl"
    assert main(["export", str(journal), "--file", str(out), "--keep", "aborted", "--keep", "preempted"]) == 0
    spans = file_spans(out)
    assert 0 < len(spans) < len(expected(journal))
    told = capsys.readouterr().err
    recorded, exported, let_go = (int(re.search(rf"(\d+) {what}", told)[1]) for what in (  # type: ignore[index]
        "spans recorded", "exported", "let go by --keep"))  # fmt: skip
    assert recorded == len(expected(journal)) == exported + let_go
    assert exported == len(spans)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to do"),
        (["--otlp", "nowhere"], "otlp='nowhere'"),
        (["--otlp", "http://x", "--file", "y"], "one of them"),
        (["--otlp-protocol", "grpc"], "without an endpoint"),
        (["--otlp", "http://x", "--header", "novalue"], "NAME=VALUE"),
        (["--file", "/no/such/place"], "file=/no/such/place: can't be written"),
        (["--metrics-port", "70000"], "from 0 to 65535"),
        (["--otlp", "http://x", "--keep", "everything"], "keep=everything"),
    ],
)
def test_what_can_not_work_is_said(
    journal: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str],
    message: str,
) -> None:  # fmt: skip
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert main(["export", str(journal), *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told


@pytest.mark.parametrize("arguments", [["--batch", "0"], ["--queue", "x"], ["--drain", "-1"], ["--once", "--follow"]])
def test_figures_out_of_range_are_usage_errors(journal: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["export", str(journal), "--file", "x", *arguments])
    assert caught.value.code == 2


def test_a_journal_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path / "none"), "--metrics-port", "0"]) == 2
    assert "no such file or directory" in capsys.readouterr().err


def test_metrics_are_served_while_it_lingers(journal: Path) -> None:
    command = [sys.executable, "-P", "-m", "nanolens.inspector.trace_cli", "export", str(journal)]
    process = subprocess.Popen(
        [*command, "--metrics-port", "0", "--linger", "60"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        url = process.stderr.readline().rpartition(" ")[2].strip()

        def page() -> str:
            with urllib.request.urlopen(url, timeout=10) as response:
                text: str = response.read().decode()
                return text

        wait_until(lambda: "nanolens_engine_up 0.0" in page() and "nanolens_steps_total" in page())
        wait_until(lambda: 'nanolens_requests_total{finish_reason="abort"} 3.0' in page())
        read = sum(path.stat().st_size for path in journal.glob("*.journal"))
        assert read * 0.9 < float(re.findall(r"nanolens_journal_bytes_total (\S+)", page())[-1]) < read
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_metrics_of_an_engine_that_ended_are_served_on_by_default_while_following(journal: Path) -> None:
    from nanolens.inspector.export_cli import options_from

    def linger_s(*arguments: str) -> float:
        parser = argparse.ArgumentParser()
        add_export(parser.add_subparsers())
        return options_from(parser.parse_args(["export", str(journal), "--metrics-port", "0", *arguments])).linger_s

    assert linger_s() == 60
    assert linger_s("--once") == 0
    assert linger_s("--once", "--linger", "2") == 2
    assert linger_s("--linger", "0") == 0


def test_a_next_export_gets_the_port_of_one_that_lingers(journal: Path) -> None:
    def at(port: int) -> Export:
        return Export(ExportOptions(journal=str(journal), metrics_port=port, linger_s=60.0))

    first = at(0)
    assert first.metrics_port
    ended = threading.Event()

    def work() -> None:
        try:
            first.run(JournalReader(journal))
            first.linger()
        finally:
            first.close()
            ended.set()

    threading.Thread(target=work, daemon=True).start()
    try:
        assert wait_for_next(lambda: at(first.metrics_port or 0)).metrics_port == first.metrics_port
        assert ended.wait(30)
    finally:
        first.stop()


def wait_for_next(begin: Callable[[], Export]) -> Export:
    """An export at a port that is about to be given up; closed again."""
    found: list[Export] = []

    def try_it() -> bool:
        with contextlib.suppress(InvalidConfig):
            found.append(begin())
        return bool(found)

    wait_until(try_it)
    found[0].close()
    return found[0]


def test_an_empty_run_has_no_spans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = writer_of(tmp_path / "journal")
    writer.append([started(), stopped()])
    writer.close()
    assert main(["export", str(tmp_path / "journal"), "--file", str(tmp_path / "out")]) == 0
    assert "0 spans recorded, 0 exported" in capsys.readouterr().err
    assert (tmp_path / "out").read_bytes() == b""
