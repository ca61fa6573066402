"""The recorder: a list on the hot path, one frame a step, subscribers, totals; and that none of it needs torch."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from journals import busy_engine, empty_keyframe, marks, started, stopped
from nanolens.telemetry.events import JournalDropped, Keyframe, PrefixMatched
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.reader import JournalReader
from nanolens.telemetry.recorder import NullRecorder, Recorder
from nanolens.telemetry.state import TOTAL_NAMES, Totals
from stories import story


def test_record_is_the_append_of_a_list() -> None:
    recorder = Recorder(None)
    assert type(recorder.record).__name__ == "builtin_function_or_method"
    recorder.flush(0)
    recorder.record(marks(1)[0])
    batches: list[object] = []
    recorder.subscribe(batches.append)
    recorder.flush(1)
    recorder.record(marks(1, 5)[0])
    recorder.flush(2)
    recorder.flush(3)
    assert batches == [marks(1), marks(1, 5)]


def test_a_step_is_one_frame(tmp_path: Path) -> None:
    recorder = Recorder(JournalWriter(tmp_path, "run"))
    for step in range(3):
        for mark in marks(4, 4 * step):
            recorder.record(mark)
        recorder.flush(step)
    recorder.flush(3)
    recorder.close()
    assert [frame.events for frame in JournalReader(tmp_path).frames()] == [marks(4), marks(4, 4), marks(4, 8)]


def test_keeps_nothing_without_a_writer_and_without_subscribers() -> None:
    recorder = Recorder(None)
    recorder.record(marks(1)[0])
    recorder.flush(0)
    batches: list[object] = []
    recorder.subscribe(batches.append)
    recorder.close()
    assert batches == []


def test_a_failing_subscriber_is_dropped_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    def fail(batch: object) -> None:
        raise RuntimeError("boom")

    recorder, batches = Recorder(None), []
    recorder.subscribe(fail)
    recorder.subscribe(batches.append)
    for step in range(3):
        recorder.record(marks(1, step)[0])
        recorder.flush(step)
    assert len(batches) == 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_an_unsubscribed_one_gets_nothing_more() -> None:
    recorder, batches = Recorder(None), []
    subscriber = batches.append
    recorder.subscribe(subscriber)
    recorder.unsubscribe(subscriber)
    recorder.unsubscribe(subscriber)
    recorder.record(marks(1)[0])
    recorder.flush(0)
    assert batches == []


def test_writes_a_keyframe_when_the_interval_has_passed(tmp_path: Path) -> None:
    now = [0]
    recorder = Recorder(JournalWriter(tmp_path, "run"), lambda: now[0], keyframe_interval_ns=100)
    recorder.record(started())
    assert not recorder.keyframe_due()
    recorder.make_keyframe = empty_keyframe
    for now[0] in range(0, 350, 10):
        recorder.record(marks(1, now[0])[0])
        recorder.flush(0)
    frames = [frame.events for frame in JournalReader(tmp_path).frames()]
    at = [frames[i - 1][0].t for i, events in enumerate(frames) if isinstance(events[0], Keyframe)]  # type: ignore[union-attr]
    assert at == [100, 200, 300]


def test_nothing_follows_the_end_of_a_run(tmp_path: Path) -> None:
    recorder = Recorder(JournalWriter(tmp_path, "run", segment_bytes=1), lambda: 1, keyframe_interval_ns=0)
    recorder.make_keyframe = empty_keyframe
    recorder.record(started())
    recorder.record(stopped())
    recorder.flush(0)
    recorder.close()
    assert [frame.events for frame in JournalReader(tmp_path).frames()] == [[started(), stopped()]]


def test_the_keyframe_carries_the_totals(tmp_path: Path) -> None:
    engine = busy_engine(tmp_path)
    engine.core.close()
    events = [event for frame in JournalReader(tmp_path).frames() for event in frame.events]
    totals = Totals()
    compared = 0
    for event in events:
        if isinstance(event, Keyframe):
            assert event.totals == totals.counts
            compared += 1
        totals.apply(event)
    assert compared > 10
    assert engine.core.recorder.totals.counts == totals.counts


def test_each_total_rises_by_one_kind_of_event_and_evictions_by_two() -> None:
    engine = busy_engine(overlap=True)
    engine.core.close()
    raised: dict[str, set[str]] = {name: set() for name in TOTAL_NAMES}
    for event in [*engine.events, *story(), JournalDropped(0, 3, 1, ""), PrefixMatched(0, 1, 1, 10, 1, 2, 3, 4, False)]:
        totals = Totals()
        totals.apply(event)
        for name, count in totals.counts.items():
            if count:
                raised[name].add(type(event).__name__)
    assert raised.pop("blocks_evicted") <= {"BlocksAllocated", "BlocksSwapped"}
    assert all(len(kinds) <= 1 for kinds in raised.values())
    never = {name for name, kinds in raised.items() if not kinds}
    labelled = ("requests_refused", "requests_finished", "preemptions_", "steps_")  # of these, some kinds never came
    assert {name for name in never if not name.startswith(labelled)} <= {"callback_failures", "engine_errors"}


def test_totals_of_a_run_add_up() -> None:
    engine = busy_engine()
    engine.core.close()
    counts = engine.core.recorder.totals.counts
    outputs = [output for result in engine.outputs.values() for output in result.outputs]
    assert counts["generated_tokens"] == sum(len(output.token_ids) for output in outputs)
    assert counts["requests_arrived"] == len(engine.outputs)
    assert counts["blocks_freed"] == counts["blocks_allocated"] + counts["blocks_shared"]
    assert counts["prefix_queried_tokens"] == sum(
        counts[f"prefix_{name}_tokens"] for name in ("hit", "never_seen", "evicted", "sub_block")
    )


def test_the_null_recorder_has_the_same_surface() -> None:
    public = {name for name in vars(Recorder(None)) | vars(Recorder) if not name.startswith("_")}
    null = NullRecorder()
    assert {name for name in public if not hasattr(null, name)} == set()
    null.record(marks(1)[0])
    null.subscribe(print)
    null.flush(0)
    null.close()
    assert (null.on, Recorder.on, null.keyframe_due()) == (False, True, False)


@pytest.mark.parametrize(
    "module", ["recorder", "journal", "reader", "state", "audit", "differences", "totals", "events", "clock"]
)
def test_importing_it_loads_neither_torch_nor_the_engine(module: str) -> None:
    code = (
        f"import sys, nanolens.telemetry.{module}; "
        "bad = {'torch', 'transformers', 'nanolens.engine'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
