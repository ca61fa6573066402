"""A journal in files as a source: live, ended, dead, growing while it is looked at, and what is no journal."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from journals import busy_engine, marks, started, writer_of
from made_views import keyframe
from nanolens.errors import InspectError
from nanolens.inspector.once import as_json
from nanolens.inspector.sequence_rows import sequence_rows
from nanolens.inspector.sources.discover import find_journals
from nanolens.inspector.sources.follow import silence
from nanolens.inspector.sources.journal_source import JournalSource
from nanolens.inspector.sources.opening import open_source
from nanolens.inspector.view import SourceStatus
from nanolens.telemetry.differences import keyframe_differences
from nanolens.telemetry.events import EngineStarted, JournalDropped, Keyframe
from nanolens.telemetry.frames import MAGIC, segment_path
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.predicate import parse

WORKS_UNTIL_KILLED = """
import sys, time
from nanolens.engine.llm import LLM
from nanolens.engine.sampling_params import SamplingParams
llm = LLM("dummy:llama-tiny", device="cpu", num_blocks=24, block_size=4, max_num_seqs=4, journal=sys.argv[1])
for at in range(6):
    llm.engine.add_request([at + 1] * 9, SamplingParams(max_tokens=600, ignore_eos=True))
for at in range(40):
    llm.engine.step()
print("working", flush=True)
while True:
    time.sleep(0.01)  # its requests must not end before it is killed
    llm.engine.step()
"""


def opened(path: Path, run: str | None = None) -> JournalSource:
    source = JournalSource(path, run)
    source.start()
    return source


def differences(given: Keyframe, expected: Keyframe) -> list[str]:
    """Those of the state; the engine itself keeps no totals."""
    return [each for each in keyframe_differences(given, expected) if not each.startswith("total ")]


def until(what: Callable[[], bool], meaning: str) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline, f"not {meaning} in time"
        time.sleep(0.02)


def test_the_end_of_a_journal_is_the_engines_own_last_state(tmp_path: Path) -> None:
    engine = busy_engine(tmp_path)
    source = opened(tmp_path)
    view = source.view()
    assert differences(view.keyframe, engine.snapshot()) == []
    assert view.steps[-1].planned.step == view.last.step == view.keyframe.step
    assert view.is_live and source.control is None
    source.close()
    engine.close()


def test_a_journal_that_ended_in_order_says_so_and_shows_its_end(tmp_path: Path) -> None:
    busy_engine(tmp_path).close()
    source = opened(tmp_path)
    view = source.view()
    assert view.status.state == "ended" and view.stopped is not None
    assert view.first.step == 0
    source.close()


def test_it_grows_while_it_is_looked_at(tmp_path: Path) -> None:
    engine = busy_engine(tmp_path)
    source = opened(tmp_path)
    step = source.view().keyframe.step
    request = engine.add([1, 2, 3], max_tokens=5)
    engine.run()
    until(lambda: source.view().keyframe.step > step, "grown")
    until(lambda: not differences(source.view().keyframe, engine.snapshot()), "up to date")
    assert request is not None
    later = source.view(source.at_step(step + 1))
    assert later.keyframe.step == step + 1 and not later.is_live
    source.close()
    engine.close()


def test_a_killed_engine_is_dead_and_what_it_ran_is_shown(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", WORKS_UNTIL_KILLED, str(tmp_path / "j")], stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        assert child.stdout is not None and child.stdout.readline() == b"working\n"
        source = opened(tmp_path / "j")
        assert source.view().status.state == "live"
        os.kill(child.pid, signal.SIGSTOP)
        until(lambda: source.status.state == "stale", "stopped")
        assert "SIGSTOP" in source.status.message
        os.kill(child.pid, signal.SIGCONT)
        until(lambda: source.status.state == "live", "going on")
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    until(lambda: source.status.state == "dead", "dead")
    view = source.view()
    assert view.keyframe.step >= 38 and view.keyframe.sequences and view.stopped is None
    source.close()
    again = opened(tmp_path / "j")
    until(lambda: again.status.state == "dead", "dead for who comes later")
    assert again.view().keyframe == view.keyframe
    again.close()


def test_a_torn_end_is_cut_off(tmp_path: Path) -> None:
    engine = busy_engine(tmp_path)
    last = segment_path(tmp_path, "run", 1)
    expected = engine.snapshot()
    with last.open("ab") as file:
        file.write(b"\xff\x00\x00\x00half")
    source = opened(tmp_path)
    assert differences(source.view().keyframe, expected) == []
    source.close()
    engine.close()


def test_the_newest_run_is_shown_unless_another_is_named(tmp_path: Path) -> None:
    writer_of(tmp_path, "one").close()
    time.sleep(0.01)
    writer_of(tmp_path, "two").close()
    for run, expected in ((None, "two"), ("one", "one")):
        source = opened(tmp_path, run)
        assert source.run == expected and source.view().keyframe.started.run_id == expected
        assert expected in source.title
        source.close()


def test_a_run_is_named_by_its_last_part_too(tmp_path: Path) -> None:
    for run in ("20260101T000000-aaa111", "20260101T000000-bbb222"):
        writer_of(tmp_path, run).close()
        time.sleep(0.01)
    for name in ("aaa111", "20260101T000000-aaa111"):
        source = open_source(str(tmp_path), run=name)
        assert isinstance(source, JournalSource) and source.run == "20260101T000000-aaa111"
        source.close()
    with pytest.raises(InspectError, match="its runs are"):
        open_source(str(tmp_path), run="111")


def test_after_a_gap_the_state_holds_again_from_the_next_keyframe(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    source = opened(tmp_path)
    before = source.view()
    writer.append([JournalDropped(1, 1, 1, "full")])
    writer.append(marks(3))
    until(lambda: len(source.view().events) > len(before.events), "read on")
    assert source.view().keyframe == before.keyframe  # the last one that was known
    source.close()
    writer.close()


def test_ages_go_on_while_an_engine_that_lives_is_silent(tmp_path: Path) -> None:
    engine = busy_engine(tmp_path)
    engine.add([1, 2, 3])
    engine.step()
    source = opened(tmp_path)
    first = source.view()
    until(lambda: source.view().now_t >= first.now_t + 50_000_000, "later")
    later = source.view()
    assert later.keyframe == first.keyframe and later.moment == first.moment
    wall = time.time_ns() - later.keyframe.started.wall_offset_ns
    assert later.keyframe.t < later.now_t <= wall
    ages, before = ({row.seq: row.age_ns for row in sequence_rows(view)} for view in (later, first))
    assert {ages[seq] - before[seq] for seq in before} == {later.now_t - first.now_t}
    told = as_json(later, "")
    assert told["uptime_s"] == (later.now_t - later.keyframe.started.t) / 1_000_000_000
    assert told["t"] == (later.now_t + later.keyframe.started.wall_offset_ns) / 1_000_000_000
    seq = later.keyframe.sequences[0].seq
    story = source.story(seq, later.moment, later.now_t)
    assert story is not None and story.stays[-1].end_t == later.now_t
    assert sum(story.parts.values()) == later.now_t - later.keyframe.sequences[0].arrived_t
    past = source.view(later.moment)
    assert past.now_t == past.keyframe.t
    source.close()
    engine.close()


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (SourceStatus("stale", 1_000.0), 7_000_000_000),  # as of its last sign
        (SourceStatus("stale", 900.0), 0),
        (SourceStatus("dead", 1_000.0), 0),
        (SourceStatus("ended", 1_000.0), 0),
    ],
)
def test_nothing_is_known_of_an_engine_that_can_not_be_heard(status: SourceStatus, expected: int) -> None:
    state = keyframe([])
    started = msgspec.structs.replace(state.started, wall_offset_ns=992_000_000_000)
    assert silence(msgspec.structs.replace(state, t=1_000_000_000, started=started), status) == expected


def test_events_are_found_and_told_as_the_journal_has_them(tmp_path: Path) -> None:
    busy_engine(tmp_path).close()
    source = opened(tmp_path)
    end = source.view().moment
    preempted = source.find(end, parse("on=preempted"), forward=False)
    assert preempted is not None
    story = source.story(preempted.event.seq, preempted.moment)
    assert story is not None and any(row.moment == preempted.moment for row in story.events)
    source.close()


def test_a_journal_that_holds_no_event_yet_says_so(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, "run")
    writer.append([EngineStarted(1, "run", 0, os.getpid(), "0", "fake", {}, 8, 4, 100, 64)])
    source = opened(tmp_path)
    assert source.view().keyframe.step == 0
    source.close()
    writer.close()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"no journal at all, of something else", "not a nanolens journal"),
        (MAGIC + b"\xff\x00" + bytes(64), "journal version 255; this nanolens reads up to"),
        (MAGIC[:4], "ends within its header"),
    ],
)
def test_what_can_not_be_read_is_said_in_words(tmp_path: Path, data: bytes, words: str) -> None:
    segment_path(tmp_path, "run", 1).write_bytes(data)
    with pytest.raises(InspectError, match=words):
        opened(tmp_path).view()


def test_where_no_journal_is_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(InspectError, match="holds no journal"):
        JournalSource(tmp_path)
    with pytest.raises(InspectError, match="no such file or directory"):
        JournalSource(tmp_path / "missing")


def test_as_the_oldest_segments_are_deleted_its_beginning_moves_on(tmp_path: Path) -> None:
    engine = busy_engine(tmp_path, segment_bytes=6000)
    source = opened(tmp_path)
    oldest = source.at_time(0)
    first = source.view(oldest).first
    assert source.kept(oldest).oldest == oldest and source.kept(oldest).first == first
    assert segment_path(tmp_path, "run", 5).exists()
    for number in (1, 2, 3):
        segment_path(tmp_path, "run", number).unlink()

    kept = source.kept(oldest)
    assert kept.oldest.segment == 4 and oldest < kept.oldest and kept.first > first
    with pytest.raises(InspectError, match="segment 1 of run 'run' is no longer there"):
        source.view(oldest)
    for view in (source.view(), source.view(kept.oldest)):
        assert (view.first, view.last) == (kept.first, kept.last)
    source.close()
    engine.close()


def test_a_copy_is_not_live_while_its_engine_writes_elsewhere(tmp_path: Path) -> None:
    own, copy = tmp_path / "own", tmp_path / "copy"
    writer = JournalWriter(own, "run")
    now = time.monotonic_ns()
    told: dict[str, str | int | float | bool | None] = {"journal": str(own)}
    writer.append([msgspec.structs.replace(started(), t=now, pid=os.getpid(), config=told)])
    writer.append(marks(1, now))
    shutil.copytree(own, copy)
    link = tmp_path / "link"
    link.symlink_to(own)
    for path, state in ((own, "live"), (link, "live"), (copy, "stale"), (next(copy.iterdir()), "stale")):
        source = opened(path)
        source.view()
        assert source.status.state == state, path
        assert ("a copy; its engine still writes to" in source.status.message) is (state == "stale")
        source.close()
    found = {Path(each.path): each.state for each in find_journals(tmp_path)}
    assert (found[own], found[copy]) == ("live", "dead")
    writer.close()
