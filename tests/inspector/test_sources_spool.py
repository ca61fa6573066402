"""The spool: what comes over the wire is a journal again, bounded, with its beginning put in place later."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from journals import empty_keyframe, marks, started
from nanolens.errors import InspectError
from nanolens.inspector.sources.http_stream import ServerLink
from nanolens.inspector.sources.session import Session
from nanolens.inspector.sources.spool import FIRST_LIVE, Spool, holds_state
from nanolens.telemetry.events import AnyEvent, EngineStarted, Keyframe, Mark
from nanolens.telemetry.frames import FrameEncoder
from nanolens.telemetry.reader import JournalReader, Position


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def frame(*events: AnyEvent) -> bytes:
    return bytes(FrameEncoder().encode(list(events)))


def told(spool: Spool) -> list[str]:
    """What a reader makes of it: K for a state, a mark's time, and - where something is missing."""
    found = []
    for each in JournalReader(spool.directory).frames():
        found += ["-"] if each.gap else []
        for event in each.events:
            found += ["K"] if isinstance(event, Keyframe | EngineStarted) else []
            found += [str(event.t)] if isinstance(event, Mark) else []
    return found


def mark(t: int) -> bytes:
    return frame(*marks(1, first=t))


KEYFRAME = frame(empty_keyframe())


def test_frames_that_hold_the_state_are_known_by_their_first_event() -> None:
    assert holds_state(KEYFRAME) and holds_state(frame(started()))
    assert not holds_state(mark(1))


def test_what_is_added_is_read_in_order() -> None:
    spool = Spool("run")
    spool.add([KEYFRAME, mark(1)])
    spool.add([mark(2)])
    assert told(spool) == ["K", "1", "2"]
    spool.close()


def test_segments_begin_with_the_state_and_stay_under_the_cap() -> None:
    spool = Spool("run", cap=6_000, segment_bytes=1_000)
    for t in range(400):
        spool.add([KEYFRAME] if t % 10 == 0 else [mark(t)])
    paths = sorted(spool.directory.iterdir())
    assert 2 <= len(paths) <= 8
    assert sum(path.stat().st_size for path in paths) < 6_000 + 2_000
    assert told(spool)[0] == "K" and told(spool)[-1] == "399" and "-" not in told(spool)
    spool.close()


def test_what_is_missing_shows_as_a_gap() -> None:
    spool = Spool("run")
    spool.add([KEYFRAME, mark(1)])
    spool.skip()
    spool.add([KEYFRAME, mark(9)])
    assert told(spool) == ["K", "1", "-", "K", "9"]
    spool.close()


def test_the_beginning_is_put_before_what_came_live() -> None:
    spool = Spool("run", segment_bytes=200)
    live = frame(empty_keyframe(step=5))
    spool.add([live, mark(10)])
    spool.add_earlier([frame(started()), mark(1), mark(2), KEYFRAME, mark(3), live, mark(10)])
    assert told(spool) == ["K", "1", "2", "K", "3", "K", "10"]
    assert sorted(spool.directory.glob("*"))[-1].stem.endswith(str(FIRST_LIVE))
    spool.add([mark(11)])
    assert told(spool)[-2:] == ["10", "11"]
    spool.close()


def test_a_beginning_that_does_not_reach_what_came_live_leaves_a_gap() -> None:
    spool = Spool("run")
    spool.add([frame(empty_keyframe(step=5)), mark(10)])
    spool.add_earlier([frame(started()), mark(1)])
    assert told(spool) == ["K", "1", "-", "K", "10"]
    spool.close()


def test_a_beginning_that_breaks_off_is_not_kept() -> None:
    def broken() -> object:
        yield frame(started())
        raise InspectError("gone")

    spool = Spool("run")
    spool.add([KEYFRAME])
    with pytest.raises(InspectError, match="gone"):
        spool.add_earlier(broken())  # type: ignore[arg-type]
    assert told(spool) == ["K"]
    assert [path.suffix for path in spool.directory.iterdir()] == [".journal"]
    spool.close()


def test_the_spool_of_a_killed_inspector_goes_with_the_next_one(own_temporary_folder: Path) -> None:
    left = own_temporary_folder / f"nano-inspect-{1 << 22}-abc"
    mine = own_temporary_folder / f"nano-inspect-{os.getpid()}-abc"
    other = own_temporary_folder / "nano-inspect-notes"
    for folder in (left, mine, other):
        folder.mkdir()
    Spool("run").close()
    assert not left.exists() and mine.exists() and other.exists()


def test_a_closed_spool_takes_no_more() -> None:
    spool = Spool("run")
    spool.close()
    spool.add([KEYFRAME])
    assert not spool.directory.exists()


def test_a_stream_that_begins_anew_at_a_state_that_is_here_goes_on_without_a_gap() -> None:
    session = Session("run", Position(1, 23))
    session.take([KEYFRAME, mark(1), mark(2)])
    session.rejoin(Position(3, 23))
    session.take([KEYFRAME, mark(1)])
    session.take([mark(2), mark(3)])
    assert told(session._spool) == ["K", "1", "2", "3"]
    assert session.position == Position(3, 23 + len(KEYFRAME) + 3 * len(mark(1)))
    session.close()


def test_a_stream_that_begins_anew_at_a_later_state_leaves_a_gap() -> None:
    session = Session("run", Position(1, 23))
    session.take([KEYFRAME, mark(1)])
    session.rejoin(Position(3, 23))
    session.take([frame(empty_keyframe(step=7)), mark(8)])
    assert told(session._spool) == ["K", "1", "-", "K", "8"]
    session.close()


def test_a_stream_that_goes_on_where_segments_are_gone_leaves_a_gap() -> None:
    session = Session("run", Position(1, 23))
    session.take([KEYFRAME, mark(1)])
    for _ in range(2):
        session.go_on()
        session.take([mark(2)])
    session.go_on()
    session.take([frame(empty_keyframe(step=7)), mark(8)])
    assert told(session._spool) == ["K", "1", "2", "2", "-", "K", "8"]
    session.close()


def test_a_session_of_an_empty_journal_shows_nothing() -> None:
    session, link = Session("run", Position(1, 23)), ServerLink("http://127.0.0.1:9")
    with pytest.raises(InspectError, match="holds nothing yet"):
        session.start(link)
    session.close()
    link.close()
