"""The exporter's loop, on journals of a fake engine and a sink in memory: what comes out, and what is counted."""

from __future__ import annotations

import logging
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from journals import busy_engine, marks, started, writer_of
from nanolens.errors import JournalError
from nanolens.telemetry.cursor import CursorFile, Place
from nanolens.telemetry.engine_process import is_running
from nanolens.telemetry.events import AnyEvent, EngineStopped, Keyframe, RequestArrived, StatusChanged
from nanolens.telemetry.exporter import Exporter
from nanolens.telemetry.exporter_queue import SpanCounts
from nanolens.telemetry.exporter_sender import Backoff, Sent, SinkAway, SinkRefused
from nanolens.telemetry.exporter_settings import ExporterSettings, Outcome
from nanolens.telemetry.reader import JournalReader
from nanolens.telemetry.spans import SpanBuilder
from nanolens.telemetry.tail_rules import TailRules
from otlp_receivers import ListSink, ids, wait_until

SETTINGS = ExporterSettings(
    follow=False, batch_spans=16, batch_age_s=0.01, poll_s=0.005, drain_s=0.3, watch_process=False,
    backoff=Backoff(0.005, 0.02),
)  # fmt: skip


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with preemptions, siblings, aborts and refusals, in small segments, ended in order."""
    path = tmp_path_factory.mktemp("journal")
    engine = busy_engine(path, segment_bytes=20_000)
    with pytest.raises(ValueError, match="max_tokens"):
        engine.add([1], max_tokens=0)
    engine.add_request([1, 2, 3], request_id="last")
    engine.step()
    engine.close()
    assert len(list(path.iterdir())) > 5
    return path


def builder_spans(journal: Path) -> list[ReadableSpan]:
    """What a builder makes of the whole journal."""
    builder = SpanBuilder()
    for frame in JournalReader(journal).frames():
        builder.apply_all(frame.events)
    return builder.take()


def export(
    journal: Path, sink: ListSink | None, settings: ExporterSettings = SETTINGS, cursor: Path | None = None, **more: Any
) -> Outcome:
    """Export a journal with, or from, a cursor."""
    reader = JournalReader(journal)
    file = CursorFile(cursor) if cursor is not None else None
    known = file.load() if file is not None else None
    place = known.place if known is not None else None
    spans = more.pop("spans", SpanBuilder(None, more.pop("rules", TailRules()))) if sink is not None else None
    return Exporter(reader, settings, spans, sink, cursor=file, resume=place, **more).run()


class Kept:
    """A metrics target that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self.num_bytes = 0
        self.gone = self.lost = self.ends = 0
        self.is_over = False
        self.counts = SpanCounts()
        self.each: Callable[[], object] = lambda: None
        self.at_end: Callable[[], object] = lambda: None

    def apply_all(self, events: list[AnyEvent], num_bytes: int) -> None:
        self.events += events
        self.num_bytes += num_bytes
        self.each()
        if isinstance(events[-1], EngineStopped):
            self.at_end()

    def lose(self) -> None:
        self.lost += 1

    def engine_gone(self) -> None:
        self.gone += 1

    def caught_up(self, for_good: bool = False) -> None:
        self.ends += 1
        self.is_over |= for_good

    def set_spans(self, counts: SpanCounts) -> None:
        self.counts = replace(counts)


class HeldSink(ListSink):
    """A receiver that is there, and takes its first batch only when `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.was_late = False

    def send(self, payload: bytes, timeout_s: float) -> Sent:
        self.was_late |= not self.go.wait(20)
        return super().send(payload, timeout_s)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_every_span_comes_out_once_and_in_order(journal: Path) -> None:
    sink = ListSink()
    outcome = export(journal, sink)
    expected = builder_spans(journal)
    assert len(expected) > 300
    assert [span.to_json() for span in sink.spans] == [span.to_json() for span in expected]
    assert outcome == Outcome("stopped", SpanCounts(len(expected), 0, len(expected)), 0)


def test_batches_are_of_the_size_that_was_asked_for(journal: Path) -> None:
    sink = ListSink()
    export(journal, sink, replace(SETTINGS, batch_age_s=60.0))
    assert {len(batch) for batch in sink.batches[:-1]} == {SETTINGS.batch_spans}


def test_a_batch_that_is_old_enough_goes_out_while_the_journal_grows(tmp_path: Path) -> None:
    engine = busy_engine(tmp_path)
    sink = ListSink()
    settings = replace(SETTINGS, follow=True, batch_spans=10_000)
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(export(tmp_path, sink, settings)))
    thread.start()
    wait_until(lambda: sink.spans)
    engine.add([1, 2, 3])
    engine.run()
    engine.close()
    thread.join()
    assert ids(sink.spans) == ids(builder_spans(tmp_path))
    assert outcomes[0].reason == "stopped"


def test_after_an_outage_nothing_is_missing_and_two_lines_tell_of_it(
    journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = ListSink()
    sink.away = True

    def come_back() -> None:
        wait_until(lambda: sink.tries > 4)
        sink.away = False

    threading.Thread(target=come_back).start()
    outcome = export(journal, sink, replace(SETTINGS, drain_s=30.0))
    assert ids(sink.spans) == ids(builder_spans(journal))
    assert outcome.counts.exported == outcome.counts.recorded
    told = warnings(caplog)
    assert len(told) == 2
    assert "away; spans are kept" in told[0]
    assert "back after" in told[1]


def test_a_full_queue_loses_spans_where_metrics_must_go_on_and_counts_them(
    journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink, metrics = ListSink(), Kept()
    sink.away = True
    metrics.at_end = lambda: setattr(sink, "away", False)
    settings = replace(SETTINGS, queue_spans=64, drop_when_full=True, drain_s=30.0)
    counts = export(journal, sink, settings, metrics=metrics).counts
    assert counts.recorded == len(builder_spans(journal)) == counts.exported + counts.dropped
    assert counts.dropped > 0
    assert counts.exported >= 64  # what the queue held
    assert len(sink.spans) == counts.exported
    assert not ids(sink.spans) - ids(builder_spans(journal))
    assert sum("queue of 64 spans is full" in text for text in warnings(caplog)) == 1


def test_a_receiver_that_is_there_and_slow_does_not_hold_up_the_metrics(
    journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink, metrics = HeldSink(), Kept()
    metrics.at_end = sink.go.set
    settings = replace(SETTINGS, queue_spans=64, drop_when_full=True, drain_s=30.0)
    counts = export(journal, sink, settings, metrics=metrics).counts
    assert not sink.was_late
    assert counts.dropped > 0
    assert counts.recorded == counts.exported + counts.dropped
    assert [text for text in warnings(caplog) if "is full" in text] == warnings(caplog)
    assert len(warnings(caplog)) == 1


def test_metrics_are_told_when_the_end_of_the_journal_is_reached(tmp_path: Path) -> None:
    engine = busy_engine(tmp_path)
    metrics = Kept()
    settings = replace(SETTINGS, follow=True)
    thread = threading.Thread(target=export, args=(tmp_path, None, settings), kwargs={"metrics": metrics})
    thread.start()
    try:
        wait_until(lambda: metrics.ends > 3)
        assert not metrics.is_over
    finally:
        engine.close()
        thread.join(30)
    assert metrics.is_over


def test_where_no_metrics_are_served_reading_waits_for_the_receiver(journal: Path) -> None:
    sink = ListSink()
    sink.away = True

    def come_back() -> None:
        wait_until(lambda: sink.tries > 3)
        sink.away = False

    threading.Thread(target=come_back).start()
    outcome = export(journal, sink, replace(SETTINGS, queue_spans=16, drain_s=30.0))
    assert outcome.counts.dropped == 0
    assert ids(sink.spans) == ids(builder_spans(journal))


def test_an_export_that_does_not_follow_gives_up_and_the_next_one_sends_the_rest(journal: Path, tmp_path: Path) -> None:
    first, second = ListSink(away_after=5), ListSink()
    outcome = export(journal, first, replace(SETTINGS, queue_spans=32), tmp_path / "cursor")
    assert outcome.reason in ("away", "stopped")
    assert outcome.left == outcome.counts.recorded - outcome.counts.exported > 0
    export(journal, second, cursor=tmp_path / "cursor")
    assert ids(first.spans) + ids(second.spans) == ids(builder_spans(journal))


@pytest.mark.parametrize("batch_spans", [3, 16, 50])
def test_wherever_it_ends_the_next_export_neither_loses_nor_doubles(
    journal: Path, tmp_path: Path, batch_spans: int
) -> None:
    whole = builder_spans(journal)
    expected = {span.get_span_context().span_id: span for span in whole}
    settings = replace(SETTINGS, batch_spans=batch_spans, batch_age_s=60.0, queue_spans=10_000, drain_s=0.0)
    for ends_after in random.Random(1).sample(range(len(whole) // batch_spans), 6):
        cursor = tmp_path / f"{ends_after}.cursor"
        sinks = [ListSink(away_after=ends_after), ListSink(away_after=4), ListSink()]
        for sink in sinks:
            export(journal, sink, replace(settings, drain_s=30.0 if sink is sinks[-1] else 0.1), cursor)
        got = [span for sink in sinks for span in sink.spans]
        assert len(sinks[0].spans) <= ends_after * batch_spans
        assert ids(got) == ids(whole)
        for span in got:  # only links to traces that ended long before may be missing after a restart
            same = expected[span.get_span_context().span_id]
            assert (span.name, span.start_time, span.end_time, span.parent) == (
                same.name, same.start_time, same.end_time, same.parent,
            )  # fmt: skip
            assert "nanolens.partial" not in (span.attributes or {})


def test_an_export_that_is_told_to_end_sends_what_it_has_read_and_keeps_its_place(
    journal: Path, tmp_path: Path
) -> None:
    first, second, cursor = ListSink(), ListSink(), CursorFile(tmp_path / "cursor")
    metrics = Kept()
    exporter = Exporter(JournalReader(journal), SETTINGS, SpanBuilder(), first, metrics, cursor)
    metrics.each = lambda: exporter.stop() if len(metrics.events) > 500 else None
    outcome = exporter.run()
    assert (outcome.reason, outcome.left) == ("told", 0)
    known = cursor.load()
    assert known is not None
    assert not known.ended
    export(journal, second, cursor=cursor.path)
    assert first.spans
    assert second.spans
    assert ids(first.spans) + ids(second.spans) == ids(builder_spans(journal))
    known = cursor.load()
    assert known is not None
    assert known.ended


def test_a_batch_that_is_refused_is_counted_and_the_next_ones_go_on(
    journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = ListSink()
    sink.refuses = {1, 3}
    counts = export(journal, sink).counts
    assert counts.rejected > 0
    assert counts.exported == counts.recorded - counts.rejected == len(sink.spans)
    assert len(warnings(caplog)) == 1
    assert "not this one" in warnings(caplog)[0]


def test_spans_that_the_receiver_leaves_out_of_a_batch_are_counted(journal: Path) -> None:
    sink = ListSink()
    sink.rejects = 2
    counts = export(journal, sink).counts
    assert counts.rejected == sum(min(2, len(batch)) for batch in sink.batches) > 0  # a slow run cuts smaller ones
    assert counts.exported == counts.recorded - counts.rejected


def test_what_the_rules_let_go_is_counted_also_over_a_restart(journal: Path, tmp_path: Path) -> None:
    rules = TailRules.parse(["preempted", "failed"])
    whole = export(journal, ListSink(), rules=rules).counts
    assert whole.not_kept > 0
    assert whole.recorded == whole.exported + whole.not_kept == len(builder_spans(journal))
    sinks = [ListSink(away_after=2), ListSink()]
    parts = [export(journal, sink, cursor=tmp_path / "cursor", rules=rules) for sink in sinks]
    assert sum(part.counts.exported for part in parts) == whole.exported


def test_metrics_get_every_event_and_the_counts_of_spans(journal: Path) -> None:
    metrics = Kept()
    outcome = export(journal, ListSink(), metrics=metrics)
    assert metrics.events == [event for frame in JournalReader(journal).frames() for event in frame.events]
    assert metrics.counts == outcome.counts
    assert metrics.num_bytes == sum(path.stat().st_size - 23 for path in journal.glob("*.journal"))


def test_metrics_alone_need_no_spans_and_no_sink(journal: Path) -> None:
    metrics = Kept()
    assert export(journal, None, metrics=metrics) == Outcome("stopped", SpanCounts(), 0)
    assert metrics.events


def test_segments_that_are_gone_cost_what_they_held_and_no_more(
    journal: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = Path(shutil.copytree(journal, tmp_path / "journal"))
    first, second = ListSink(away_after=2), ListSink()
    export(copy, first, cursor=tmp_path / "cursor")
    segments = sorted(copy.glob("*.journal"))
    for segment in segments[: len(segments) // 2]:
        segment.unlink()
    caplog.clear()
    metrics = Kept()
    export(copy, second, cursor=tmp_path / "cursor", metrics=metrics)
    assert any("were deleted before they were read" in text for text in warnings(caplog))
    assert metrics.lost == 1
    assert second.spans
    assert not ids(first.spans) & ids(second.spans)
    assert max(ids(second.spans).values()) == 1


def dead_pid() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def unfinished(path: Path, pid: int) -> None:
    """A journal of an engine that goes no further than a request's arrival."""
    now = time.monotonic_ns()
    first = started()
    first.t, first.pid = now, pid
    writer = writer_of(path)
    writer.append([first])
    arrived = RequestArrived(now + 1, "r", [1], 3, 8, 0, {})
    writer.append([arrived, StatusChanged(now + 1, 0, 1, "", "WAITING", "arrived", "r")])
    writer.close()


def export_in_time(*arguments: Any, **more: Any) -> Outcome:
    """As `export`; one that does not end fails."""
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(export(*arguments, **more)), daemon=True)
    thread.start()
    thread.join(30)
    assert outcomes, "the export did not end"
    return outcomes[0]


@pytest.mark.parametrize("follow", [True, False])
def test_what_a_dead_engine_left_open_ends_as_failed(tmp_path: Path, follow: bool) -> None:
    unfinished(tmp_path / "journal", dead_pid())
    sink, metrics = ListSink(), Kept()
    settings = replace(SETTINGS, follow=follow, watch_process=True)
    outcome = export_in_time(tmp_path / "journal", sink, settings, tmp_path / "cursor", metrics=metrics)
    assert outcome.reason == "gone"
    assert metrics.gone == 1
    roots = [span for span in sink.spans if span.parent is None]
    assert [root.status.status_code for root in roots] == [StatusCode.ERROR]
    again = ListSink()
    export_in_time(tmp_path / "journal", again, settings, tmp_path / "cursor")
    assert again.spans == []


def test_an_engine_that_lives_leaves_its_requests_open(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        unfinished(tmp_path, process.pid)
        sink = ListSink()
        assert export(tmp_path, sink, replace(SETTINGS, watch_process=True)).reason == "end"
        assert sink.spans == []
    finally:
        process.communicate(b"\n")


def test_a_process_that_took_a_dead_engines_number_is_not_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        event = started()
        event.pid, event.t = process.pid, time.monotonic_ns()
        assert is_running(event)
        event.t = time.monotonic_ns() - 60_000_000_000  # the first event came before the process did
        assert not is_running(event)
        event.t = time.monotonic_ns() + 60_000_000_000  # of an earlier boot
        assert not is_running(event)
    finally:
        process.communicate(b"\n")
    event.t = time.monotonic_ns()
    assert not is_running(event)


def test_damage_ends_it_with_the_error_and_keeps_what_was_sent(journal: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(journal, tmp_path / "journal"))
    segment = sorted(copy.glob("*.journal"))[3]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    sink = ListSink()
    with pytest.raises(JournalError, match="damaged"):
        export(copy, sink, cursor=tmp_path / "cursor")
    assert sink.spans
    known = CursorFile(tmp_path / "cursor").load()
    assert known is not None
    assert not known.ended


def test_a_cursor_that_cannot_be_written_costs_one_warning(
    journal: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = ListSink()
    outcome = export(journal, sink, cursor=tmp_path / "no" / "such" / "cursor")
    assert outcome.counts.exported == outcome.counts.recorded
    assert sum("can't be written" in text for text in warnings(caplog)) == 1


def test_there_is_a_cursor_before_anything_is_out(journal: Path, tmp_path: Path) -> None:
    cursor = tmp_path / "cursor"

    class Looking(ListSink):
        def send(self, payload: bytes, timeout_s: float) -> Sent:
            assert cursor.exists()
            return super().send(payload, timeout_s)

    assert export(journal, Looking(), cursor=cursor).counts.rejected == 0


def test_a_cursor_that_cannot_be_written_is_tried_again(
    journal: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(CursorFile):
        fails = (True, True, False, True, False)  # two outages
        saves = 0

        def save(self, run: str, place: Place, ended: bool = False, size: int = 0) -> None:
            self.saves += 1
            if self.saves <= len(self.fails) and self.fails[self.saves - 1]:
                raise OSError(28, "No space left on device")
            super().save(run, place, ended, size)

    cursor = Failing(tmp_path / "cursor")
    Exporter(JournalReader(journal), SETTINGS, SpanBuilder(), ListSink(), cursor=cursor).run()
    known = cursor.load()
    assert known is not None and known.ended
    assert sum("can't be written" in text for text in warnings(caplog)) == 2


@pytest.mark.parametrize("refused", [True, False])
def test_what_a_receiver_says_is_logged_without_its_control_characters(
    journal: Path, caplog: pytest.LogCaptureFixture, refused: bool
) -> None:
    class Rude(ListSink):
        def send(self, payload: bytes, timeout_s: float) -> Sent:
            self.tries += 1
            if self.tries == 1:
                raise (SinkRefused if refused else SinkAway)("\x1b[2J\r\nall is well é\x00" + "x" * 10_000)
            return super().send(payload, timeout_s)

    export(journal, Rude())
    text = warnings(caplog)[0]
    assert "\\x1b[2J\\r\\nall is well é\\x00" in text
    assert text.isprintable()
    assert len(text) < 500


def test_keyframes_and_marks_make_no_spans(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.append(marks(5))
    writer.append_keyframe()
    writer.close()
    sink = ListSink()
    assert export(tmp_path, sink).counts == SpanCounts()
    assert any(isinstance(event, Keyframe) for frame in JournalReader(tmp_path).frames() for event in frame.events)
