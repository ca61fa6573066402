"""`nano-trace export --perfetto`: the file, what is said, exit codes; and its bytes, read with Perfetto's protocol."""

from __future__ import annotations

import gzip
import io
import os
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from journals import busy_engine, marks, started, stopped, writer_of
from nanolens.inspector.perfetto_trace import PerfettoTrace
from nanolens.inspector.perfetto_wire import TraceWriter, varint
from nanolens.inspector.trace_cli import main
from nanolens.telemetry.events import RequestArrived, RequestFinished, StatusChanged, StepPlanned
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.reader import JournalReader


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    engine = busy_engine(tmp_path / "journal", segment_bytes=1 << 14)
    engine.close()
    return tmp_path / "journal"


def parsed(data: bytes) -> Trace:
    trace = Trace()
    trace.ParseFromString(data)
    return trace


def test_the_file_holds_a_slice_for_each_step(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "trace.pftrace"
    assert main(["export", str(journal), "--perfetto", str(out)]) == 0
    trace = parsed(out.read_bytes())
    steps = {p.track_descriptor.uuid for p in trace.packet if p.track_descriptor.name == "Steps"}
    begun = sum(p.track_event.type == TrackEvent.TYPE_SLICE_BEGIN and p.track_event.track_uuid in steps
                for p in trace.packet)  # fmt: skip
    events = [event for frame in JournalReader(journal).frames() for event in frame.events]
    assert begun == sum(isinstance(event, StepPlanned) for event in events) > 0
    kinds = Counter(p.track_event.type for p in trace.packet if p.HasField("track_event"))
    flows = sum(len(p.track_event.terminating_flow_ids) for p in trace.packet)
    assert capsys.readouterr().err == (
        f"nano-trace export: {out}: {len(events)} events: {kinds[1]} slices, {kinds[3]} instants, {flows} arrows, "
        f"{kinds[4]} counter values; open it in Perfetto's UI (ui.perfetto.dev)\n"
    )


def test_a_name_that_ends_in_gz_is_compressed_and_otherwise_the_same(journal: Path, tmp_path: Path) -> None:
    for name in ("a.pftrace", "b.pftrace.gz", "c.pftrace.gz"):
        assert main(["export", str(journal), "--perfetto", str(tmp_path / name)]) == 0
    packed = (tmp_path / "b.pftrace.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "a.pftrace").read_bytes()
    assert packed == (tmp_path / "c.pftrace.gz").read_bytes()


def test_one_run_of_several_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in ("one", "two"):
        writer = writer_of(tmp_path / "journal", run)
        writer.append([stopped()])
        writer.close()
    out = tmp_path / "trace"
    assert main(["export", str(tmp_path / "journal"), "--run", "one", "--perfetto", str(out)]) == 0
    names = [p.track_descriptor.process.process_name for p in parsed(out.read_bytes()).packet]
    assert "nanolens 0: fake, run one" in names
    assert main(["export", str(tmp_path / "journal"), "--run", "three", "--perfetto", str(out)]) == 2
    assert "holds no run 'three'" in capsys.readouterr().err


def test_a_torn_end_is_left_out(journal: Path, tmp_path: Path) -> None:
    last = sorted(journal.glob("*.journal"))[-1]
    last.write_bytes(last.read_bytes()[:-3])
    assert main(["export", str(journal), "--perfetto", str(tmp_path / "trace")]) == 0


def refusal(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that is said when nothing can be done."""
    assert main(["export", *argv]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    return said.err


def test_an_empty_journal_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    out = str(tmp_path / "trace")
    assert "holds no journal" in refusal([str(tmp_path / "empty"), "--perfetto", out], capsys)
    assert "no such file" in refusal([str(tmp_path / "nothing"), "--perfetto", out], capsys)
    writer = JournalWriter(tmp_path / "j", "run")
    writer.append([*marks(3)])
    writer.close()
    assert "nothing to export" in refusal([str(tmp_path / "j"), "--perfetto", out], capsys)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []


def test_a_journal_that_contradicts_itself_leaves_the_file_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = writer_of(tmp_path / "journal")
    writer.append([StatusChanged(5, 0, 7, "WAITING", "RUNNING", "admitted")])
    writer.close()
    out = tmp_path / "trace"
    out.write_text("before")
    said = refusal([str(tmp_path / "journal"), "--perfetto", str(out)], capsys)
    assert "sequence.status names 7" in said and "nano-trace check" in said
    assert out.read_text() == "before" and sorted(p.name for p in tmp_path.iterdir()) == ["journal", "trace"]


def test_a_file_that_cannot_be_written_is_told_of(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal([str(journal), "--perfetto", str(tmp_path / "nowhere" / "trace")], capsys)
    assert "can't be written (No such file or directory)" in said
    assert "is a directory" in refusal([str(journal), "--perfetto", str(tmp_path)], capsys)


@pytest.mark.parametrize(
    "other",
    [["--otlp", "http://h:1"], ["--file", "f"], ["--csv", "f"], ["--metrics-port", "0"], ["--keep", "failed"]],
)
def test_it_goes_alone(journal: Path, tmp_path: Path, other: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal([str(journal), "--perfetto", str(tmp_path / "trace"), *other], capsys)
    assert f"--perfetto and {other[0]}: one at a time" in said


def test_spans_is_another_name_of_file(journal: Path, tmp_path: Path) -> None:
    assert main(["export", str(journal), "--once", "--file", str(tmp_path / "a")]) == 0
    assert main(["export", str(journal), "--once", "--spans", str(tmp_path / "b")]) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != b""


# The bytes


def test_fields_of_every_kind_are_read_back() -> None:
    out = io.BytesIO()
    writer = TraceWriter(out, 100, 1000)
    track = writer.track("steps", writer.process(7, "engine"), rank=3)
    counter = writer.counter("free", track, "blocks")
    writer.begin(track, 200, "decode", {"text": "ä", "whole": -5, "real": 0.5, "yes": True, "big": 1 << 40})
    writer.instant(track, 250, "decode", flow=9)
    writer.instant(track, 250, "other", flow=9, ends=True)
    writer.end(track, 300, {"text": "end"})
    writer.value(counter, 300, -1)
    writer.value(counter, 301, 2.5)
    clocks, _defaults, process, steps, free, begin, flow, ends, end, whole, real = parsed(out.getvalue()).packet
    assert [(c.clock_id, c.timestamp) for c in clocks.clock_snapshot.clocks] == [(3, 100), (6, 100), (1, 1100)]
    assert (process.track_descriptor.process.pid, process.track_descriptor.process.process_name) == (7, "engine")
    described = steps.track_descriptor
    assert (described.name, described.parent_uuid, described.sibling_order_rank) == ("steps", 1, 3)
    assert (free.track_descriptor.counter.unit_name, free.track_descriptor.parent_uuid) == ("blocks", described.uuid)
    assert (begin.timestamp, begin.track_event.track_uuid) == (200, described.uuid)
    assert begin.interned_data.event_names[0].name == "decode"
    names = {entry.iid: entry.name for entry in begin.interned_data.debug_annotation_names}
    values = {names[a.name_iid]: getattr(a, a.WhichOneof("value")) for a in begin.track_event.debug_annotations}
    assert values == {"text": "ä", "whole": -5, "real": 0.5, "yes": True, "big": 1 << 40}
    assert flow.track_event.name_iid == begin.track_event.name_iid and not flow.HasField("interned_data")
    assert (list(flow.track_event.flow_ids), list(ends.track_event.terminating_flow_ids)) == ([9], [9])
    assert end.track_event.debug_annotations[0].string_value == "end"
    assert (whole.track_event.counter_value, real.track_event.double_counter_value) == (-1, 2.5)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (16383, "ff7f"), (16384, "808001"), (-1, "ff" * 9 + "01"),
    ],
)  # fmt: skip
def test_varint(value: int, encoded: str) -> None:
    assert varint(value).hex() == encoded


def test_requests_that_ended_long_ago_are_forgotten() -> None:
    """What is kept follows what lives, and the last few thousand requests."""
    sink = open(os.devnull, "wb")  # noqa: SIM115
    trace = PerfettoTrace(sink)
    trace.apply(started())
    sizes = []
    tracemalloc.start()
    try:
        for i in range(3 * 5000):
            name, t = f"request {i}", 10 * i
            for event in (
                RequestArrived(t, name, [i], 5, 9, 0, {}), StatusChanged(t, 0, i, "", "WAITING", "arrived", name),
                StatusChanged(t + 1, 0, i, "WAITING", "FINISHED", "aborted"),
                RequestFinished(t + 2, name, "abort", 5, 0, 0),
            ):  # fmt: skip
                trace.apply(event)
            if i % 5000 == 4999:
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
        sink.close()
    assert sizes[2] < sizes[1] * 1.1
