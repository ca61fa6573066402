"""A journal as a Perfetto trace, loaded by Perfetto's own trace processor: slices, arrows, counters, no complaint."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fake_engine import FakeEngine
from journals import busy_engine, started
from nanolens.telemetry.events import (
    AnyEvent,
    BlocksSwapped,
    CallbackFailed,
    EngineStopped,
    JournalDropped,
    Keyframe,
    Mark,
    RequestArrived,
    RequestFinished,
    RequestRefused,
    SequencePreempted,
    StatusChanged,
    StreamStalled,
)
from perfetto_checks import ARROWS, ON_TRACKS, check_trace, write_trace
from random_lives import Driver
from stories import find, story
from trace_processor import TraceProcessor

WAYS = [
    ("recompute", False, "fcfs"), ("swap", True, "priority"), ("auto", False, "sjf"), ("recompute", True, "priority"),
]  # fmt: skip


@pytest.fixture
def load(require: Callable[[str], str], tmp_path: Path) -> Callable[[list[AnyEvent]], TraceProcessor]:
    """`load(events)` gives a processor that has their trace."""
    node = require("node")

    def write_and_load(events: list[AnyEvent]) -> TraceProcessor:
        write_trace(events, tmp_path / "trace.pftrace")
        return TraceProcessor(node, tmp_path / "trace.pftrace", tmp_path)

    return write_and_load


Load = Callable[[list[AnyEvent]], TraceProcessor]


def args_of(processor: TraceProcessor, where: str) -> dict[str, Any]:
    """The arguments of the only slice for which a condition holds."""
    sql = f"select s.id, a.key, a.display_value from slice s join args a on a.arg_set_id = s.arg_set_id where {where}"
    rows = processor.rows(sql)
    assert len({row[0] for row in rows}) == 1, rows
    return {key.removeprefix("debug."): value for _, key, value in rows}


def test_a_story_by_hand(require: Callable[[str], str], tmp_path: Path) -> None:
    with check_trace(require("node"), story(), tmp_path) as processor:
        of_first = [s[1:] for s in processor.rows(ON_TRACKS + " where t.name = 'seq 0' and s.dur > 0 order by s.id")]
        assert of_first == [
            ("WAITING", 11, 89), ("RUNNING", 100, 205), ("prefill", 100, 10), ("decode", 110, 195),
            ("PAUSED", 305, 226), ("WAITING", 531, 169), ("swap_in", 602, 98), ("RUNNING", 700, 211),
            ("prefill", 700, 10), ("decode", 710, 201), ("PAUSED", 911, 9),
        ]  # fmt: skip
        assert processor.rows(ON_TRACKS + " where s.name = 'paused'") == [
            ("Engine", "paused", 452, 8), ("Engine", "paused", 502, 18),
        ]  # fmt: skip
        firsts = processor.rows(ON_TRACKS + " where s.name = 'first token' order by s.ts")
        assert [(track, t) for track, _, t, _ in firsts] == [("seq 0", 110), ("seq 1", 210)]
        assert processor.rows(ON_TRACKS + " where t.name = 'Device' and s.ts < 300") == [
            ("Device", "step", 109, 1), ("Device", "step", 209, 1),
        ]  # fmt: skip


def test_a_slice_carries_what_its_event_says(load: Load) -> None:
    with load(story()) as processor:
        step = args_of(processor, "s.name = 'mixed' and s.ts = 204")
        assert (step["step"], step["decodes"], step["prefill tokens"], step["chunks"]) == ("2", "1", "1", "seq 1 5+1")
        assert (step["device_ns"], step["sampled"], step["free blocks"]) == ("1", "2", "5")
        preempted = args_of(processor, "s.name = 'preempted'")
        assert (preempted["by"], preempted["cause"], preempted["mode"]) == ("seq 0", "no_blocks", "swap")
        move = args_of(processor, "s.name = 'swap out' and s.ts = 802")
        assert (move["seq"], move["blocks"], move["error"]) == ("1", "2", "OSError: no space left")
        taken = args_of(processor, "s.name = 'blocks allocated' and s.ts = 903")
        assert (taken["new"], taken["new blocks"], taken["cached blocks"], taken["free"]) == ("2", "7 1", "0", "2")
        request = args_of(processor, "s.name = 'request'")
        assert (request["prompt tokens"], request["finish_reason"], request["output tokens"]) == ("6", "abort", "12")


def test_an_arrow_leads_from_the_victim_to_the_preemptor(load: Load) -> None:
    with load(story()) as processor:
        assert processor.rows(ARROWS) == [("seq 1", "preempted", "seq 0", "preempts", 800, 800)]
        assert args_of(processor, "s.name = 'preempts'")["request"] == "r0"


def test_tracks_stand_under_their_request_and_requests_under_the_process(load: Load) -> None:
    with load(story()) as processor:
        tree = """
            select c.name, p.name from track c join track p on p.id = c.parent_id
            where c.name glob 'seq *' or c.name = 'r0'
        """
        assert sorted(processor.rows(tree)) == [("r0", "Requests"), ("seq 0", "r0"), ("seq 1", "r0")]
        assert processor.rows("select pid, name from process where pid > 0") == [(1, "nanolens 0: fake, run run")]


@pytest.mark.parametrize(("mode", "overlap", "policy"), WAYS)
def test_random_lives(require: Callable[[str], str], tmp_path: Path, mode: str, overlap: bool, policy: str) -> None:
    engine = FakeEngine(
        num_blocks=12, host_blocks=5, disk_blocks=12, max_num_seqs=4, max_prefill_chunk=5, overlap=overlap,
        policy=policy, preemption_mode=mode, paused_ttl_s=None, max_model_len=48,
    )  # fmt: skip
    driver = Driver(engine, random.Random(7))
    for _ in range(600):
        driver.rng.choice(driver.commands())()
    driver.drain()
    engine.core.close()
    assert any(isinstance(e, SequencePreempted) for e in engine.events)
    assert any(isinstance(e, BlocksSwapped) for e in engine.events)
    check_trace(require("node"), engine.events, tmp_path).close()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_run_with_siblings_and_many_preemptions(require: Callable[[str], str], tmp_path: Path, overlap: bool) -> None:
    engine = busy_engine(overlap=overlap, policy="priority")
    engine.core.close()
    assert sum(isinstance(e, SequencePreempted) and e.by != e.seq for e in engine.events) > 3
    check_trace(require("node"), engine.events, tmp_path).close()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_that_fails_is_marked(load: Load, overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap, max_prefill_chunk=4)
    for i in range(5):
        engine.add([i] * 9, max_tokens=6)
    broken = iter([None, None, None, RuntimeError("dead"), *[None] * 100])
    engine.runner.fail_launch = lambda plan: next(broken)
    for i in range(5):
        engine.add([7, i] * 3, max_tokens=5)
    engine.run()
    engine.core.close()
    with load(engine.events) as processor:
        assert processor.errors() == []
        failed = "select s.name from slice s join args a using (arg_set_id) where a.key = 'debug.failed'"
        assert len(processor.rows(failed)) == 1
        assert processor.rows("select name from slice where name = 'engine.error'") == [("engine.error",)]
        assert len(processor.rows("select name from slice where name = 'ERROR'")) > 0


def test_a_gap_cuts_what_is_going_on_and_a_keyframe_takes_it_up(load: Load) -> None:
    events = story()
    at = find(events, Keyframe)
    lost_from = find(events, StatusChanged, lambda e: e.new == "PAUSED")
    lossy = [*events[:lost_from], JournalDropped(304, 9, 2, "disk full"), *events[at:]]
    with load(lossy) as processor:
        assert processor.errors() == []
        rows = [s[1:] for s in processor.rows(ON_TRACKS + " where t.name = 'seq 0' and s.dur > 0 order by s.id")]
        assert rows[1:5] == [("RUNNING", 100, 204), ("prefill", 100, 10), ("decode", 110, 194), ("WAITING", 531, 169)]
        of_second = processor.rows(ON_TRACKS + " where t.name = 'seq 1' and s.name in ('RUNNING', 'decode')")
        assert of_second[:4] == [
            ("seq 1", "RUNNING", 200, 104), ("seq 1", "decode", 210, 94),
            ("seq 1", "RUNNING", 304, 497), ("seq 1", "decode", 540, 261),
        ]  # fmt: skip
        cut = "select s.name, s.ts from slice s join args a using (arg_set_id) where a.key = 'debug.cut' order by s.id"
        assert [name for name, _ in processor.rows(cut)].count("RUNNING") == 2
        assert processor.rows("select count(*) from slice where name = 'request'") == [(1,)]
        assert processor.rows("select count(*) from slice where dur < 0") == [(0,)]


def test_a_trace_that_begins_with_a_keyframe_knows_when_its_sequences_arrived(load: Load) -> None:
    events = story()
    with load(events[find(events, Keyframe) :]) as processor:
        assert processor.errors() == []
        assert processor.rows(ON_TRACKS + " where s.name = 'request'") == [("r0", "request", 10, 922)]
        assert processor.rows(ON_TRACKS + " where s.name in ('WAITING', 'RUNNING') order by s.ts")[:2] == [
            ("seq 1", "RUNNING", 200, 601), ("seq 0", "WAITING", 531, 169),
        ]  # fmt: skip


def test_what_lives_at_the_end_of_the_journal_stays_open(load: Load) -> None:
    events = story()
    with load(events[: find(events, StatusChanged, lambda e: e.new == "PAUSED")]) as processor:
        assert processor.errors() == []
        open_ones = processor.rows(ON_TRACKS + " where s.dur = -1 order by s.id")
        assert sorted(s[:2] for s in open_ones) == [
            ("Steps", "decode"), ("r0", "request"), ("seq 0", "RUNNING"), ("seq 0", "decode"), ("seq 1", "RUNNING"),
            ("seq 1", "decode"),
        ]  # fmt: skip


def arrival(request: str, seq: int, t: int) -> list[AnyEvent]:
    return [
        RequestArrived(t, request, [seq], 5, 9, 0, {}), StatusChanged(t, 0, seq, "", "WAITING", "arrived", request)
    ]  # fmt: skip


def ending(request: str, seq: int, t: int) -> list[AnyEvent]:
    return [
        StatusChanged(t, 0, seq, "WAITING", "FINISHED", "aborted"), RequestFinished(t, request, "abort", 5, 0, 0)
    ]  # fmt: skip


def test_a_slow_reader_shows_on_the_stream_of_its_request_after_its_end_too(load: Load) -> None:
    events = [
        started(), *arrival("a", 0, 10), StreamStalled(60, "a", 20, 3), *ending("a", 0, 70),
        StreamStalled(90, "a", 25, 1), StreamStalled(100, "unknown", 30, 1),
    ]  # fmt: skip
    with load(events) as processor:
        assert processor.errors() == []
        sql = """
            select p.name, t.name, s.ts, s.dur from slice s join track t on t.id = s.track_id
            join track p on p.id = t.parent_id where s.name = 'back-pressure' order by s.ts
        """
        assert processor.rows(sql) == [
            ("a", "stream", 40, 20), ("a", "stream", 65, 25), ("Requests", "unknown stream", 70, 30),
        ]  # fmt: skip


def test_an_id_that_is_used_again_has_a_track_of_its_own(load: Load) -> None:
    events = [started(), *arrival("a", 0, 10), *ending("a", 0, 20), *arrival("a", 1, 30), *ending("a", 1, 50)]
    with load(events) as processor:
        assert processor.errors() == []
        assert processor.rows("select ts, dur from slice where name = 'request' order by ts") == [(10, 10), (30, 20)]


def test_mishaps_stand_on_the_engines_track_in_words(load: Load) -> None:
    events = [
        started(), *arrival("a", 0, 10), Mark(20, "look 'here'", "test"), RequestRefused(30, "b", "n", "too many"),
        CallbackFailed(40, "a", "boom"), *ending("a", 0, 50), EngineStopped(60, "closed"),
    ]  # fmt: skip
    with load(events) as processor:
        rows = processor.rows(ON_TRACKS + " where t.name in ('Engine', 'a') and s.dur = 0 order by s.ts")
        assert [(track, name, t) for track, name, t, _ in rows] == [
            ("Engine", "mark", 20), ("Engine", "request.refused", 30), ("a", "callback failed", 40),
            ("Engine", "engine.stopped", 60),
        ]  # fmt: skip
        assert args_of(processor, "s.name = 'mark'")["what"] == "mark by test: look 'here'"


def test_events_out_of_order_by_a_little_do_not_break_the_nesting(load: Load) -> None:
    events = [started(), *arrival("a", 0, 30), Mark(20, "late", "test"), *ending("a", 0, 25)]
    with load(events) as processor:
        assert processor.errors() == []
        assert processor.rows("select name, ts, dur from slice where name in ('request', 'WAITING', 'mark')") == [
            ("request", 30, 0), ("WAITING", 30, 0), ("mark", 30, 0),
        ]  # fmt: skip
    assert events[-1].t == 25, "the events are as they were"


def test_the_clock_snapshot_gives_the_wall_clock(load: Load) -> None:
    first = started()
    first.t, first.wall_offset_ns = 1_000, 1_700_000_000_000_000_000
    with load([first, *arrival("a", 0, 1_010), *ending("a", 0, 1_020)]) as processor:
        assert processor.rows("select clock_value, ts from clock_snapshot where clock_name = 'REALTIME'") == [
            (1_700_000_000_000_001_000, 1_000)
        ]
