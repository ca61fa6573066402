"""Breakpoints in a running engine: what pauses, when, what is on record of a hit, and what going on does."""

from __future__ import annotations

from typing import Any

import pytest

from fake_engine import FakeEngine, solo
from nanolens.engine.outputs import Delta
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import InvalidRequest
from nanolens.telemetry.events import (
    BlocksAllocated,
    BreakpointHit,
    EnginePaused,
    SequencePreempted,
    StatusChanged,
    StepPlanned,
)
from real_engine import greedy, prompt_of, recorded, tiny_llm

OVERLAP = pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlap"])


def prompt(number: int) -> list[int]:
    return list(range(20 * number, 20 * number + 6))


def steps(engine: FakeEngine, count: int) -> None:
    for _ in range(count):
        engine.step()


def hits(engine: FakeEngine) -> list[tuple[int, str, str, int, str]]:
    return [
        (event.breakpoint, event.predicate, event.event, event.seq, event.action) for event in engine.of(BreakpointHit)
    ]


def statuses(engine: FakeEngine) -> list[str]:
    return [seq.status.value for seq in engine.core.book.live_sequences if seq.status]


def finish(engine: FakeEngine, names: list[str], count: int = 8) -> None:
    """Without breakpoints, on to the end: nobody has noticed, and nothing is left."""
    for number in engine.breakpoints:
        assert engine.remove_breakpoint(number)
    engine.continue_engine()
    engine.run()
    for name in names:
        if name in engine.core.requests:
            engine.resume(name)
    engine.run()
    for i, name in enumerate(names):
        assert engine.ids(name) == solo(prompt(i), count)
    engine.check_empty()


# The engine pauses


@OVERLAP
def test_on_preempted(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap, num_blocks=6)
    assert engine.add_breakpoint("on=preempted") == 1
    names = [engine.add(prompt(i)) for i in range(3)]
    engine.run()
    assert engine.engine_paused == "breakpoint 1" and not engine.has_work and engine.runner.in_flight == 0
    preempted = engine.of(SequencePreempted)
    assert hits(engine) == [(1, "on=sequence.preempted", "sequence.preempted", preempted[0].seq, "engine")]
    assert len(preempted) == 1
    assert preempted[0].step == engine.of(StepPlanned)[-1].step == engine.of(BreakpointHit)[0].step
    engine.continue_engine()
    engine.run()
    assert len(hits(engine)) == 2 and engine.engine_paused == "breakpoint 1", "it can be hit again"
    finish(engine, names)


@OVERLAP
def test_on_status_to_paused(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    engine.add_breakpoint("on=status to=PAUSED")
    names = [engine.add(prompt(0), on_stop="pause"), engine.add(prompt(1), 20)]
    engine.run()
    assert hits(engine) == [(1, "on=sequence.status to=PAUSED", "sequence.status", 0, "engine")]
    assert statuses(engine) == ["PAUSED", "RUNNING"] and engine.engine_paused == "breakpoint 1"
    engine.finish(names[0])
    engine.continue_engine()
    engine.run()
    assert engine.ids(names[0]) == solo(prompt(0), 8) and engine.ids(names[1]) == solo(prompt(1), 20)
    engine.check_empty()


def test_on_blocks_allocated_with_few_left() -> None:
    engine = FakeEngine(num_blocks=12)
    engine.add_breakpoint("on=blocks.allocated free<10")
    names = [engine.add(prompt(0), 4)]
    engine.run()
    few = [event for event in engine.of(BlocksAllocated) if event.free < 10]
    assert few and engine.events.index(engine.of(BreakpointHit)[0]) > engine.events.index(few[0])
    assert few[0].free == 9 and hits(engine)[0][1:4] == ("on=blocks.allocated free<10", "blocks.allocated", 0)
    finish(engine, names, 4)


def test_on_a_sequence() -> None:
    engine = FakeEngine()
    engine.add_breakpoint("seq=2")
    names = [engine.add(prompt(i)) for i in range(4)]
    engine.step()
    assert engine.engine_paused == "breakpoint 1"
    assert [hit[3] for hit in hits(engine)] == [2], "once a step, by the first event that names it"
    finish(engine, names)


def test_on_a_request_that_was_there_before() -> None:
    engine = FakeEngine()
    names = [engine.add(prompt(i)) for i in range(2)]
    steps(engine, 2)
    engine.add_breakpoint("request=req-1 on=status")
    engine.run()
    assert hits(engine) == [(1, "on=sequence.status request=req-1", "sequence.status", 1, "engine")]
    assert engine.of(StatusChanged)[-1].new == "FINISHED"
    finish(engine, names)


@OVERLAP
def test_the_step_of_the_hit_is_done_whole(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    names = [engine.add(prompt(i)) for i in range(2)]
    engine.step()
    engine.add_breakpoint("on=step.planned step=3")
    engine.run()
    assert [event.step for event in engine.of(StepPlanned)] == [1, 2, 3]
    assert [len(engine.seq(name).output_token_ids) for name in names] == [3, 3]
    finish(engine, names)


def test_the_hit_follows_its_event_and_the_pause_follows_the_hit() -> None:
    engine = FakeEngine()
    engine.add_breakpoint("on=step.planned step=2")
    names = [engine.add(prompt(0))]
    engine.run()
    engine.core.flush()
    kinds = [type(event) for event in engine.events]
    assert kinds[-2:] == [BreakpointHit, EnginePaused]
    assert engine.events[-1].cause == "breakpoint 1"
    finish(engine, names)


def test_several_breakpoints_are_hit_in_one_step_and_each_is_on_record() -> None:
    engine = FakeEngine()
    for predicate in ("on=step.planned", "on=status to=RUNNING", "seq=0", "on=preempted"):
        engine.add_breakpoint(predicate)
    names = [engine.add(prompt(0))]
    engine.step()
    assert sorted(hit[0] for hit in hits(engine)) == [1, 2, 3]
    causes = [event.cause for event in engine.of(EnginePaused)]
    assert causes[-1] == engine.engine_paused and set(causes) <= {f"breakpoint {number}" for number in (1, 2, 3)}
    finish(engine, names)


@OVERLAP
def test_a_hit_within_granted_steps_ends_them(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    names = [engine.add(prompt(0))]
    engine.pause_engine()
    engine.add_breakpoint("on=step.planned step=2")
    engine.continue_engine(4)
    engine.run()
    assert engine.engine_paused == "breakpoint 1" and len(engine.of(StepPlanned)) == 2
    engine.continue_engine(1)
    engine.run()
    assert engine.engine_paused == "steps" and len(engine.of(StepPlanned)) == 3
    finish(engine, names)


def test_a_hit_in_the_last_granted_step_says_so() -> None:
    engine = FakeEngine()
    names = [engine.add(prompt(0))]
    engine.pause_engine()
    engine.add_breakpoint("on=step.planned step=2")
    engine.continue_engine(2)
    engine.run()
    assert engine.engine_paused == "breakpoint 1"
    assert [event.cause for event in engine.of(EnginePaused)] == ["operator", "steps", "breakpoint 1"]
    finish(engine, names)


def test_commands_between_steps_are_watched_too() -> None:
    engine = FakeEngine()
    names = [engine.add(prompt(i)) for i in range(2)]
    steps(engine, 2)
    engine.add_breakpoint("on=sequence.priority priority>=5")
    engine.set_priority(names[0], 4)
    assert engine.engine_paused == ""
    engine.set_priority(names[1], 5)
    assert engine.engine_paused == "breakpoint 1" and hits(engine)[0][3] == 1
    finish(engine, names)


# One sequence pauses


@OVERLAP
def test_the_sequence_alone_pauses_and_the_others_run_on(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    names = [engine.add(prompt(i)) for i in range(3)]
    steps(engine, 2)
    engine.add_breakpoint("on=blocks.allocated seq=1", "sequence")
    engine.run()
    assert engine.engine_paused == "" and statuses(engine) == ["PAUSED"]
    assert hits(engine) == [(1, "on=blocks.allocated seq=1", "blocks.allocated", 1, "sequence")]
    paused = next(event for event in engine.of(StatusChanged) if event.new == "PAUSED")
    assert (paused.seq, paused.old, paused.reason) == (1, "RUNNING", "breakpoint")
    assert engine.ids(names[0]) == solo(prompt(0), 8) and engine.ids(names[2]) == solo(prompt(2), 8)
    engine.resume(names[1])
    engine.run()
    assert names[1] in engine.outputs or len(hits(engine)) == 2, "it can be hit again"
    finish(engine, names)


@OVERLAP
def test_each_of_several_sequences_pauses(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    engine.add_breakpoint("on=status to=RUNNING", "sequence")
    names = [engine.add(prompt(i)) for i in range(3)]
    engine.step()
    assert statuses(engine) == ["PAUSED"] * 3 and sorted(hit[3] for hit in hits(engine)) == [0, 1, 2]
    finish(engine, names)


def test_its_callers_hear_of_the_pause() -> None:
    engine, deltas, paused = FakeEngine(), [], []
    engine.add_breakpoint("on=step.planned step=3 seq>=0", "engine")
    assert engine.remove_breakpoint(1)
    engine.add_breakpoint("on=blocks.cached seq=0", "sequence")
    params = SamplingParams(max_tokens=8, temperature=0.0)
    engine.add_request(prompt(0), params, on_output=deltas.append, on_pause=paused.append)
    engine.run()
    assert deltas[-1].pause_reason == "breakpoint" and len(paused) == 1
    assert paused[0].outputs[0].pause_reason == "breakpoint" and not paused[0].finished


def test_a_sequence_that_has_ended_with_its_hit_stays_ended() -> None:
    engine = FakeEngine()
    engine.add_breakpoint("on=status to=FINISHED", "sequence")
    names = [engine.add(prompt(i), 4 + 4 * i) for i in range(2)]
    engine.run()
    assert [hit[3] for hit in hits(engine)] == [0, 1]
    assert engine.ids(names[0]) == solo(prompt(0), 4) and engine.ids(names[1]) == solo(prompt(1), 8)
    engine.check_empty()


def test_one_that_waits_pauses_where_it_is() -> None:
    engine = FakeEngine(max_num_seqs=1)
    names = [engine.add(prompt(i)) for i in range(2)]
    engine.add_breakpoint("on=sequence.waits reason=sequence_cap", "sequence")
    engine.step()
    assert statuses(engine) == ["RUNNING", "PAUSED"] and hits(engine)[0][3] == 1
    finish(engine, names)


def test_a_sequence_and_the_engine_may_pause_in_one_step() -> None:
    engine = FakeEngine()
    engine.add_breakpoint("seq=0 on=status to=RUNNING", "sequence")
    engine.add_breakpoint("on=step.planned")
    names = [engine.add(prompt(i)) for i in range(2)]
    engine.step()
    assert engine.engine_paused == "breakpoint 2" and statuses(engine) == ["PAUSED", "RUNNING"]
    finish(engine, names)


# Set and removed


def test_what_has_happened_before_is_not_hit() -> None:
    engine = FakeEngine()
    engine.add_breakpoint("on=preempted")
    names = [engine.add(prompt(0))]
    engine.add_breakpoint("on=request.arrived")
    engine.step()
    assert hits(engine) == [] and engine.engine_paused == ""
    names.append(engine.add(prompt(1)))
    engine.step()
    assert [hit[0] for hit in hits(engine)] == [2]
    finish(engine, names)


def test_a_removed_one_is_not_hit_and_the_others_are() -> None:
    engine = FakeEngine()
    first, second = engine.add_breakpoint("on=step.planned"), engine.add_breakpoint("on=status to=FINISHED")
    assert engine.breakpoints == {1: "on=step.planned", 2: "on=sequence.status to=FINISHED"}
    assert engine.remove_breakpoint(first) and not engine.remove_breakpoint(first)
    names = [engine.add(prompt(0))]
    engine.run()
    assert [hit[0] for hit in hits(engine)] == [second]
    assert engine.breakpoints == {2: "on=sequence.status to=FINISHED"}
    finish(engine, names)


@pytest.mark.parametrize("number", [0, 7, -1, None, "1", True, [], 1.0])
def test_what_is_no_number_of_a_breakpoint_removes_none(number: Any) -> None:
    engine = FakeEngine()
    engine.add_breakpoint("on=preempted")
    assert engine.remove_breakpoint(number) is False and len(engine.breakpoints) == 1


def test_without_breakpoints_nobody_reads_the_events() -> None:
    with tiny_llm() as llm:
        engine = llm.engine
        recorder = engine.core.recorder
        assert recorder._subscribers == []
        number = engine.add_breakpoint("on=preempted")
        assert len(recorder._subscribers) == 1
        engine.add_breakpoint("on=mark")
        assert len(recorder._subscribers) == 1
        engine.remove_breakpoint(number)
        assert len(recorder._subscribers) == 1
        engine.remove_breakpoint(number + 1)
        assert recorder._subscribers == []


@OVERLAP
@pytest.mark.parametrize("action", ["engine", "sequence"])
def test_a_callback_may_set_one(action: str, overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)

    def on_output(delta: Delta) -> None:
        if not engine.breakpoints:
            engine.add_breakpoint("on=step.planned step=5" if action == "engine" else "on=blocks.allocated", action)

    params = SamplingParams(max_tokens=8, temperature=0.0)
    names = [engine.add_request(prompt(0), params, on_output=on_output, on_finish=engine._finished)]
    engine.run()
    assert [hit[0] for hit in hits(engine)] == [1]
    assert engine.engine_paused == ("breakpoint 1" if action == "engine" else "")
    engine.continue_engine()
    engine.remove_breakpoint(1)
    on_output = lambda delta: None  # noqa: E731
    if names[0] in engine.core.requests:
        engine.core.requests[names[0]].on_output = on_output
    finish(engine, names)


@pytest.mark.parametrize("action", ["engine", "sequence"])
def test_closing_with_breakpoints_on_everything_ends_in_order(action: str) -> None:
    engine = FakeEngine(overlap=True)
    names = [engine.add(prompt(i)) for i in range(3)]
    steps(engine, 3)
    engine.add_breakpoint("seq>=0", action)
    engine.close()
    assert all(engine.outputs[name].outputs[0].finish_reason == "abort" for name in names)
    engine.check_empty()


def test_a_real_engine_pauses_and_goes_on_with_the_same_tokens() -> None:
    with tiny_llm() as llm:
        alone = llm.generate(prompt_of(9), greedy(10), use_tqdm=False)[0].outputs[0].token_ids
    with tiny_llm(overlap=True) as llm:
        events, done = recorded(llm), []
        llm.engine.add_breakpoint("on=step.planned decodes>0")
        llm.engine.add_request(prompt_of(9), greedy(10), on_finish=done.append)
        for _ in range(30):
            while llm.engine.step():
                pass
            llm.engine.continue_engine()
        assert done[0].outputs[0].token_ids == alone
        assert len([event for event in events if isinstance(event, BreakpointHit)]) == 9


# Refused

BAD: dict[str, tuple[tuple[Any, ...], str, str]] = {
    "nothing": (("",), "predicate", "predicate: is empty"),
    "no text": ((5,), "predicate", "predicate: must be a text such as on=preempted, not int"),
    "no term": (("preempted",), "predicate", "predicate: 'preempted' is no term"),
    "unknown event": (("on=preemted",), "predicate", "predicate: on=preemted: no such event; did you mean"),
    "unknown field": (("on=preempted fre<10",), "predicate", "predicate: fre<10: sequence.preempted has no field fre"),
    "unknown status": (("on=status to=PASUED",), "predicate", "predicate: to=PASUED: to is a status; did you mean"),
    "no number": (("on=blocks.allocated free<few",), "predicate", "predicate: free<few: free is a number"),
    "its own hit": (("on=breakpoint.hit",), "predicate", "predicate: on=breakpoint.hit: no breakpoint is hit by"),
    "unknown action": (("on=preempted", "stop"), "action", "action='stop': must be one of engine, sequence"),
    "action no text": (("on=preempted", None), "action", "action=None: must be one of engine, sequence"),
    "no sequence": (("on=engine.error", "sequence"), "predicate", "predicate: on=engine.error: engine.error names no"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_what_can_not_be_understood_is_refused_in_words(bad: str) -> None:
    arguments, field, message = BAD[bad]
    engine = FakeEngine()
    with pytest.raises(InvalidRequest) as refused:
        engine.add_breakpoint(*arguments)
    assert refused.value.field == field and str(refused.value).startswith(message)
    assert engine.breakpoints == {}


def test_an_engine_that_records_nothing_has_nothing_to_break_on() -> None:
    with tiny_llm(recording=False) as llm:
        with pytest.raises(InvalidRequest, match="this engine has recording=False") as refused:
            llm.engine.add_breakpoint("on=preempted")
        assert refused.value.field == "predicate" and llm.engine.breakpoints == {}
        assert llm.engine.remove_breakpoint(1) is False
