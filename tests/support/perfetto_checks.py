"""What a Perfetto trace of a run has to hold, worked out from the run's events alone, and the comparison with one."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nanolens.inspector.perfetto_trace import PerfettoTrace
from nanolens.telemetry.events import (
    AnyEvent,
    BlockCopied,
    BlocksAllocated,
    BlocksFreed,
    BlocksSwapped,
    EngineStarted,
    PrefixMatched,
    PriorityChanged,
    RequestArrived,
    RequestFinished,
    SequencePreempted,
    SequenceResumed,
    StatusChanged,
    StepFinished,
    StepPlanned,
    SwapFinished,
    WaitReasonChanged,
)
from trace_processor import TraceProcessor

FINAL = ("FINISHED", "ERROR")
STATES = ("WAITING", "RUNNING", "PAUSED")
INSTANTS = {
    BlocksAllocated: "blocks allocated", BlocksFreed: "blocks freed", PrefixMatched: "prefix matched",
    BlockCopied: "block copied", SequenceResumed: "resumed", PriorityChanged: "priority",
    SequencePreempted: "preempted",
}  # fmt: skip
ON_TRACKS = "select t.name, s.name, s.ts, s.dur from slice s join track t on s.track_id = t.id"
COUNTERS = "select t.name, c.ts, c.value from counter c join counter_track t on c.track_id = t.id order by c.id"
ARROWS = """
    select a.name, x.name, b.name, y.name, x.ts, y.ts from flow
    join slice x on x.id = flow.slice_out join track a on a.id = x.track_id
    join slice y on y.id = flow.slice_in join track b on b.id = y.track_id
"""
Span = tuple[str, str, int, int]  # track, name, begin, nanoseconds


def write_trace(events: Iterable[AnyEvent], path: Path) -> PerfettoTrace:
    """The trace of events, in a file."""
    with path.open("wb") as out:
        trace = PerfettoTrace(out)
        for event in events:
            trace.apply(event)
    return trace


def states(events: Sequence[AnyEvent]) -> list[Span]:
    """Every time in a state, and every final state as an instant."""
    found: list[Span] = []
    since: dict[int, tuple[str, int]] = {}
    for e in events:
        if isinstance(e, StatusChanged):
            if e.old:
                name, t = since.pop(e.seq)
                assert name == e.old
                found.append((f"seq {e.seq}", name, t, e.t - t))
            if e.new in FINAL:
                found.append((f"seq {e.seq}", e.new, e.t, 0))
            else:
                since[e.seq] = (e.new, e.t)
    return sorted(found)


def waits(events: Sequence[AnyEvent]) -> list[Span]:
    """Every time in which a sequence waited for one reason."""
    found: list[Span] = []
    since: dict[int, tuple[str, int]] = {}
    for e in events:
        if isinstance(e, StatusChanged | WaitReasonChanged):
            if e.seq in since:
                name, t = since.pop(e.seq)
                found.append((f"seq {e.seq}", name, t, e.t - t))
            if isinstance(e, WaitReasonChanged) and e.reason:
                since[e.seq] = (e.reason, e.t)
    return sorted(found)


def steps(events: Sequence[AnyEvent]) -> list[Span]:
    """Every step that was read."""
    read = {e.step: e.t for e in events if isinstance(e, StepFinished)}
    planned = [e for e in events if isinstance(e, StepPlanned) and e.step in read]
    return sorted(("Steps", e.kind, e.t, read[e.step] - e.t) for e in planned)


def moves(events: Sequence[AnyEvent]) -> list[Span]:
    """Every move of blocks."""
    done = {e.move: e.t for e in events if isinstance(e, SwapFinished)}
    begun = [e for e in events if isinstance(e, BlocksSwapped) and e.move]
    return sorted(("Moves", f"swap {e.kind}", e.t, done[e.move] - e.t) for e in begun)


def requests(events: Sequence[AnyEvent]) -> list[Span]:
    """Every request from arrival to end."""
    arrived = {e.request: e.t for e in events if isinstance(e, RequestArrived)}
    ended = [e for e in events if isinstance(e, RequestFinished)]
    return sorted((e.request, "request", arrived[e.request], e.t - arrived[e.request]) for e in ended)


def arrows(events: Sequence[AnyEvent]) -> list[tuple[Any, ...]]:
    """Every preemption for another's sake."""
    preempted = [e for e in events if isinstance(e, SequencePreempted) and e.by != e.seq]
    return sorted((f"seq {e.seq}", "preempted", f"seq {e.by}", "preempts", e.t, e.t) for e in preempted)


def free_blocks(events: Sequence[AnyEvent]) -> list[tuple[int, float]]:
    """(time, free blocks) at each change."""
    found: list[tuple[int, float]] = []
    for e in events:
        value = e.num_blocks if isinstance(e, EngineStarted) else getattr(e, "free", None)
        if value is not None and (not found or found[-1][1] != value):
            found.append((e.t, value))
    return found


def in_state(events: Sequence[AnyEvent], status: str) -> list[tuple[int, float]]:
    """(time, sequences in a status) at each change."""
    found, members = [(0, 0.0)], set[int]()
    for e in events:
        if isinstance(e, StatusChanged):
            (members.add if e.new == status else members.discard)(e.seq)
            if len(members) != found[-1][1]:
                found.append((e.t, float(len(members))))
    return found


def area(values: Sequence[tuple[int, float]]) -> float:
    """The integral of a rate over seconds, until its last value, which is 0."""
    assert not values or values[-1][1] == 0
    pairs = itertools.pairwise(values)
    return sum(value * (until - t) for (t, value), (until, _) in pairs) / 1e9


def check_trace(node: str, events: Sequence[AnyEvent], folder: Path) -> TraceProcessor:
    """Load the trace of a whole run in which all ended, and compare it with the events; returns the open processor."""
    trace = write_trace(events, folder / "trace.pftrace")
    processor = TraceProcessor(node, folder / "trace.pftrace", folder)
    try:
        compare(processor, events)
        writer = trace.writer
        assert writer is not None
        (counts,) = processor.rows("select (select count(*) from slice), (select count(*) from counter)")
        assert counts == (writer.slices + writer.instants, writer.values)
        assert writer.flows == len(arrows(events))
    except BaseException:
        processor.close()
        raise
    return processor


def compare(processor: TraceProcessor, events: Sequence[AnyEvent]) -> None:
    """Slices, arrows and counters, each at its time."""
    assert processor.errors() == []
    slices: list[Span] = processor.rows(ON_TRACKS)
    on = Counter((name, track.split(" ")[0]) for track, name, _, _ in slices)
    assert all(dur >= 0 for *_, dur in slices)
    assert sorted(s for s in slices if s[1] in (*STATES, *FINAL)) == states(events)
    reasons = {e.reason for e in events if isinstance(e, WaitReasonChanged)}
    assert sorted(s for s in slices if s[0].startswith("seq ") and s[1] in reasons) == waits(events)
    failed = sum(isinstance(e, StepPlanned) for e in events) - len(steps(events))
    assert sum(s[0] == "Steps" for s in slices) == len(steps(events)) + failed
    assert not Counter(steps(events)) - Counter(s for s in slices if s[0] == "Steps")
    assert sorted(s for s in slices if s[0] == "Moves") == moves(events)
    assert sorted(s for s in slices if s[1] == "request") == requests(events)
    for kind, name in INSTANTS.items():
        assert on[name, "seq"] == sum(isinstance(e, kind) for e in events), name
    assert on["prefill", "seq"] == on["RUNNING", "seq"]
    assert sorted(processor.rows(ARROWS)) == arrows(events)
    _compare_phases(processor)
    _compare_counters(processor, events)


def _compare_phases(processor: TraceProcessor) -> None:
    """A RUNNING time is all prefill and decode; the first token comes where a prefill ends or later."""
    inner = "select sum(dur) from slice where parent_id = s.id"
    assert processor.rows(f"select s.id from slice s where s.name = 'RUNNING' and s.dur != ({inner})") == []
    depths = "select name, min(depth), max(depth) from slice where name in ('RUNNING', 'prefill', 'decode') group by 1"
    on_sequences = depths.replace("where", "where track_id in (select id from track where name glob 'seq *') and")
    assert set(processor.rows(on_sequences)) <= {("RUNNING", 0, 0), ("prefill", 1, 1), ("decode", 1, 1)}
    early = """
        select s.id from slice s where s.name = 'first token' and s.ts < (
            select min(p.ts + p.dur) from slice p where p.track_id = s.track_id and p.name = 'prefill')
    """
    assert processor.rows(early) == []


def _compare_counters(processor: TraceProcessor, events: Sequence[AnyEvent]) -> None:
    counters: dict[str, list[tuple[int, float]]] = {}
    for name, t, value in processor.rows(COUNTERS):
        counters.setdefault(name, []).append((t, value))
    started = next(e for e in events if isinstance(e, EngineStarted))
    assert counters["free blocks"] == free_blocks(events)
    for name in STATES:
        assert counters[name.lower()] == [(max(t, started.t), value) for t, value in in_state(events, name)], name
    read = [e for e in events if isinstance(e, StepFinished)]
    for name, total in (
        ("tokens/s", sum(e.num_tokens for e in read)),
        ("output tokens/s", sum(e.num_sampled - len(e.wasted) for e in read)),
    ):
        values = counters.get(name, [])
        assert [t for t, _ in values] == sorted(t for t, _ in values), name
        assert abs(area(values) - total) < 1e-6 * max(total, 1), name
