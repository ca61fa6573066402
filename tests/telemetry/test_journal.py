"""The writer and the reader: what goes in comes out, rotation, the cap, and runs beside each other."""

from __future__ import annotations

import os
import tempfile
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from journals import empty_keyframe, marks, started, stopped, times, writer_of
from nanolens.errors import JournalError
from nanolens.telemetry.events import AnyEvent, EngineStarted, JournalDropped, Keyframe
from nanolens.telemetry.frames import first_tag
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.reader import JournalReader
from nanolens.telemetry.segment_files import list_runs

INTEGERS = st.integers(-(2**63), 2**64 - 1)
TEXTS = st.text(max_size=20)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of one field's type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    simple = {int: INTEGERS, str: TEXTS, float: st.floats(allow_nan=False), bool: st.booleans(), type(None): st.none(),
              bytes: st.binary(max_size=40)}  # fmt: skip
    if hint in simple:
        return simple[hint]
    if origin is list:
        return st.lists(values(arguments[0]), max_size=4)
    if origin is tuple:
        return st.tuples(*map(values, arguments))
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if arguments:
        return st.one_of(*map(values, arguments))
    return structs(hint)


def structs(kind: type) -> st.SearchStrategy[Any]:
    """Structs of one type."""
    hints = typing.get_type_hints(kind)
    return st.builds(kind, *(values(hints[name]) for name in kind.__struct_fields__))


EVENTS = st.one_of(*map(structs, typing.get_args(AnyEvent)))


def read(path: Path, **options: Any) -> list[list[AnyEvent]]:
    return [frame.events for frame in JournalReader(path, **options).frames()]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(batches=st.lists(st.lists(EVENTS, min_size=1, max_size=5), min_size=1, max_size=8))
def test_every_batch_reads_back_equal_and_in_order(batches: list[list[AnyEvent]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        writer = JournalWriter(directory, "run", cap=1 << 24)
        for batch in batches:
            writer.append(batch)
        writer.close()
        assert read(Path(directory)) == batches
        assert writer.dropped_frames == 0


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=40),
    segment_bytes=st.integers(1, 2000),
)
def test_rotation_loses_nothing_while_the_cap_allows(sizes: list[int], segment_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        writer = writer_of(Path(directory), segment_bytes=segment_bytes)
        first = 0
        for size in sizes:
            writer.append(marks(size, first))
            first += size
        writer.close()
        assert times(Path(directory)) == list(range(first))


def test_the_first_segment_begins_with_engine_started_and_every_other_one_with_a_keyframe(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, segment_bytes=500)
    for i in range(100):
        writer.append(marks(3, 3 * i))
    writer.close()
    firsts = {}
    for frame in JournalReader(tmp_path).frames():
        firsts.setdefault(frame.segment, frame.events[0])
    assert len(firsts) > 5
    assert [type(event) for event in firsts.values()] == [EngineStarted] + [Keyframe] * (len(firsts) - 1)
    assert list(firsts) == list(range(1, len(firsts) + 1))


@pytest.mark.parametrize("frame_events", [1, 40])
def test_never_takes_more_than_the_cap_and_gives_up_the_oldest(tmp_path: Path, frame_events: int) -> None:
    cap = 1 << 16
    writer = writer_of(tmp_path, cap=cap)
    most = 0
    for i in range(4000 // frame_events):
        writer.append(marks(frame_events, frame_events * i, "x" * 50))
        most = max(most, sum(entry.stat().st_size for entry in os.scandir(tmp_path)))
    writer.close()
    assert cap // 2 < most <= cap
    kept = times(tmp_path)
    assert kept == list(range(kept[0], kept[-1] + 1))
    assert kept[-1] == 4000 // frame_events * frame_events - 1
    assert writer.dropped_frames == 0
    assert not JournalReader(tmp_path).complete


def test_a_frame_beyond_the_cap_is_lost_and_told(tmp_path: Path) -> None:
    now = [0]
    writer = writer_of(tmp_path, cap=1 << 16, clock=lambda: now[0])  # type: ignore[arg-type]
    writer.append(marks(1, text="x" * (1 << 17)))
    now[0] += 10**12
    writer.append(marks(1, 5))
    writer.append(marks(1, 6))
    writer.close()
    assert times(tmp_path) == [6]
    assert (writer.dropped_events, writer.dropped_frames) == (2, 2)
    assert sum(entry.stat().st_size for entry in os.scandir(tmp_path)) <= 1 << 16


def test_where_the_state_outgrows_the_cap_the_newest_history_stays(tmp_path: Path) -> None:
    now, cap, big = [0], 1 << 16, [0]
    writer = writer_of(tmp_path, cap=cap, clock=lambda: now[0])  # type: ignore[arg-type]
    writer.make_keyframe = lambda: empty_keyframe(num_blocks=big[0])
    written = 0
    for i in range(4000):
        big[0] = 20 * i  # blocks, and so bytes, of a keyframe
        writer.append(marks(1, i, "x" * 90))
        if i % 100 == 99:
            writer.append_keyframe()
        written = written if writer.dropped_events else i
        now[0] += 10**8
    assert writer.dropped_events > 1000
    kept = times(tmp_path)
    assert len(kept) > 40 and kept == list(range(kept[0], written + 1))
    assert isinstance(next(iter(read(tmp_path)))[0], Keyframe)
    big[0] = 0
    now[0] += 10**12
    writer.append(marks(1, 5000))
    writer.append(marks(1, 5001))
    writer.close()
    assert times(tmp_path)[-1] == 5001 and times(tmp_path)[0] == kept[0]
    dropped = [event for frame in read(tmp_path) for event in frame if isinstance(event, JournalDropped)]
    assert [event.events for event in dropped] == [writer.dropped_events]
    assert sum(entry.stat().st_size for entry in os.scandir(tmp_path)) <= cap


def test_a_frame_that_does_not_fit_costs_no_history(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, cap=1 << 16, segment_bytes=1000)
    for i in range(100):
        writer.append(marks(1, i, "x" * 90))
    writer.append(marks(1, 100, "x" * (1 << 16)))
    assert times(tmp_path) == list(range(100)) and writer.dropped_events == 1


def test_the_cap_holds_for_all_runs_of_a_directory(tmp_path: Path) -> None:
    old = writer_of(tmp_path, "old", cap=1 << 16)
    for i in range(500):
        old.append(marks(1, i, "x" * 90))
    old.close()
    new = writer_of(tmp_path, "new", cap=1 << 16)
    for i in range(2000):
        new.append(marks(1, i, "x" * 90))
    new.close()
    assert list_runs(tmp_path) == ["new"]
    assert sum(entry.stat().st_size for entry in os.scandir(tmp_path)) <= 1 << 16


def test_reads_the_run_that_was_written_last_or_the_one_asked_for(tmp_path: Path) -> None:
    for index, run in enumerate(("b", "a", "c-000001")):
        writer = writer_of(tmp_path, run)
        writer.append(marks(1, index))
        writer.close()
        os.utime(writer.path, ns=(index * 10**9, index * 10**9))
    assert JournalReader(tmp_path).run == "c-000001"
    assert times(tmp_path) == [2]
    assert times(tmp_path, "a") == [1]
    with pytest.raises(JournalError, match=r"holds no run 'd'; its runs are b, a, c-000001"):
        JournalReader(tmp_path, "d")


def test_a_segment_file_is_read_alone(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, segment_bytes=200)
    for i in range(40):
        writer.append(marks(1, i))
    writer.close()
    (alone,) = {frame.segment for frame in JournalReader(tmp_path / "run-000003.journal").frames()}
    assert alone == 3


@pytest.mark.parametrize("run_id", ["", "a/b", "a\0b", "x" * 201])
def test_refuses_a_run_id_that_names_no_file(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(ValueError, match="run_id="):
        JournalWriter(tmp_path, run_id)


def with_keyframes(tmp_path: Path, every: int = 10, count: int = 60) -> None:
    """Marks 0 to `count`, with a keyframe of step i and time i after each `every`; several segments."""
    writer = writer_of(tmp_path, segment_bytes=1500)
    step = [0]

    def keyframe() -> Keyframe:
        made = empty_keyframe(step[0])
        made.t = step[0]
        return made

    writer.make_keyframe = keyframe
    for step[0] in range(1, count + 1):
        writer.append(marks(1, step[0], "x" * 40))
        if step[0] % every == 0:
            writer.append_keyframe()
    writer.close()
    assert len(JournalReader(tmp_path).segments()) > 2


@pytest.mark.parametrize("step", [1, 9, 10, 11, 35, 59, 60, 1000])
def test_starts_at_the_last_keyframe_as_of_a_step_or_a_time(tmp_path: Path, step: int) -> None:
    with_keyframes(tmp_path)
    reader = JournalReader(tmp_path)
    joins = [
        (0 if isinstance(event, EngineStarted) else event.step)
        for frame in reader.frames()
        for event in frame.events
        if isinstance(event, EngineStarted | Keyframe)
    ]
    want = max(join for join in joins if join <= step)
    for position in (reader.at_step(step), reader.at_time(step)):
        first = next(reader.frames(position)).events[0]
        assert (0 if isinstance(first, EngineStarted) else first.step) == want


def test_starts_at_the_newest_keyframe(tmp_path: Path) -> None:
    with_keyframes(tmp_path, count=57)
    reader = JournalReader(tmp_path)
    first, *rest = [event for frame in reader.frames(reader.last_keyframe()) for event in frame.events]
    assert isinstance(first, Keyframe)
    assert first.step >= 50
    assert [event.t for event in rest] == list(range(first.step + 1, 58))


def test_keyframes_are_skipped_to_without_decoding_what_lies_between(tmp_path: Path) -> None:
    batches: list[list[AnyEvent]] = [
        [started()] * 20,
        [empty_keyframe()] * 400,
        [empty_keyframe()] * 70_000,
        [stopped()],
    ]
    for events in batches:
        writer = JournalWriter(tmp_path / str(len(events)), "run")
        writer.append(events)
        writer.close()
        data = writer.path.read_bytes()
        payload = data[data.index(b"run") + 3 + 4 + 8 :]
        assert first_tag(payload[:64]) == type(events[0]).__struct_config__.tag
