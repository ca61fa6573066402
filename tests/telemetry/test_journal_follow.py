"""Following a journal that grows: nothing is missed or given twice, across rotations, gaps and torn moments."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from journals import marks, stopped, writer_of
from nanolens.errors import JournalError
from nanolens.telemetry.events import EngineStarted, Keyframe, Mark
from nanolens.telemetry.reader import Frame, JournalReader


class Script:
    """`stop` for a reader that waits: each wait runs the next action; when none is left, reading ends."""

    def __init__(self, *actions: object) -> None:
        self.actions = list(actions)

    def __call__(self) -> bool:
        if not self.actions:
            return True
        action = self.actions.pop(0)
        action()  # type: ignore[operator]
        return False


def follow(journal: Path, *actions: object) -> Iterator[Frame]:
    return JournalReader(journal).frames(follow=True, stop=Script(*actions), poll_s=0)


def marks_of(frames: Iterator[Frame]) -> list[int]:
    return [event.t for frame in frames for event in frame.events if isinstance(event, Mark)]


def test_gives_what_is_appended_while_it_waits(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    got = marks_of(follow(tmp_path, lambda: writer.append(marks(2)), lambda: None, lambda: writer.append(marks(1, 2))))
    assert got == [0, 1, 2]


def test_goes_on_across_rotations(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, segment_bytes=100)

    def more(first: int) -> None:
        for i in range(first, first + 10):
            writer.append(marks(1, i))

    assert marks_of(follow(tmp_path, lambda: more(0), lambda: more(10), lambda: more(20))) == list(range(30))
    assert len(JournalReader(tmp_path).segments()) > 5


def test_ends_with_the_run(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.append([*marks(1), stopped()])
    frames = list(JournalReader(tmp_path).frames(follow=True))
    assert frames[-1].events[-1] == stopped()


def test_says_that_segments_were_deleted_and_goes_on_at_the_next_keyframe(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, segment_bytes=100)

    def outrun() -> None:
        for i in range(30):
            writer.append(marks(1, i))
        for number in JournalReader(tmp_path).segments()[:-2]:
            (tmp_path / f"run-{number:06d}.journal").unlink()

    frames = list(follow(tmp_path, outrun))
    (gap,) = [frame for frame in frames if frame.gap]
    assert gap.gap == f"segments 2 to {gap.segment - 1} were deleted before they were read"
    assert isinstance(gap.events[0], Keyframe)
    assert isinstance(frames[0].events[0], EngineStarted)
    rest = marks_of(iter(frames[frames.index(gap) :]))
    assert rest == list(range(rest[0], 30))


def test_finishes_an_open_segment_that_is_deleted_under_it(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.append(marks(3))
    frames = JournalReader(tmp_path).frames(follow=True, stop=Script(), poll_s=0)
    next(frames)
    writer.path.unlink()
    assert marks_of(frames) == [0, 1, 2]


def test_waits_for_the_rest_of_a_frame(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    whole = writer.path.stat().st_size
    writer.append(marks(3))
    data = writer.path.read_bytes()
    writer.path.write_bytes(data[:whole])

    def grow(to: int) -> None:
        writer.path.open("r+b").write(data[:to])

    steps = [lambda to=to: grow(to) for to in range(whole, len(data) + 1)]
    assert marks_of(follow(tmp_path, *steps)) == [0, 1, 2]


def test_waits_for_the_rest_of_a_header(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    data = writer.path.read_bytes()
    second = tmp_path / "run-000002.journal"
    other = writer_of(tmp_path / "other", segment_bytes=1)
    other.append(marks(1))
    header = other.path.read_bytes()
    assert data != header

    def grow(to: int) -> None:
        second.write_bytes(header[:to])

    steps = [lambda to=to: grow(to) for to in range(0, len(header) + 1, 7)] + [lambda: grow(len(header))]
    frames = list(follow(tmp_path, *steps))
    assert [frame.segment for frame in frames] == [1, 2]
    assert isinstance(frames[1].events[0], Keyframe)


def test_a_reader_in_step_with_a_fast_writer_misses_nothing(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, segment_bytes=2000)

    def write() -> None:
        for i in range(3000):
            writer.append(marks(1, i))
        writer.append([stopped()])
        writer.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        got = marks_of(JournalReader(tmp_path).frames(follow=True, poll_s=0.001))
    finally:
        thread.join()
    assert got == list(range(3000))


def test_a_journal_whose_files_are_gone_is_an_error_at_the_start(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    reader = JournalReader(tmp_path)
    writer.path.unlink()
    with pytest.raises(JournalError, match="the segments of run 'run' are gone"):
        next(reader.frames())
