"""Breakpoints over batches of events: what is hit, how often, and what can't be set."""

from __future__ import annotations

from typing import Any

import pytest

from fake_engine import FakeEngine
from nanolens.engine.breakpoints import Breakpoints, Hit
from nanolens.errors import InvalidRequest
from nanolens.telemetry.events import (
    AnyEvent,
    BlocksAllocated,
    BreakpointHit,
    EngineContinued,
    EngineError,
    EnginePaused,
    RequestArrived,
    SequencePreempted,
    StatusChanged,
    StepPlanned,
)


def preempted(seq: int) -> AnyEvent:
    return SequencePreempted(1, 2, seq, 9, "no_blocks", "recompute", 3, 40)


def ended(seq: int) -> AnyEvent:
    return StatusChanged(1, 2, seq, "RUNNING", "FINISHED", "stop")


def planned(*seqs: int, decodes: int = 8) -> AnyEvent:
    return StepPlanned(1, 2, "mixed", [(seq, 0, 4) for seq in seqs], decodes, [], 0, 10, 5)


def test_numbers_start_at_one_and_are_never_given_twice() -> None:
    breakpoints = Breakpoints()
    assert not breakpoints and breakpoints.listed == {}
    assert [breakpoints.add("on=preempted"), breakpoints.add("seq=17", "sequence")] == [1, 2]
    assert breakpoints and breakpoints.listed == {1: "on=sequence.preempted", 2: "seq=17 (sequence)"}
    assert breakpoints.remove(2) and not breakpoints.remove(2) and not breakpoints.remove(7)
    assert breakpoints.add("on=mark") == 3
    assert breakpoints.remove(1) and breakpoints.remove(3) and not breakpoints


def test_the_engine_is_hit_once_a_batch_by_the_first_event_that_met_the_predicate() -> None:
    breakpoints = Breakpoints()
    breakpoints.add("on=preempted")
    assert breakpoints.check([ended(1), preempted(4), preempted(5)]) == [
        Hit(1, "on=sequence.preempted", "engine", "sequence.preempted", 4)
    ]
    assert [hit.seq for hit in breakpoints.check([preempted(5)])] == [5]
    assert breakpoints.check([ended(4)]) == breakpoints.check([]) == []


def test_each_sequence_is_hit_once_a_batch() -> None:
    breakpoints = Breakpoints()
    breakpoints.add("on=preempted", "sequence")
    hits = breakpoints.check([preempted(4), preempted(5), preempted(4)])
    assert [(hit.number, hit.action, hit.seq) for hit in hits] == [(1, "sequence", 4), (1, "sequence", 5)]


def test_every_sequence_that_met_the_predicate_is_hit_and_no_other() -> None:
    breakpoints = Breakpoints()
    breakpoints.add("on=step.planned decodes>=8", "sequence")
    breakpoints.add("on=step.planned seq>4", "sequence")
    hits = breakpoints.check([planned(4, 5)])
    assert [(hit.number, hit.seq) for hit in hits] == [(1, 4), (1, 5), (2, 5)]
    assert breakpoints.check([planned()]) == []  # names none that could pause


def test_the_engines_hit_names_a_sequence_only_where_there_is_one() -> None:
    breakpoints = Breakpoints()
    breakpoints.add("on=step.planned")
    breakpoints.add("on=step.planned seq=5")
    breakpoints.add("on=engine.error")
    hits = breakpoints.check([planned(4, 5), EngineError(1, 2, "boom")])
    assert [(hit.number, hit.seq) for hit in hits] == [(1, -1), (2, 5), (3, -1)]


def test_several_breakpoints_are_hit_in_the_order_of_the_events() -> None:
    breakpoints = Breakpoints()
    breakpoints.add("on=preempted")
    breakpoints.add("free<10")
    breakpoints.add("seq=4")
    hits = breakpoints.check([BlocksAllocated(1, 2, 4, [], [1], [], 9), preempted(5)])
    assert [(hit.number, hit.event) for hit in hits] == [
        (2, "blocks.allocated"), (3, "blocks.allocated"), (1, "sequence.preempted")
    ]  # fmt: skip


def test_hits_and_pauses_of_the_engine_never_hit() -> None:
    breakpoints = Breakpoints()
    breakpoints.add("step>=0")
    own = [BreakpointHit(1, 2, 1, "step>=0", "mark", 4, "engine"), EnginePaused(1, 2, "x"), EngineContinued(1, 2, 0)]
    assert breakpoints.check(own) == []
    assert len(breakpoints.check([*own, planned()])) == 1


def test_a_removed_breakpoint_is_not_hit() -> None:
    breakpoints = Breakpoints()
    breakpoints.add("on=preempted")
    breakpoints.add("on=preempted")
    breakpoints.remove(1)
    assert [hit.number for hit in breakpoints.check([preempted(4)])] == [2]


def test_a_request_is_known_by_its_sequences_from_the_start_and_from_arrivals() -> None:
    live = {4: "abc"}
    breakpoints = Breakpoints(lambda: live)
    breakpoints.add("on=status reason=stop request=abc")
    breakpoints.add("on=status request=new", "sequence")
    arrived = RequestArrived(1, "new", [6, 7], 3, 4, 0, {})
    live.clear()  # ends in the very batch that is checked
    hits = breakpoints.check([ended(5), ended(4), arrived, ended(6)])
    assert [(hit.number, hit.seq) for hit in hits] == [(1, 4), (2, 6)]
    assert [hit.seq for hit in breakpoints.check([ended(7)])] == [7]


def test_an_engine_knows_the_requests_that_arrived_before_the_breakpoint() -> None:
    engine = FakeEngine()
    other, watched = engine.add([1, 2, 3], 4), engine.add([4, 5, 6], 6)
    engine.step()
    engine.add_breakpoint(f"on=status reason=length request={watched}")
    engine.run()
    assert engine.outputs.keys() == {other, watched}
    assert engine.engine_paused == "breakpoint 1"
    (hit,) = engine.of(BreakpointHit)
    assert (hit.event, hit.seq, hit.action) == ("sequence.status", 1, "engine")


@pytest.mark.parametrize(
    ("predicate", "action", "field", "said"),
    [
        ("on=preempted", "all", "action", "action='all': must be one of engine, sequence"),
        ("on=preempted", None, "action", "must be one of engine, sequence"),
        ("on=preempted", ["engine"], "action", "must be one of engine, sequence"),
        ("", "engine", "predicate", "is empty"),
        ("free<x", "engine", "predicate", "free is a number"),
        (
            "on=keyframe",
            "engine",
            "predicate",
            "no breakpoint is hit by breakpoint.hit, ",
        ),
        ("on=engine.error", "sequence", "predicate", "engine.error names no sequence to pause; use action engine"),
        ("finish_reason=stop", "sequence", "predicate", "request.finished names no sequence"),
    ],
)
def test_what_can_not_be_hit_is_refused_and_changes_nothing(predicate: Any, action: Any, field: str, said: str) -> None:
    breakpoints = Breakpoints()
    with pytest.raises(InvalidRequest) as caught:
        breakpoints.add(predicate, action)
    assert caught.value.field == field and said in str(caught.value)
    assert not breakpoints and breakpoints.add("on=mark") == 1
