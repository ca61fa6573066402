"""What the journal of an engine killed with SIGKILL at a random moment still tells: all of its whole frames."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pytest

from nanolens.inspector.trace_cli import main as nano_trace
from nanolens.telemetry.differences import keyframe_differences
from nanolens.telemetry.events import Keyframe
from nanolens.telemetry.reader import JournalReader, Position
from nanolens.telemetry.state import EngineState

COUNT, SEED = 20, 7
PROGRAM = Path(__file__).parents[1] / "support" / "killed_engines.py"


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Journals of twenty engines, each killed at a moment of its own."""
    directory = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-P", str(PROGRAM), str(directory), str(COUNT), str(SEED)]
    done = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.stdout.splitlines() == [f"{index:02d} 9" for index in range(COUNT)], done.stderr
    return sorted(directory.iterdir())


def whole_frames(segment: Path) -> tuple[int, int]:
    """(whole frames, bytes after them) of a segment, read by the layout that telemetry/frames.py documents."""
    data = segment.read_bytes()
    at = 16 + struct.unpack_from("<H", data, 10)[0] + 4 if len(data) >= 16 else 20
    if len(data) < at:  # killed between the file's creation and its first write
        return 0, len(data)
    count = 0
    while at + 8 <= len(data):
        length, crc = struct.unpack_from("<II", data, at)
        payload = data[at + 8 : at + 8 + length]
        if len(payload) < length or crc32(payload) != crc:
            break
        at += 8 + length
        count += 1
    return count, len(data) - at


def state_from(reader: JournalReader, start: Position | None = None) -> EngineState:
    """The state at the journal's end for one that joined at `start`."""
    state = EngineState()
    for frame in reader.frames(start):
        assert not frame.gap
        state.apply_all(frame.events)
    return state


def keyframes(reader: JournalReader) -> list[Position]:
    """Where a reader can join with a keyframe."""
    return [Position(frame.segment, frame.offset) for frame in reader.frames() if isinstance(frame.events[0], Keyframe)]


def check(journal: Path) -> None:
    assert nano_trace(["check", str(journal)]) == 0


def test_every_whole_frame_reads_back(journals: list[Path]) -> None:
    for journal in journals:
        segments = sorted(journal.iterdir())
        counts = [whole_frames(segment) for segment in segments]
        assert all(rest == 0 for _, rest in counts[:-1])
        reader = JournalReader(journal)
        assert sum(1 for _ in reader.frames()) == sum(count for count, _ in counts)
        assert reader.torn_bytes == counts[-1][1]
        assert reader.complete


def test_the_audit_finds_nothing_wrong(journals: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    for journal in journals:
        check(journal)
        assert "the engine still runs or died" in capsys.readouterr().out


def test_the_runs_were_worth_killing(journals: list[Path]) -> None:
    totals = [state_from(JournalReader(journal)).totals.counts for journal in journals]
    for name in ("preemptions", "prefix_hit_tokens", "requests_finished_abort", "requests_finished_length"):
        assert sum(count[name] for count in totals) > 0, name
    assert len({len(list(journal.iterdir())) for journal in journals}) > 3  # killed in different segments


def test_who_joins_late_reaches_the_state_of_who_read_from_the_start(journals: list[Path]) -> None:
    rng, joined = random.Random(SEED), 0
    for journal in journals:
        reader = JournalReader(journal)
        expected = state_from(reader).to_keyframe()
        found = keyframes(reader)
        for start in {reader.last_keyframe(), *rng.sample(found, min(3, len(found)))}:
            late = state_from(reader, start).to_keyframe()
            assert keyframe_differences(late, expected) == []
            joined += 1
    assert joined > COUNT


def test_a_tail_that_never_reached_the_disk_is_cut_off(journals: list[Path], tmp_path: Path) -> None:
    rng = random.Random(SEED)
    for journal in journals:
        copy = Path(shutil.copytree(journal, tmp_path / journal.name))
        last = max(copy.iterdir())
        lost = rng.randrange(1, max(2, min(400, last.stat().st_size - 60)))
        os.truncate(last, max(0, last.stat().st_size - lost))
        count = sum(whole_frames(segment)[0] for segment in copy.iterdir())
        assert sum(1 for _ in JournalReader(copy).frames()) == count
        check(copy)
