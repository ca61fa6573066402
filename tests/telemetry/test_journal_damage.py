"""What a reader makes of files that are torn, damaged, foreign or missing: the whole frames, or an error in words."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from zlib import crc32

import pytest

from journals import marks, times, writer_of
from nanolens.errors import JournalError
from nanolens.telemetry.events import JOURNAL_VERSION
from nanolens.telemetry.frames import parse_header
from nanolens.telemetry.reader import JournalReader


def one_segment(directory: Path, frames: int = 3) -> tuple[Path, bytes, list[int]]:
    """A journal of one segment, its bytes, and the offsets of its frames (engine.started, then one mark each)."""
    writer = writer_of(directory)
    for i in range(frames):
        writer.append(marks(1, i))
    writer.close()
    offsets = [frame.offset for frame in JournalReader(directory).frames()]
    return writer.path, writer.path.read_bytes(), offsets


def test_a_tail_torn_at_any_byte_is_cut_off(tmp_path: Path) -> None:
    path, data, offsets = one_segment(tmp_path)
    for end in range(offsets[-1], len(data)):
        path.write_bytes(data[:end])
        reader = JournalReader(tmp_path)
        assert [frame.events for frame in reader.frames()][1:] == [marks(1, 0), marks(1, 1)]
        assert reader.torn_bytes == end - offsets[-1]


def test_a_last_frame_with_a_wrong_checksum_is_cut_off(tmp_path: Path) -> None:
    path, data, offsets = one_segment(tmp_path)
    for at in range(offsets[-1] + 4, len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert times(tmp_path) == [0, 1]


def test_damage_in_the_middle_is_named_with_segment_and_offset(tmp_path: Path) -> None:
    path, data, offsets = one_segment(tmp_path)
    for at in range(offsets[2] + 4, offsets[3]):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(JournalError, match=rf"run-000001.journal, offset {offsets[2]}: damaged: the checksum"):
            times(tmp_path)


def test_frames_before_the_damage_are_given_first(tmp_path: Path) -> None:
    path, data, offsets = one_segment(tmp_path)
    path.write_bytes(data[: offsets[2] + 9] + b"\xff" + data[offsets[2] + 10 :])
    frames = JournalReader(tmp_path).frames()
    next(frames)
    assert next(frames).events == marks(1, 0)
    with pytest.raises(JournalError, match="damaged"):
        next(frames)


def test_a_length_that_runs_over_the_file_allocates_nothing(tmp_path: Path) -> None:
    path, data, offsets = one_segment(tmp_path)
    path.write_bytes(data[: offsets[2]] + struct.pack("<I", 0xFFFFFFFF) + data[offsets[2] + 4 :])
    assert times(tmp_path) == [0]


def test_a_segment_that_ends_early_before_another_one_is_damage(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, segment_bytes=150)
    for i in range(20):
        writer.append(marks(1, i))
    writer.close()
    second = tmp_path / "run-000002.journal"
    second.write_bytes(second.read_bytes()[:-3])
    with pytest.raises(JournalError, match=r"run-000002.journal, offset \d+: damaged: .* and segment 3 follows"):
        times(tmp_path)


def test_a_whole_frame_of_unknown_events_is_named(tmp_path: Path) -> None:
    path, data, offsets = one_segment(tmp_path)
    payload = b"\x91\x91\xa5later"
    path.write_bytes(data[: offsets[1]] + struct.pack("<II", len(payload), crc32(payload)) + payload)
    with pytest.raises(JournalError, match=rf"offset {offsets[1]}: the frame holds no events of this version"):
        times(tmp_path)


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run-000001.journal").write_bytes(b"#!/bin/sh\necho hello\n" * 10)
    with pytest.raises(JournalError, match="not a nanolens journal"):
        times(tmp_path)
    with pytest.raises(JournalError, match="not a nanolens journal"):
        JournalReader(tmp_path / "run-000001.journal")


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path, data, _ = one_segment(tmp_path)
    path.write_bytes(data[:8] + struct.pack("<H", JOURNAL_VERSION + 1) + data[10:])
    with pytest.raises(
        JournalError, match=f"journal version {JOURNAL_VERSION + 1}; .* up to version {JOURNAL_VERSION}"
    ):
        times(tmp_path)


def test_a_header_cut_at_any_byte_is_an_error_in_words(tmp_path: Path) -> None:
    path, data, offsets = one_segment(tmp_path)
    for end in range(offsets[0]):
        path.write_bytes(data[:end])
        with pytest.raises(JournalError, match="ends within its header"):
            times(tmp_path)
        with pytest.raises(JournalError, match="ends within its header"):
            JournalReader(path)


def test_a_damaged_header_is_an_error(tmp_path: Path) -> None:
    path, data, offsets = one_segment(tmp_path)
    path.write_bytes(data[: offsets[0] - 5] + b"X" + data[offsets[0] - 4 :])
    with pytest.raises(JournalError, match="segment header is damaged"):
        times(tmp_path)


def test_a_newest_segment_cut_within_its_header_ends_the_journal(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, segment_bytes=150)
    for i in range(20):
        writer.append(marks(1, i))
    writer.close()
    whole = times(tmp_path)
    for end in range(10):
        (tmp_path / "run-000099.journal").write_bytes(writer.path.read_bytes()[:end])
        assert times(tmp_path) == whole


def test_an_empty_directory_and_a_missing_path_say_so(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"holds no journal \(no file \*\.journal\)"):
        JournalReader(tmp_path)
    with pytest.raises(JournalError, match="no such file or directory"):
        JournalReader(tmp_path / "absent")


def test_files_that_are_not_named_as_segments_are_told_of(tmp_path: Path) -> None:
    for name in ("junk.journal", "other.journal", "notes.txt"):
        (tmp_path / name).write_text("hello")
    wanted = r"holds no journal \(no segment, RUN-000001\.journal by its name, but junk\.journal other\.journal\)$"
    with pytest.raises(JournalError, match=wanted):
        JournalReader(tmp_path)


def test_a_folder_of_journals_names_those_below_it(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        one_segment(tmp_path / name)
    with pytest.raises(JournalError, match="holds no journal") as caught:
        JournalReader(tmp_path)
    assert str(caught.value).endswith(f"({tmp_path / 'a'} {tmp_path / 'b'})")


def test_a_header_reads_from_its_own_bytes_only() -> None:
    assert parse_header(b"", "x") is None
    assert parse_header(b"nano", "x") is None


def test_a_pipe_is_no_segment(tmp_path: Path) -> None:
    path, _, _ = one_segment(tmp_path)
    pipe = path.with_name("run-000002.journal")
    os.mkfifo(pipe)
    assert times(tmp_path) == [0, 1, 2]
    with pytest.raises(JournalError, match="no regular file"):
        JournalReader(pipe)
    path.unlink()
    with pytest.raises(JournalError, match="holds no journal"):
        JournalReader(tmp_path)


def test_one_deleted_segment_is_told_as_one(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, segment_bytes=100)
    for i in range(30):
        writer.append(marks(1, i))
    writer.close()
    (tmp_path / "run-000003.journal").unlink()
    gaps = [frame.gap for frame in JournalReader(tmp_path).frames() if frame.gap]
    assert gaps == ["segment 3 was deleted before it was read"]
