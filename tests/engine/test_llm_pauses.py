"""The offline API around pauses: who is called back, what stays alive, what a callback can not do."""

from __future__ import annotations

from typing import Any

import pytest

from fake_engine import FakeEngine, solo
from nanolens.engine.outputs import Delta, RequestOutput
from nanolens.engine.sampling_params import SamplingParams
from nanolens.engine.slot_pool import SlotPool
from nanolens.errors import CalledBack, EngineIsPaused, InvalidRequest, NotPaused, UnknownRequest
from real_engine import greedy, prompt_of, tiny_llm

each_overlap = pytest.mark.parametrize("overlap", [False, True], ids=["in_turn", "overlapped"])


@each_overlap
@pytest.mark.parametrize("what", ["step", "close"])
def test_a_callback_can_neither_step_nor_close(what: str, overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    refused: list[str] = []

    def call(delta: Delta) -> None:
        with pytest.raises(CalledBack) as error:
            getattr(engine, what)()
        refused.append(str(error.value))

    names = [engine.add([i, i + 1, i + 2], 6) for i in range(3)]
    engine.add_request([9, 9], SamplingParams(max_tokens=4, temperature=0.0), on_output=call)
    engine.run()
    assert len(refused) == 4 and what in refused[0]
    assert [engine.ids(name) for name in names] == [solo([i, i + 1, i + 2], 6) for i in range(3)]
    engine.check_empty()


def test_a_stream_goes_on_while_others_resume_its_request() -> None:
    with tiny_llm() as llm:
        prompt = prompt_of(7)
        [whole] = llm.generate([prompt], greedy(8), use_tqdm=False)
        stream = llm.stream(prompt, SamplingParams(max_tokens=4, temperature=0, on_stop="pause"), request_id="mine")
        tokens: list[int] = []
        for delta in stream:
            tokens += delta.token_ids
            if delta.pause_reason and len(tokens) == 4:
                llm.resume("mine", max_tokens=4)
            elif delta.pause_reason:
                llm.finish("mine")
        assert tokens == whole.outputs[0].token_ids
        assert not llm.engine.core.requests


def test_a_refused_resume_changes_no_callback() -> None:
    with tiny_llm() as llm:
        done: list[RequestOutput] = []
        name = llm.engine.add_request(prompt_of(5), greedy(3), on_finish=done.append)
        with pytest.raises(NotPaused):
            llm.resume(name)
        while not done:
            llm.engine.step()
        assert done[0].finished


def test_ones_own_callback_is_called_after_a_resume_too() -> None:
    with tiny_llm() as llm:
        done: list[RequestOutput] = []
        params = SamplingParams(max_tokens=2, temperature=0, on_stop="pause")
        name = llm.engine.add_request(prompt_of(5), params, on_finish=done.append)
        llm.wait([name])
        assert not llm.resume(name, max_tokens=2).finished
        assert llm.finish(name).finished
        assert [output.request_id for output in done] == [name]


def test_a_breakpoint_in_generate_leaves_all_alive_to_be_looked_at() -> None:
    with tiny_llm() as llm:
        prompts = [prompt_of(5), prompt_of(9)]
        alone = llm.generate(prompts, [greedy(2), greedy(9)], use_tqdm=False)
        llm.engine.add_breakpoint("on=request.finished")
        with pytest.raises(EngineIsPaused) as paused:
            llm.generate(prompts, [greedy(2), greedy(9)], use_tqdm=False)
        assert len(llm.engine.snapshot().sequences) == 1 == len(paused.value.request_ids)
        assert [o.outputs[0].token_ids for o in paused.value.outputs.values()] == [alone[0].outputs[0].token_ids]
        llm.engine.remove_breakpoint(1)
        llm.engine.continue_engine()
        [late] = llm.wait(paused.value.request_ids)
        assert late.outputs[0].token_ids == alone[1].outputs[0].token_ids


def test_a_resume_while_the_engine_is_paused_loses_nothing() -> None:
    with tiny_llm() as llm:
        prompt = prompt_of(6)
        [first] = llm.generate([prompt], SamplingParams(max_tokens=3, temperature=0, on_stop="pause"), use_tqdm=False)
        llm.engine.pause_engine()
        with pytest.raises(EngineIsPaused) as paused:
            llm.resume(first.request_id, append=[4])
        assert paused.value.request_ids == [first.request_id]
        llm.engine.continue_engine()
        [second] = llm.wait([first.request_id])
        assert len(second.outputs[0].token_ids) == 6 and second.outputs[0].pause_reason == "length"
        assert llm.finish(first.request_id).outputs[0].token_ids[:3] == first.outputs[0].token_ids


def test_finish_wants_all_of_a_request_at_rest() -> None:
    with tiny_llm() as llm:
        params = SamplingParams(n=2, max_tokens=3, temperature=0.8, seed=1, on_stop="pause", ignore_eos=True)
        [output] = llm.generate([prompt_of(6)], params, use_tqdm=False)
        llm.engine.resume(output.request_id, max_tokens=3, index=1)
        with pytest.raises(NotPaused):
            llm.finish(output.request_id)
        assert not llm.wait([output.request_id])[0].finished
        assert [len(o.token_ids) for o in llm.finish(output.request_id).outputs] == [3, 6]
        with pytest.raises(UnknownRequest):
            llm.finish(output.request_id)


def test_an_output_does_not_change_after_it_was_given() -> None:
    with tiny_llm() as llm:
        params = SamplingParams(max_tokens=3, temperature=0, logprobs=1, prompt_logprobs=0, on_stop="pause")
        [output] = llm.generate([prompt_of(6)], params, use_tqdm=False)
        llm.resume(output.request_id, append=[5])
        llm.finish(output.request_id)
        assert len(output.outputs[0].token_ids) == len(output.outputs[0].logprobs or []) == 3


@each_overlap
def test_prompt_logprobs_are_whole_after_a_pause_from_anothers_callback(overlap: bool) -> None:
    with tiny_llm(max_prefill_chunk=8, overlap=overlap) as llm:
        engine = llm.engine
        params = SamplingParams(max_tokens=3, temperature=0, prompt_logprobs=0)
        [alone] = llm.generate([prompt_of(30)], params, use_tqdm=False)
        seen: list[Delta] = []
        done: list[RequestOutput] = []

        def pause_other(delta: Delta) -> None:
            seen.append(delta)
            if len(seen) == 3:
                engine.pause("late")

        engine.add_request(prompt_of(3), greedy(20), on_output=pause_other)
        engine.step()
        engine.add_request(prompt_of(30), params, request_id="late", on_finish=done.append)
        while engine.has_work:
            engine.step()
        assert not done
        engine.resume("late")
        while not done:
            engine.step()
        assert done[0].outputs[0].token_ids == alone.outputs[0].token_ids
        assert done[0].prompt_logprobs is not None and alone.prompt_logprobs is not None
        assert [e is None for e in done[0].prompt_logprobs] == [e is None for e in alone.prompt_logprobs]


@pytest.mark.parametrize("value", [10**5000, "x" * 100_000, [[]] * 10_000], ids=["int", "str", "list"])
def test_what_is_huge_is_refused_in_few_words(value: Any) -> None:
    engine = FakeEngine()
    name = engine.add([1, 2], 4, on_stop="pause")
    engine.run()
    for call in (
        lambda: engine.pause(value), lambda: engine.pause(name, value), lambda: engine.pause(name, reason=value),
        lambda: engine.resume(name, max_tokens=value), lambda: engine.resume(name, index=value),
        lambda: engine.set_priority(name, value), lambda: engine.continue_engine(value),
        lambda: engine.add_breakpoint("on=status", value),
    ):  # fmt: skip
        with pytest.raises((InvalidRequest, UnknownRequest)) as refused:
            call()
        assert len(str(refused.value)) < 400


def test_slots_that_are_never_taken_cost_nothing() -> None:
    pool = SlotPool(0, 2**31 - 1)
    assert len(pool.free_disk) == 2**31 - 1
    assert pool.take_disk(3) == [0, 1, 2]
    pool.give(1)
    pool.audit([0, 2])
    assert pool.take_disk(2) == [1, 3]
