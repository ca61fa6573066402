"""Pauses of some of a group, wrong uses of pauses, and callbacks that pause, resume, finish and abort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fake_engine import FakeEngine, solo
from nanolens.engine.outputs import Delta, RequestOutput
from nanolens.engine.sampling_params import SamplingParams
from nanolens.engine.sequence import SequenceStatus
from nanolens.errors import InvalidRequest, NotPaused, UnknownRequest
from nanolens.telemetry.events import CallbackFailed, StatusChanged

PROMPT = list(range(10, 19))
TOKENS = solo(PROMPT, 12)
PAUSED = SequenceStatus.PAUSED
each_overlap = pytest.mark.parametrize("overlap", [False, True], ids=["in_turn", "overlapped"])


def engine_with(overlap: bool) -> FakeEngine:
    return FakeEngine(overlap=overlap, max_prefill_chunk=4)


def step_until(engine: FakeEngine, condition: Callable[[], Any]) -> None:
    for _ in range(200):
        if condition():
            return
        assert engine.step()
    raise AssertionError("200 steps were not enough")


# A group of sequences


def group(overlap: bool, n: int = 3, **params: Any) -> tuple[FakeEngine, str, list[RequestOutput], list[Delta]]:
    """An engine with a request of n sequences, its outputs at each rest, and its deltas."""
    engine = FakeEngine(overlap=overlap)
    rests: list[RequestOutput] = []
    deltas: list[Delta] = []
    own = SamplingParams(**({"temperature": 0.0, "max_tokens": 8, "n": n} | params))
    name = engine.add_request(
        PROMPT, own, on_pause=rests.append, on_output=deltas.append, on_finish=engine._finished
    )
    return engine, name, rests, deltas


@each_overlap
def test_one_of_a_group_pauses_alone_and_the_others_go_on(overlap: bool) -> None:
    engine, name, rests, _ = group(overlap)
    step_until(engine, lambda: engine.seq(name, 1).num_read_output_tokens == 2)
    assert engine.pause(name, index=1)
    seq, read = engine.seq(name, 1), engine.seq(name, 1).num_read_output_tokens
    assert [s.status is PAUSED for s in engine.core.requests[name].sequences] == [False, True, False]
    with pytest.raises(NotPaused):
        engine.resume(name, index=0)
    engine.run()
    assert name not in engine.outputs and seq.status is PAUSED and seq.num_read_output_tokens == read
    assert len(rests) == 1  # the others have ended: it is at rest
    engine.resume(name, index=1)
    engine.run()
    assert [out.token_ids for out in engine.outputs[name].outputs] == [TOKENS[:8]] * 3
    engine.check_empty()


@each_overlap
def test_on_pause_is_called_once_when_the_last_of_a_group_pauses(overlap: bool) -> None:
    engine, name, rests, deltas = group(overlap)
    step_until(engine, lambda: engine.seq(name, 2).num_read_output_tokens == 2)
    engine.pause(name)
    [rest] = rests
    assert not rest.finished and [out.pause_reason for out in rest.outputs] == ["operator"] * 3
    assert [out.finish_reason for out in rest.outputs] == [None] * 3
    assert [delta.index for delta in deltas if delta.pause_reason] == [0, 1, 2]
    engine.resume(name, append=[77], max_tokens=2)
    engine.run()
    for out, before in zip(engine.outputs[name].outputs, rest.outputs, strict=True):
        assert out.token_ids == before.token_ids + solo(PROMPT + before.token_ids + [77], 2)
    assert len(rests) == 1


@each_overlap
def test_a_group_that_pauses_by_itself_rests_once_a_turn(overlap: bool) -> None:
    engine, name, rests, _ = group(overlap, on_stop="pause", max_tokens=3)
    engine.run()
    assert len(rests) == 1
    engine.resume(name, append=[1], max_tokens=2)
    engine.run()
    assert len(rests) == 2
    engine.finish(name, index=2)
    assert name not in engine.outputs and len(rests) == 2
    engine.finish(name)
    assert [out.finish_reason for out in engine.outputs[name].outputs] == ["length"] * 3
    engine.check_empty()


@each_overlap
def test_the_failure_of_a_sibling_ends_those_that_are_paused(overlap: bool) -> None:
    engine, name, _, _ = group(overlap, n=2)
    step_until(engine, lambda: engine.seq(name, 1).num_read_output_tokens == 2)
    engine.pause(name, index=0)
    engine.runner.fail_rows = lambda plan: {1: "not finite"}
    engine.run()
    assert [e.cause for e in engine.of(StatusChanged) if e.new == "ERROR" and e.old == "PAUSED"] == [1]
    assert "not finite" in (engine.outputs[name].error or "")
    engine.check_empty()


# What is refused


def unchanged(engine: FakeEngine, kind: type[Exception], call: Callable[[], Any]) -> str:
    """That a call raises, and changes and records nothing; its message."""
    before, events = engine.snapshot(), len(engine.of(object))
    with pytest.raises(kind) as raised:
        call()
    after = engine.snapshot()
    before.t = after.t = 0
    assert after == before and len(engine.of(object)) == events
    return str(raised.value)


def test_wrong_uses_are_refused_and_change_nothing() -> None:
    engine = FakeEngine(max_model_len=24)
    paused, running = engine.add(PROMPT, 5, on_stop="pause"), engine.add([3, 4], 12)
    done = engine.add([5, 6], 1)
    step_until(engine, lambda: engine.seq(paused).status is PAUSED)
    assert done in engine.outputs and engine.seq(running).status is SequenceStatus.RUNNING
    for nobody in ("nobody", done, "", 7, None):
        for call in (engine.pause, engine.resume, engine.finish):
            unchanged(engine, UnknownRequest, lambda call=call, nobody=nobody: call(nobody))
    for call in (engine.resume, engine.finish):
        assert "RUNNING" in unchanged(engine, NotPaused, lambda call=call: call(running))
    for index in (-1, 1, True, "0", 0.0):
        for call in (engine.pause, engine.resume, engine.finish):
            message = unchanged(engine, InvalidRequest, lambda call=call, i=index: call(paused, index=i))
            assert "index" in message
    appends = [[1000], [-1], [True], "text", 3, [1.5], [0] * 10, [0] * 500, {"a": 1}]
    for append in appends:
        message = unchanged(engine, InvalidRequest, lambda a=append: engine.resume(paused, append=a))
        assert "append" in message or "tokenizer" in message or "max_model_len" in message
    for max_tokens in (0, -1, True, 1.5, "4", 2**31):
        message = unchanged(engine, InvalidRequest, lambda m=max_tokens: engine.resume(paused, max_tokens=m))
        assert "max_tokens" in message
    assert "give max_tokens" in unchanged(engine, InvalidRequest, lambda: engine.resume(paused))
    assert "reason" in unchanged(engine, InvalidRequest, lambda: engine.pause(running, reason="stop"))
    engine.resume(paused, append=[0] * 9)
    engine.run()
    assert engine.seq(paused).num_read_output_tokens == 6  # 24 tokens in all
    message = unchanged(engine, InvalidRequest, lambda: engine.resume(paused, max_tokens=3))
    assert "max_model_len" in message
    engine.finish(paused)
    engine.check_empty()


def test_one_that_has_no_room_left_refuses_the_whole_group() -> None:
    engine, name, _, _ = group(False, n=2, on_stop="pause", max_tokens=3)
    engine.run()
    engine.resume(name, append=[1, 2], max_tokens=2, index=0)
    engine.run()
    unchanged(engine, InvalidRequest, lambda: engine.resume(name, append=[1] * 240))
    assert [seq.status for seq in engine.core.requests[name].sequences] == [PAUSED, PAUSED]


# From within callbacks


@each_overlap
def test_a_callback_that_pauses_its_own_request_loses_no_token(overlap: bool) -> None:
    engine = engine_with(overlap)
    read: list[int] = []

    def take(delta: Delta) -> None:
        read.extend(delta.token_ids)
        if delta.token_ids and not delta.finish_reason:
            assert engine.pause("r")

    params = SamplingParams(temperature=0.0, max_tokens=8)
    engine.add_request(PROMPT, params, request_id="r", on_output=take, on_finish=engine._finished)
    for _ in range(7):
        engine.run()
        assert engine.seq("r").status is PAUSED and engine.seq("r").reason == "operator"
        engine.resume("r")
    engine.run()
    assert engine.ids("r") == read == TOKENS[:8]
    assert not engine.of(CallbackFailed)
    engine.check_empty()


@each_overlap
@pytest.mark.parametrize("what", ["pause", "abort"])
def test_a_callback_may_stop_others_of_the_same_step(what: str, overlap: bool) -> None:
    engine = engine_with(overlap)
    prompts = [list(range(20 * i, 20 * i + 6)) for i in range(3)]
    names = ["a", "b", "c"]

    def take(delta: Delta) -> None:
        if engine.seq("b").num_read_output_tokens == 3:
            for other in ("a", "c"):
                if other in engine.core.requests:
                    engine.pause(other) if what == "pause" else engine.abort(other)

    for name, prompt in zip(names, prompts, strict=True):
        params = SamplingParams(temperature=0.0, max_tokens=8)
        on_output = take if name == "b" else None
        engine.add_request(prompt, params, request_id=name, on_output=on_output, on_finish=engine._finished)
    engine.run()
    assert engine.ids("b") == solo(prompts[1], 8) and not engine.of(CallbackFailed)
    if what == "abort":
        assert all(engine.outputs[name].outputs[0].finish_reason == "abort" for name in "ac")
    else:
        for name, prompt in (("a", prompts[0]), ("c", prompts[2])):
            assert engine.seq(name).status is PAUSED
            engine.resume(name)
            engine.run()
            assert engine.ids(name) == solo(prompt, 8)
    engine.check_empty()


@each_overlap
@pytest.mark.parametrize("callback", ["on_output", "on_pause"])
@pytest.mark.parametrize("what", ["resume", "finish", "abort"])
def test_a_callback_may_answer_a_pause(what: str, callback: str, overlap: bool) -> None:
    engine = engine_with(overlap)
    pauses: list[object] = []

    def answer(news: Delta | RequestOutput) -> None:
        if isinstance(news, Delta) and news.pause_reason is None:
            return
        pauses.append(news)
        if len(pauses) > 3 or what == "finish":
            engine.finish("r")
        elif what == "abort":
            engine.abort("r")
        else:
            engine.resume("r", append=[len(pauses)], max_tokens=2)

    params = SamplingParams(temperature=0.0, max_tokens=2, on_stop="pause")
    engine.add_request(
        PROMPT, params, request_id="r", on_finish=engine._finished, **{callback: answer}  # type: ignore[arg-type]
    )
    engine.run()
    [out] = engine.outputs["r"].outputs
    expected, tokens = TOKENS[:2], PROMPT + TOKENS[:2]
    for turn in (1, 2, 3) if what == "resume" else ():
        tokens = [*tokens, turn]
        answered = solo(tokens, 2)
        expected, tokens = expected + answered, tokens + answered
    assert out.token_ids == expected and not engine.of(CallbackFailed)
    assert out.finish_reason == ("abort" if what == "abort" else "length")
    engine.check_empty()


@each_overlap
def test_on_pause_comes_once_for_each_pause(overlap: bool) -> None:
    engine = engine_with(overlap)
    rests: list[RequestOutput] = []
    params = SamplingParams(temperature=0.0, max_tokens=8, pause_after_prefill=True)
    engine.add_request(PROMPT, params, request_id="r", on_pause=rests.append, on_finish=engine._finished)
    engine.run()
    assert [rest.outputs[0].pause_reason for rest in rests] == ["prefill_complete"]
    engine.resume("r")
    engine.step()
    engine.pause("r")
    engine.pause("r")
    assert [rest.outputs[0].pause_reason for rest in rests] == ["prefill_complete", "operator"]
    engine.resume("r")
    engine.run()
    assert len(rests) == 2 and engine.ids("r") == TOKENS[:8]
