"""A disk that fails: the caller never notices, the loss is counted and told once, and no torn frame stays."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from journals import busy_engine, empty_keyframe, marks, started, stopped, times, writer_of
from nanolens.telemetry.audit import Audit
from nanolens.telemetry.events import EngineStopped, JournalDropped, Keyframe
from nanolens.telemetry.journal import FIRST_RETRY_NS, LAST_RETRY_NS, JournalWriter
from nanolens.telemetry.reader import JournalReader

SECOND = 1_000_000_000


class Now:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.t = 0

    def __call__(self) -> int:
        return self.t


class Disk:
    """Stands in for os.write: takes `room` more bytes, then is full. A write that doesn't fit whole is short first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 1 << 40
        self._write = os.write
        monkeypatch.setattr(os, "write", self)

    def __call__(self, fd: int, data: bytes) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._write(fd, memoryview(data)[: self.room])
        self.room -= written
        return written


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("room", [0, 1, 7, 8, 30])
def test_a_full_disk_loses_frames_and_leaves_whole_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, room: int
) -> None:
    disk, now = Disk(monkeypatch), Now()
    writer = writer_of(tmp_path, clock=now)  # type: ignore[arg-type]
    writer.append(marks(1, 0))
    whole = writer.path.stat().st_size
    disk.room = room
    for i in range(1, 4):
        writer.append(marks(2, 10 * i))
    assert writer.path.stat().st_size == whole
    assert times(tmp_path) == [0]
    assert (writer.dropped_events, writer.dropped_frames) == (6, 3)
    assert len(warnings(caplog)) == 1
    assert "No space left on device" in warnings(caplog)[0]


def test_it_writes_again_after_the_back_off_and_says_what_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk, now = Disk(monkeypatch), Now()
    writer = writer_of(tmp_path, clock=now)  # type: ignore[arg-type]
    disk.room = 3
    writer.append(marks(1, 1))
    disk.room = 1 << 40
    writer.append(marks(1, 2))  # within the back-off: not tried
    now.t += FIRST_RETRY_NS
    writer.append(marks(1, 3))  # tried: the keyframe of the fresh segment holds its effect
    writer.append(marks(1, 4))
    writer.close()
    (dropped, keyframe), after = [f.events for f in JournalReader(tmp_path).frames() if f.segment == 2]
    assert dropped == JournalDropped(FIRST_RETRY_NS, 3, 3, "[Errno 28] No space left on device")
    assert isinstance(keyframe, Keyframe)
    assert after == marks(1, 4)
    assert len(warnings(caplog)) == 1


def test_the_back_off_doubles_up_to_its_end_and_starts_anew_after_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, now = Disk(monkeypatch), Now()
    writer = writer_of(tmp_path, clock=now)  # type: ignore[arg-type]
    tries: list[int] = []
    writer.make_keyframe = lambda: tries.append(now.t) or empty_keyframe()  # type: ignore[func-returns-value]
    disk.room = 0
    for now.t in range(0, 120 * SECOND, SECOND // 2):
        writer.append(marks(1))
    gaps = [after - before for before, after in zip([0, *tries], tries, strict=False)]
    assert gaps == [min(FIRST_RETRY_NS << i, LAST_RETRY_NS) for i in range(len(gaps))]
    assert gaps[-1] == LAST_RETRY_NS
    disk.room = 1 << 40
    now.t += LAST_RETRY_NS
    writer.append(marks(1))
    disk.room, tries[:] = 0, []
    writer.append(marks(1))
    now.t += FIRST_RETRY_NS
    writer.append(marks(1))
    assert tries == [now.t]


def test_a_place_that_can_not_be_written_at_the_start_is_no_exception(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked, now = tmp_path / "file", Now()
    blocked.write_text("in the way")
    writer = JournalWriter(blocked / "journal", "run", clock=now)
    writer.make_keyframe = empty_keyframe
    writer.append([started()])
    writer.append(marks(2))
    assert (writer.dropped_events, writer.dropped_frames) == (3, 2)
    assert len(warnings(caplog)) == 1
    blocked.unlink()
    now.t += FIRST_RETRY_NS
    writer.append(marks(1))
    writer.append(marks(1, 7))
    writer.close()
    first, second = JournalReader(blocked / "journal").frames()
    assert [type(event) for event in first.events] == [JournalDropped, Keyframe]
    assert second.events == marks(1, 7)


def test_no_permission_is_no_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object, **kwargs: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", refuse)
    writer = JournalWriter(tmp_path, "run")
    writer.append([started()])
    assert writer.dropped_events == 1
    assert "Permission denied" in warnings(caplog)[0]


def test_a_removed_directory_is_noticed_and_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal, now = tmp_path / "journal", Now()
    writer = writer_of(journal, clock=now)  # type: ignore[arg-type]
    writer.append(marks(3))
    shutil.rmtree(journal)
    writer.append(marks(5))  # goes into a file that no one can open any more
    now.t += SECOND
    writer.append(marks(7))
    assert (writer.dropped_events, writer.dropped_frames) == (16, 4)
    now.t += SECOND
    writer.append(marks(1))
    writer.append(marks(1, 9))
    writer.close()
    assert times(journal) == [9]
    assert len(warnings(caplog)) == 1


def test_what_the_last_segment_lost_is_counted_at_the_close(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    writer = writer_of(journal)
    shutil.rmtree(journal)
    writer.append(marks(2))
    writer.close()
    assert writer.dropped_events == 3


def test_a_tail_that_can_not_be_cut_back_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk, now = Disk(monkeypatch), Now()
    monkeypatch.setattr(os, "ftruncate", refuse)
    writer = writer_of(tmp_path, clock=now)  # type: ignore[arg-type]
    writer.append(marks(1, 0))
    disk.room = 11
    writer.append(marks(1, 1))
    disk.room = 1 << 40
    now.t += SECOND
    writer.append(marks(1, 2))
    writer.append(marks(1, 3))
    writer.close()
    assert times(tmp_path) == [0, 3]


def test_a_segment_that_could_not_be_begun_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, now = Disk(monkeypatch), Now()
    writer = writer_of(tmp_path, segment_bytes=60, clock=now)  # type: ignore[arg-type]
    disk.room = 100
    for i in range(20):
        now.t += SECOND
        writer.append(marks(1, i))
    names = sorted(os.listdir(tmp_path))
    disk.room = 1 << 40
    now.t += LAST_RETRY_NS
    writer.append(marks(1))
    assert sorted(os.listdir(tmp_path)) == [*names, f"run-{len(names) + 1:06d}.journal"]
    assert all((tmp_path / name).stat().st_size for name in names)


def test_the_end_of_a_run_is_written_if_there_is_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    writer = writer_of(tmp_path)
    disk.room = 0
    writer.append(marks(1))
    disk.room = 1 << 40
    writer.append([*marks(1), stopped()])
    last = list(JournalReader(tmp_path).frames())[-1].events
    assert [type(event) for event in last] == [JournalDropped, Keyframe, EngineStopped]
    assert last[0] == JournalDropped(last[0].t, 2, 2, "[Errno 28] No space left on device")  # type: ignore[union-attr]


def test_generation_goes_on_over_a_disk_that_is_full_at_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nanolens.telemetry.journal.FIRST_RETRY_NS", 0)
    undisturbed = busy_engine()
    disk = Disk(monkeypatch)
    give_way, writes = disk.__call__, [0]

    def at_times(fd: int, data: bytes) -> int:
        writes[0] += 1
        disk.room = 5 if writes[0] % 9 == 0 else 0 if writes[0] % 9 in (1, 2) else 1 << 40
        return give_way(fd, data)

    monkeypatch.setattr(os, "write", at_times)
    engine = busy_engine(tmp_path)
    assert {k: v.outputs[0].token_ids for k, v in engine.outputs.items()} == {
        k: v.outputs[0].token_ids for k, v in undisturbed.outputs.items()
    }
    engine.core.close()
    audit = Audit()
    for frame in JournalReader(tmp_path).frames():
        audit.apply_all(frame.events)
    assert engine.core.recorder.totals.counts["dropped_events"] > 0
    assert len(warnings(caplog)) == 1


def test_a_real_file_size_limit_is_survived(tmp_path: Path) -> None:
    child = f"""
import resource
from pathlib import Path
from nanolens.telemetry.events import EngineStarted, Mark
from nanolens.telemetry.journal import JournalWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
writer = JournalWriter({str(tmp_path)!r}, "run")
writer.append([EngineStarted(0, "run", 0, 1, "0", "fake", {{}}, 8, 4, 100, 64)])
for i in range(2000):
    writer.append([Mark(i, "x", "child")])
writer.close()
print(writer.dropped_events)
"""
    run = subprocess.run([sys.executable, "-P", "-c", child], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    kept, lost = times(tmp_path), int(run.stdout)
    assert kept == list(range(len(kept)))
    assert 0 < lost == 2000 - len(kept)
    assert run.stderr.count("File too large") == 1
