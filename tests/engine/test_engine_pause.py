"""The engine pauses, takes a number of steps, goes on; and what it does and leaves meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_engine import FakeEngine, solo
from nanolens.engine.outputs import Delta, RequestOutput
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import EngineDead, InvalidRequest, NotPaused, UnknownRequest
from nanolens.telemetry.events import (
    EngineContinued,
    EnginePaused,
    StatusChanged,
    StepFinished,
    StepPlanned,
    WaitReasonChanged,
)
from real_engine import greedy, prompt_of, tiny_llm

OVERLAP = pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlap"])
SECOND = 1_000_000_000


def prompt(number: int) -> list[int]:
    return list(range(20 * number, 20 * number + 6))


def steps(engine: FakeEngine, count: int) -> None:
    for _ in range(count):
        engine.step()


def planned(engine: FakeEngine) -> int:
    return len(engine.of(StepPlanned))


def pauses(engine: FakeEngine) -> list[str]:
    return [event.cause for event in engine.of(EnginePaused)]


def finish(engine: FakeEngine, *names: str, count: int = 8) -> None:
    """Go on to the end: nobody has noticed, and nothing is left."""
    engine.continue_engine()
    engine.run()
    for i, name in enumerate(names):
        assert engine.ids(name) == solo(prompt(i), count)
    engine.check_empty()


@OVERLAP
def test_nothing_is_planned_and_what_is_in_flight_is_read(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    name = engine.add(prompt(0))
    steps(engine, 3)
    engine.pause_engine()
    assert engine.engine_paused == "operator" and engine.runner.in_flight == 0
    assert [event.step for event in engine.of(StepFinished)] == [1, 2, 3]
    assert not engine.has_work and not engine.step() and not engine.step()
    assert planned(engine) == 3 and engine.seq(name).status.value == "RUNNING"
    finish(engine, name)
    assert engine.engine_paused == "" and pauses(engine) == ["operator"]


def test_a_pause_names_who_asked_for_it() -> None:
    engine = FakeEngine()
    engine.pause_engine("the debugger")
    engine.pause_engine("the debugger")
    assert engine.engine_paused == "the debugger" and pauses(engine) == ["the debugger"]
    engine.pause_engine("")
    assert engine.engine_paused == "operator" and pauses(engine) == ["the debugger", "operator"]
    engine.check_empty()


def test_a_keyframe_says_that_the_engine_is_paused() -> None:
    engine = FakeEngine()
    assert engine.snapshot().engine_paused == ""
    engine.pause_engine()
    assert engine.snapshot().engine_paused == "operator"
    engine.check_empty()  # the journal says so too
    engine.continue_engine()
    assert engine.snapshot().engine_paused == ""
    engine.check_empty()


def test_the_head_of_the_queue_waits_for_the_engine() -> None:
    engine = FakeEngine(max_num_seqs=1)
    names = [engine.add(prompt(i)) for i in range(3)]
    steps(engine, 2)
    engine.pause_engine()
    engine.step()
    assert [(event.seq, event.reason) for event in engine.of(WaitReasonChanged)][-1] == (1, "engine_paused")
    waits = {seq.seq: seq.wait_reason for seq in engine.snapshot().sequences}
    assert waits == {0: "", 1: "engine_paused", 2: "head_of_line"}
    finish(engine, *names)


@OVERLAP
@pytest.mark.parametrize("count", [1, 2, 5])
def test_so_many_steps_as_were_granted(count: int, overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    names = [engine.add(prompt(0)), engine.add(prompt(1))]
    steps(engine, 2)
    engine.pause_engine()
    engine.continue_engine(count)
    assert [event.num_steps for event in engine.of(EngineContinued)] == [count] and engine.engine_paused == ""
    engine.run()
    assert planned(engine) == 2 + count and engine.runner.in_flight == 0
    assert engine.engine_paused == "steps" and pauses(engine) == ["operator", "steps"]
    assert len(engine.seq(names[0]).output_token_ids) == 2 + count
    engine.continue_engine(1)
    engine.run()
    assert planned(engine) == 3 + count
    finish(engine, *names)


def test_granted_steps_that_find_nothing_to_do_are_left_for_later() -> None:
    engine = FakeEngine()
    engine.pause_engine()
    engine.continue_engine(2)
    engine.run()
    assert engine.engine_paused == ""
    name = engine.add(prompt(0))
    engine.run()
    assert planned(engine) == 2 and engine.engine_paused == "steps"
    finish(engine, name)


def test_an_engine_that_runs_can_be_given_its_last_steps() -> None:
    engine = FakeEngine()
    name = engine.add(prompt(0))
    engine.step()
    engine.continue_engine(2)
    engine.run()
    assert planned(engine) == 3 and engine.engine_paused == "steps"
    finish(engine, name)


def test_a_pause_takes_back_what_was_granted() -> None:
    engine = FakeEngine()
    name = engine.add(prompt(0))
    engine.continue_engine(3)
    engine.step()
    engine.pause_engine()
    engine.continue_engine()
    steps(engine, 5)
    assert engine.engine_paused == "" and planned(engine) == 6
    finish(engine, name)


@OVERLAP
def test_requests_come_while_it_is_paused(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    engine.pause_engine()
    names = [engine.add(prompt(0)), engine.add(prompt(1))]
    assert not engine.has_work and not engine.step()
    assert engine.snapshot().waiting == [0, 1] and engine.snapshot().sequences[0].wait_reason == "engine_paused"
    finish(engine, *names)


@OVERLAP
def test_commands_act_while_it_is_paused(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap, policy="priority")
    names = [engine.add(prompt(i)) for i in range(5)]
    steps(engine, 3)
    engine.pause_engine()
    assert engine.abort(names[4]) and names[4] in engine.outputs
    assert engine.pause(names[0]) and engine.pause(names[1])
    engine.resume(names[0])
    engine.finish(names[1])
    engine.set_priority(names[2], 5)
    assert engine.outputs[names[1]].outputs[0].finish_reason == "stop"
    assert engine.seq(names[0]).status.value in ("RUNNING", "WAITING")
    assert planned(engine) == 3 and not engine.has_work
    for name in names[3:4]:
        assert engine.pause(name)
    engine.continue_engine()
    engine.run()
    engine.resume(names[3])
    finish(engine)
    for i in (0, 2, 3):
        assert engine.ids(names[i]) == solo(prompt(i), 8)


def test_nobody_expires_while_it_is_paused() -> None:
    engine = FakeEngine(paused_ttl_s=5.0)
    name = engine.add(prompt(0))
    steps(engine, 2)
    engine.pause(name)
    assert engine.next_deadline is not None
    engine.pause_engine()
    engine.core.clock.now += 60 * SECOND
    assert engine.next_deadline is None and not engine.has_work and not engine.step()
    assert engine.seq(name).status.value == "PAUSED"
    engine.continue_engine()
    assert engine.has_work and engine.step()
    assert engine.outputs[name].outputs[0].finish_reason == "abort"
    engine.check_empty()


@OVERLAP
def test_a_callback_may_pause_it_and_the_step_is_dealt_with_to_its_end(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    told: list[Delta] = []

    def on_output(delta: Delta) -> None:
        told.append(delta)
        if len(told) == 3:
            engine.pause_engine("a callback")

    params = SamplingParams(max_tokens=8, temperature=0.0)
    name = engine.add_request(prompt(0), params, on_output=on_output, on_finish=engine._finished)
    other = engine.add(prompt(1))
    engine.run()
    assert engine.engine_paused == "a callback"
    assert engine.runner.in_flight == 0 and planned(engine) == 3 + overlap
    assert len(engine.seq(other).output_token_ids) == 3 + overlap
    finish(engine, name, other)


@OVERLAP
def test_a_callback_may_let_it_go_on(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)

    def on_pause(output: RequestOutput) -> None:
        engine.continue_engine()

    params = SamplingParams(max_tokens=8, temperature=0.0)
    name = engine.add_request(prompt(0), params, on_pause=on_pause, on_finish=engine._finished)
    other = engine.add(prompt(1))
    steps(engine, 2)
    engine.pause_engine()
    engine.pause(name)
    assert engine.engine_paused == ""
    engine.run()
    engine.resume(name)
    finish(engine, name, other)


@OVERLAP
def test_closing_a_paused_engine_ends_everybody(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    name = engine.add(prompt(0))
    steps(engine, 2)
    engine.pause_engine()
    engine.close()
    assert engine.outputs[name].outputs[0].finish_reason == "abort"
    for use in (engine.pause_engine, engine.continue_engine):
        with pytest.raises(EngineDead, match="the engine is closed"):
            use()


def test_a_real_engine_in_single_steps_gives_the_same_tokens() -> None:
    with tiny_llm() as llm:
        alone = llm.generate(prompt_of(9), greedy(6), use_tqdm=False)[0].outputs[0].token_ids
    done: list[RequestOutput] = []
    with tiny_llm(overlap=True) as llm:
        llm.engine.pause_engine()
        llm.engine.add_request(prompt_of(9), greedy(6), on_finish=done.append)
        taken = 0
        while not done:
            llm.engine.continue_engine(1)
            while llm.engine.step():
                pass
            taken += 1
        assert llm.engine.engine_paused == "steps" and taken == 6
    assert done[0].outputs[0].token_ids == alone


BAD: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "steps below 0": ("continue_engine", (-1,), {}, InvalidRequest, "num_steps=-1: must be a whole number of at least"),
    "steps no number": ("continue_engine", ("3",), {}, InvalidRequest, "num_steps='3': must be a whole number"),
    "steps a flag": ("continue_engine", (True,), {}, InvalidRequest, "num_steps=True: must be a whole number"),
    "steps beyond": ("continue_engine", (1 << 64,), {}, InvalidRequest, "num_steps=18446744073709551616: must be a"),
    "steps a part": ("continue_engine", (1.5,), {}, InvalidRequest, "num_steps=1.5: must be a whole number"),
    "cause no text": ("pause_engine", (5,), {}, InvalidRequest, "cause: must be a string, not int"),
    "cause surrogate": ("pause_engine", ("\ud800",), {}, InvalidRequest, "cause holds a lone surrogate"),
    "cause long": ("pause_engine", ("x" * 257,), {}, InvalidRequest, "cause has 257 characters"),
    "pause nobody": ("pause", ("nobody",), {}, UnknownRequest, "no live request has the id 'nobody'"),
    "pause a number": ("pause", (5,), {}, UnknownRequest, "no live request has the id 5"),
    "pause index": ("pause", ("mine", 2), {}, InvalidRequest, "index=2: the request has sequences 0 to 1"),
    "pause index -1": ("pause", ("mine", -1), {}, InvalidRequest, "index=-1: the request has sequences 0 to 1"),
    "pause index text": ("pause", ("mine", "0"), {}, InvalidRequest, "index='0': the request has sequences 0 to 1"),
    "pause index flag": ("pause", ("mine", True), {}, InvalidRequest, "index=True: the request has sequences 0 to 1"),
    "pause reason": ("pause", ("mine", None, "stop"), {}, InvalidRequest, "reason='stop': must be 'operator' or"),
    "pause reason list": ("pause", ("mine", None, []), {}, InvalidRequest, "reason=[]: must be 'operator' or"),
    "resume nobody": ("resume", ("nobody",), {}, UnknownRequest, "no live request has the id 'nobody'"),
    "resume running": ("resume", ("mine", None, None, 0), {}, NotPaused, "request mine is not paused: RUNNING"),
    "resume append text": ("resume", ("mine", "x"), {}, InvalidRequest, "this model has no tokenizer: append token"),
    "resume append beyond": ("resume", ("mine", [1000]), {}, InvalidRequest, "append[0]=1000: must be a token id"),
    "resume append flag": ("resume", ("mine", [True]), {}, InvalidRequest, "append[0]=True: must be a token id"),
    "resume append number": ("resume", ("mine", 5), {}, InvalidRequest, "append: must be a text or a list"),
    "resume append bytes": ("resume", ("mine", b"x"), {}, InvalidRequest, "append: must be a text or a list of token"),
    "resume append long": ("resume", ("mine", [1] * 300), {}, InvalidRequest, "sequence 1 would have "),
    "resume max_tokens 0": ("resume", ("mine",), {"max_tokens": 0}, InvalidRequest, "max_tokens=0: must be at least 1"),
    "resume max_tokens text": ("resume", ("mine",), {"max_tokens": "9"}, InvalidRequest, "max_tokens='9': must be a"),
    "resume index": ("resume", ("mine",), {"index": 7}, InvalidRequest, "index=7: the request has sequences 0 to 1"),
    "finish nobody": ("finish", ("nobody",), {}, UnknownRequest, "no live request has the id 'nobody'"),
    "finish running": ("finish", ("mine", 0), {}, NotPaused, "request mine is not paused: RUNNING"),
    "finish index": ("finish", ("mine", 2), {}, InvalidRequest, "index=2: the request has sequences 0 to 1"),
    "priority nobody": ("set_priority", ("nobody", 1), {}, UnknownRequest, "no live request has the id 'nobody'"),
    "priority text": ("set_priority", ("mine", "1"), {}, InvalidRequest, "priority='1': must be a whole number"),
    "priority large": ("set_priority", ("mine", 1 << 40), {}, InvalidRequest, "priority=1099511627776: must be at"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_a_command_that_can_not_be_meant_is_refused_and_changes_nothing(bad: str) -> None:
    method, arguments, options, error, message = BAD[bad]
    engine = FakeEngine()
    params = SamplingParams(max_tokens=8, temperature=0.0, n=2)
    engine.add_request(prompt(0), params, request_id="mine", on_finish=engine._finished)
    steps(engine, 3)
    engine.pause("mine", 1)
    engine.core.flush()
    before, events = engine.snapshot(), len(engine.events)
    with pytest.raises(error) as refused:
        getattr(engine, method)(*arguments, **options)
    assert type(refused.value) is error and str(refused.value).startswith(message)
    if isinstance(refused.value, InvalidRequest):
        assert message.startswith((refused.value.field, "sequence ", "this model"))
    engine.core.flush()
    after = engine.snapshot()
    after.t = before.t
    assert after == before and len(engine.events) == events
    engine.resume("mine")
    engine.run()
    assert all(each.token_ids == solo(prompt(0), 8) for each in engine.outputs["mine"].outputs)
    engine.check_empty()


def test_a_request_that_has_its_tokens_goes_on_only_with_more_of_them() -> None:
    engine = FakeEngine()
    name = engine.add(prompt(0), 3, on_stop="pause")
    engine.run()
    with pytest.raises(InvalidRequest, match=r"sequence 0 has generated its 3 tokens: give max_tokens for more"):
        engine.resume(name)
    engine.resume(name, max_tokens=5)
    engine.run()
    engine.finish(name)
    assert engine.ids(name) == solo(prompt(0), 8)
    engine.check_empty()


commands = st.lists(
    st.one_of(
        st.just(("step",)),
        st.just(("step",)),
        st.just(("pause_engine",)),
        st.tuples(st.just("continue_engine"), st.integers(0, 3)),
        st.just(("add",)),
        st.tuples(st.just("toggle"), st.integers(0, 5)),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(asked=commands, overlap=st.booleans(), num_blocks=st.integers(6, 20), host_blocks=st.sampled_from([0, 10]))
def test_pauses_and_steps_at_random_leave_no_trace(
    asked: list[Any], overlap: bool, num_blocks: int, host_blocks: int
) -> None:
    engine = FakeEngine(overlap=overlap, num_blocks=num_blocks, host_blocks=host_blocks, max_num_seqs=3)
    names: list[str] = []
    for command, *arguments in asked:
        if command == "add":
            names.append(engine.add(prompt(len(names))))
        elif command == "toggle":
            name = names[arguments[0] % len(names)] if names else ""
            if name in engine.core.requests and not engine.pause(name):
                engine.resume(name)
        else:
            before = planned(engine)
            was_paused = bool(engine.engine_paused)
            getattr(engine, command)(*arguments)
            assert not (was_paused and planned(engine) > before)
    engine.continue_engine()
    engine.run()
    for name in names:
        if name in engine.core.requests:
            engine.resume(name)
    finish(engine, *names)
    paused = [event for event in engine.of(StatusChanged) if event.new == "PAUSED"]
    assert all(event.reason == "operator" for event in paused)
