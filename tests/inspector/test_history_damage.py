"""Journals that are torn, damaged, foreign, of a newer version, cut at their begin, with gaps, or of a dead engine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from histories import Recording, witnessed_run
from journals import empty_keyframe, marks, started, stopped, writer_of
from nanolens.errors import InspectError, JournalError
from nanolens.inspector.history.history import History
from nanolens.inspector.view import Moment
from nanolens.telemetry.differences import keyframe_differences
from nanolens.telemetry.events import EngineStarted, StepPlanned
from nanolens.telemetry.frames import FRAME_HEAD, MAGIC, FrameEncoder, pack_header
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.reader import JournalReader


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return witnessed_run(tmp_path_factory.mktemp("journal"), commands=500)


@pytest.fixture
def copied(recording: Recording, tmp_path: Path) -> Path:
    shutil.copytree(recording.path, tmp_path / "copy")
    return tmp_path / "copy"


def newest(directory: Path) -> Path:
    return max(directory.iterdir())


def test_a_journal_torn_at_any_byte_opens_at_its_last_whole_frame(recording: Recording, copied: Path) -> None:
    path, data = newest(copied), newest(recording.path).read_bytes()
    moments = sorted(recording.own)
    for end in range(len(data) - 1, len(data) // 2, -997):
        path.write_bytes(data[:end])
        history = History(copied)
        last = history.last()
        whole = history._store.segment(last.segment).torn_bytes == 0
        assert whole or history.notes[-1].startswith("it ends in an unfinished frame of ")
        known = max(moment for moment in moments if moment <= last)
        assert keyframe_differences(history.keyframe(known).keyframe, recording.own[known]) == []


def test_a_last_frame_with_a_wrong_checksum_is_left_out(recording: Recording, copied: Path) -> None:
    path = newest(copied)
    data = bytearray(path.read_bytes())
    before = History(copied).last()
    data[-1] ^= 1
    path.write_bytes(data)
    assert History(copied).last() < before


def test_damage_in_the_middle_is_named_and_the_rest_can_be_seen(recording: Recording, copied: Path) -> None:
    moments = sorted(recording.own)
    middle = next(moment for moment in moments if moment > moments[len(moments) // 2])
    path = copied / f"run-{middle.segment:06d}.journal"
    data = bytearray(path.read_bytes())
    data[middle.offset + FRAME_HEAD.size + 2] ^= 0xFF
    path.write_bytes(data)
    history = History(copied)
    with pytest.raises(JournalError, match=rf"{path.name}, offset {middle.offset}: damaged: the checksum"):
        history.keyframe(middle)
    for moment in (moments[20], moments[-1]):
        assert keyframe_differences(history.keyframe(moment).keyframe, recording.own[moment]) == []


def test_a_foreign_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run-000001.journal"
    path.write_bytes(b"something else entirely")
    for given in (path, tmp_path):
        with pytest.raises(JournalError, match="not a nanolens journal"):
            History(given)


def test_a_newer_version_asks_for_a_newer_nanolens(tmp_path: Path) -> None:
    header = bytearray(pack_header("run", 1))
    header[len(MAGIC)] += 1
    (tmp_path / "run-000001.journal").write_bytes(header)
    with pytest.raises(JournalError, match="this nanolens reads up to version"):
        History(tmp_path)


def test_a_place_without_a_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="holds no journal"):
        History(tmp_path)
    with pytest.raises(JournalError, match="no such file or directory"):
        History(tmp_path / "nowhere")


def test_an_unknown_run_names_those_that_are_there(copied: Path) -> None:
    with pytest.raises(JournalError, match="holds no run 'other'; its runs are run"):
        History(copied, "other")


def test_a_journal_that_has_only_begun_fills_later(tmp_path: Path) -> None:
    path = tmp_path / "run-000001.journal"
    header = pack_header("run", 1)
    path.write_bytes(header[:9])
    history = History(tmp_path)
    with pytest.raises(InspectError, match="holds no whole frame"):
        history.last()
    assert not history.refresh()
    path.write_bytes(header + FrameEncoder().encode([started()]))
    assert history.refresh()
    assert history.first() == history.last() == Moment(1, len(header), 1)
    assert history.keyframe(history.last()).keyframe.started.run_id == "run"


def test_frames_without_any_whole_state_are_no_state(tmp_path: Path) -> None:
    (tmp_path / "run-000001.journal").write_bytes(pack_header("run", 1) + FrameEncoder().encode(marks(3)))
    history = History(tmp_path)
    with pytest.raises(InspectError, match=r"neither engine\.started nor a keyframe"):
        history.first()
    with pytest.raises(InspectError, match="not known before the first keyframe"):
        history.keyframe(history.last())


def test_a_journal_without_its_begin_starts_at_a_keyframe(recording: Recording, copied: Path) -> None:
    (copied / "run-000001.journal").unlink()
    history = History(copied)
    assert history.first().segment == 2
    assert history.notes == ["its beginning was deleted to make room"]
    for moment in [moment for moment in sorted(recording.own) if moment.segment > 1]:
        found = history.keyframe(moment)
        if found.is_order_sure:
            assert keyframe_differences(found.keyframe, recording.own[moment]) == []
    assert history.at_step(0) == history.first()
    assert history.started.run_id == "test"


def test_a_missing_segment_is_passed_over(recording: Recording, copied: Path) -> None:
    assert len(list(copied.iterdir())) >= 3
    (copied / "run-000002.journal").unlink()
    history = History(copied)
    assert history.notes == ["segments 2 to 2 are missing"]
    before = max(moment for moment in recording.own if moment.segment == 1)
    after = min(moment for moment in recording.own if moment.segment == 3)
    for moment in (before, after, before):
        assert keyframe_differences(history.keyframe(moment).keyframe, recording.own[moment]) == []
    with pytest.raises(JournalError, match="segment 2 of run 'run' is no longer there"):
        history.keyframe(Moment(2, 23, 1))
    lived = {seq.seq for seq in recording.own[before].sequences} & {seq.seq for seq in recording.own[after].sequences}
    for seq in recording.own[after].sequences:
        story = history.story(after, seq.seq)
        assert story is not None
        assert not story.whole or seq.seq in lived
        assert (story.stays[-1].status, story.stays[-1].begin_t) == (seq.status, seq.status_t)


def test_segments_deleted_while_it_is_looked_at_move_its_begin(copied: Path) -> None:
    history = History(copied)
    first = history.first()
    (copied / "run-000001.journal").unlink()
    history.refresh()
    assert history.first().segment == 2
    with pytest.raises(JournalError, match="no longer there"):
        history.keyframe(first)


def test_events_lost_by_the_writer_are_made_up_by_the_keyframe_behind_them(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, "run")
    writer.make_keyframe = lambda: empty_keyframe(step=7)
    writer.append([started()])
    writer.append([*marks(1), EngineStarted(0, "\ud800", 0, 1, "0", "x", {}, 8, 4, 100, 64), *marks(2, 5)])
    history = History(tmp_path)
    frames = list(JournalReader(tmp_path).frames())
    gap = Moment(1, frames[1].offset, len(frames[1].events))
    assert history.keyframe(gap).keyframe.step == 7
    assert history.tick(history.last()).step == 7


def test_a_growing_journal_is_followed_across_segments(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, segment_bytes=2000)
    history = History(tmp_path)
    for i in range(200):
        writer.append(marks(1, i + 1))
        assert history.refresh()
        rows = history.events(history.last(), 3)
        assert i + 1 in [row.t for row in rows]
        assert not history.refresh()
    assert history.last().segment > 2
    assert history.keyframe(history.last()).keyframe.started == started()


def test_how_a_run_ended(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-I", "-c", "input()"], stdin=subprocess.PIPE)
    writer = JournalWriter(tmp_path, "run")
    event = started()
    event.pid, event.t = child.pid, time.monotonic_ns()
    writer.append([event])
    assert History(tmp_path).ending == "open"
    child.kill()
    child.wait()
    assert History(tmp_path).ending == "dead"
    writer.append([stopped()])
    history = History(tmp_path)
    assert history.ending == "ended"
    assert history.keyframe(history.last()).stopped == stopped()


def test_an_engine_killed_under_load_is_shown_at_its_last_step(tmp_path: Path) -> None:
    program = Path(__file__).parent.parent / "support" / "killed_engines.py"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-P", program, tmp_path, "3", "1"], check=True, env=environment, timeout=120)
    for journal in sorted(tmp_path.iterdir()):
        history = History(journal)
        planned = [
            event.step
            for frame in JournalReader(journal).frames()
            for event in frame.events
            if isinstance(event, StepPlanned)
        ]
        state = history.keyframe(history.last())
        assert history.ending == "dead" and state.stopped is None
        assert state.keyframe.step == (planned[-1] if planned else 0)
        assert not planned or state.keyframe.sequences


def test_files_are_closed_with_it(copied: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    history = History(copied)
    history.keyframe(history.at_step(5))
    assert len(os.listdir("/proc/self/fd")) > before
    history.close()
    assert len(os.listdir("/proc/self/fd")) == before
