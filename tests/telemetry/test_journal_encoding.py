"""An event that can't be encoded costs itself: the engine, the journal and the rest of the batch go on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from journals import empty_keyframe, marks, started, stopped, times, writer_of
from nanolens.inspector.trace_cli import main as nano_trace
from nanolens.telemetry.events import AnyEvent, EngineStopped, JournalDropped, Keyframe, Mark
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.reader import JournalReader
from nanolens.telemetry.recorder import Recorder

BAD: list[AnyEvent] = [Mark(7, "\ud800", "test"), Mark(2**64, "x", "test"), Mark(7, object(), "test")]  # type: ignore[arg-type]
NAMES = ["surrogate", "too_big", "foreign_type"]


def recorder_of(journal: Path, keyframe: Any = empty_keyframe) -> Recorder:
    """A recorder with its first frame written, that makes keyframes only where the writer asks for one."""
    recorder = Recorder(JournalWriter(journal, "run"), lambda: 1)
    recorder.make_keyframe = keyframe
    recorder.record(started())
    recorder.flush(0)
    return recorder


def record(recorder: Recorder, events: list[AnyEvent]) -> None:
    for event in events:
        recorder.record(event)
    recorder.flush(1)


def frames_of(journal: Path) -> list[list[AnyEvent]]:
    return [frame.events for frame in JournalReader(journal).frames()]


@pytest.mark.parametrize("bad", BAD, ids=NAMES)
def test_only_the_bad_event_is_lost(tmp_path: Path, bad: AnyEvent) -> None:
    recorder = recorder_of(tmp_path)
    record(recorder, [*marks(2), bad, *marks(2, 2)])
    record(recorder, marks(1, 4))
    counts = dict(recorder.totals.counts)
    recorder.close()
    assert times(tmp_path) == [0, 1, 2, 3, 4]
    assert (counts["dropped_events"], counts["dropped_frames"]) == (1, 0)


@pytest.mark.parametrize("bad", BAD, ids=NAMES)
def test_the_journal_says_where_and_goes_on_from_a_keyframe(tmp_path: Path, bad: AnyEvent) -> None:
    recorder = recorder_of(tmp_path)
    record(recorder, [*marks(1), bad, *marks(1, 1), bad])
    recorder.close()
    _, batch, after = frames_of(tmp_path)
    assert [type(event) for event in batch] == [Mark, JournalDropped, Mark]
    dropped = batch[1]
    assert isinstance(dropped, JournalDropped)
    assert (dropped.events, dropped.frames) == (2, 0)
    assert dropped.reason.startswith("mark: ")
    assert isinstance(after[0], Keyframe)
    assert after[0].totals["dropped_events"] == 2


def test_it_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = recorder_of(tmp_path)
    for _ in range(3):
        record(recorder, [*BAD, *marks(1)])
    recorder.close()
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 1
    assert "mark: UnicodeEncodeError" in told[0]
    assert recorder.totals.counts["dropped_events"] == 9


def test_subscribers_get_the_whole_batch(tmp_path: Path) -> None:
    recorder, seen = recorder_of(tmp_path), []
    recorder.subscribe(seen.extend)
    record(recorder, [*BAD, *marks(1)])
    assert len(seen) == 4


def test_a_keyframe_that_cannot_be_encoded_is_left_out_and_later_ones_are_written(tmp_path: Path) -> None:
    bad = empty_keyframe()
    bad.started.model = "\ud800"
    keyframes = iter([bad, bad, empty_keyframe()])
    recorder = recorder_of(tmp_path, lambda: next(keyframes))
    for first in range(3):
        record(recorder, [BAD[0], *marks(1, first)])
    recorder.close()
    kinds = [[type(event).__name__ for event in events] for events in frames_of(tmp_path)[1:]]
    assert kinds == [["JournalDropped", "Mark"]] * 3 + [["Keyframe"]]
    assert recorder.totals.counts["dropped_events"] == 3


def test_a_segment_may_begin_without_the_keyframe_that_cannot_be_encoded(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, segment_bytes=1)
    bad = empty_keyframe()
    bad.started.model = "\ud800"
    writer.make_keyframe = lambda: bad
    for i in range(3):
        writer.append(marks(1, i))
        writer.append_keyframe()
    writer.close()
    assert times(tmp_path) == [0, 1, 2]
    assert writer.dropped_events == 0


@pytest.mark.parametrize("bad", [[BAD[0]], [], [EngineStopped(0, "\ud800")]], ids=["beside", "none", "itself"])
def test_the_end_stays_the_last_event(tmp_path: Path, bad: list[AnyEvent]) -> None:
    recorder = recorder_of(tmp_path)
    record(recorder, [*bad, *marks(1), stopped()] if not bad or isinstance(bad[0], Mark) else [*marks(1), *bad])
    recorder.close()
    events = [event for frame in frames_of(tmp_path) for event in frame]
    stops = [i for i, event in enumerate(events) if isinstance(event, EngineStopped)]
    assert stops == ([] if bad and isinstance(bad[0], EngineStopped) else [len(events) - 1])
    assert recorder.totals.counts["dropped_events"] == len(bad)


def test_such_a_journal_passes_the_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = recorder_of(tmp_path)
    record(recorder, [*marks(1), *BAD, *marks(1)])
    record(recorder, [*BAD, stopped()])
    recorder.close()
    assert nano_trace(["check", str(tmp_path)]) == 0
    assert "6 events were lost by the writer" in capsys.readouterr().out


def test_a_first_event_that_cannot_be_encoded_leaves_a_readable_journal(tmp_path: Path) -> None:
    recorder = Recorder(JournalWriter(tmp_path, "run"), lambda: 1)
    bad = started()
    bad.model = "\ud800"
    record(recorder, [bad, *marks(1)])
    recorder.close()
    assert times(tmp_path) == [0]


def test_a_failing_disk_and_a_bad_event_together_reach_nobody(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("in the way")
    recorder = Recorder(JournalWriter(tmp_path / "journal", "run"), lambda: 1)
    recorder.make_keyframe = empty_keyframe
    record(recorder, [started(), *BAD])
    record(recorder, [*BAD, *marks(1), EngineStopped(0, "\ud800")])
    recorder.close()
    assert recorder.totals.counts["dropped_events"] == 9
