"""Pauses on a real model and on the offline API: the tokens of an undisturbed run, and what a resume computes."""

from __future__ import annotations

from typing import Any

import pytest

from fake_engine import FakeEngine, solo
from nanolens.engine.llm import LLM
from nanolens.engine.outputs import RequestOutput
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import EngineIsPaused, InvalidRequest, UnknownRequest
from nanolens.telemetry.events import AnyEvent, SequenceResumed, StepPlanned
from real_engine import greedy, prompt_of, recorded, tiny_llm

each_overlap = pytest.mark.parametrize("overlap", [False, True], ids=["in_turn", "overlapped"])

SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "seed": 5},
    "penalties": {"temperature": 0.8, "seed": 5, "presence_penalty": 1.5, "frequency_penalty": 1.2},
    "repetition": {"temperature": 0.0, "repetition_penalty": 1.8},
    "logprobs": {"temperature": 0.8, "seed": 9, "logprobs": 3},
    "min_tokens": {"temperature": 1.0, "seed": 2, "min_tokens": 9, "stop_token_ids": list(range(0, 256, 3))},
    "bad_words": {"temperature": 1.0, "seed": 4, "bad_words": ["a", "bc", "\u00e9"], "top_k": 20},
    "n": {"temperature": 0.8, "seed": 5, "n": 2},
}


def run_disturbed(llm: LLM, prompt: list[int], params: SamplingParams, every: int) -> RequestOutput:
    """Run one request, which is paused and resumed after each so many steps."""
    done: list[RequestOutput] = []
    engine = llm.engine
    name = engine.add_request(prompt, params, on_finish=done.append)
    steps = 0
    while not done:
        assert engine.step()
        steps += 1
        if not done and steps % every == 0 and engine.pause(name):
            assert not engine.has_work
            engine.resume(name)
    return done[0]


@each_overlap
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("kind", SAMPLING)
def test_a_real_model_gives_the_same_with_a_pause_at_any_step(kind: str, every: int, overlap: bool) -> None:
    params = SamplingParams(max_tokens=14, **({"ignore_eos": True} | SAMPLING[kind]))
    prompt = prompt_of(11)
    with tiny_llm(overlap=overlap, max_prefill_chunk=4) as llm:
        [alone] = llm.generate([prompt], params, use_tqdm=False)
        disturbed = run_disturbed(llm, prompt, params, every)
    for mine, theirs in zip(disturbed.outputs, alone.outputs, strict=True):
        assert (mine.token_ids, mine.text) == (theirs.token_ids, theirs.text)
        assert (mine.finish_reason, mine.stop_reason) == (theirs.finish_reason, theirs.stop_reason)
        if theirs.logprobs is not None:
            assert mine.logprobs is not None
            for own, other in zip(mine.logprobs, theirs.logprobs, strict=True):
                assert (own.token_id, own.rank) == (other.token_id, other.rank)
                assert own.logprob == pytest.approx(other.logprob, abs=1e-4)


@each_overlap
def test_appended_tokens_are_read_by_a_real_model_as_a_prompt_is(overlap: bool) -> None:
    first, more = prompt_of(9), prompt_of(7, 1)
    with tiny_llm(overlap=overlap) as llm:
        [turn] = llm.generate([first], greedy(6, on_stop="pause"), use_tqdm=False)
        assert not turn.finished and turn.outputs[0].pause_reason == "length"
        mine = llm.resume(turn.request_id, more, 8)
        spoken = turn.outputs[0].token_ids
        [whole] = llm.generate([first + spoken + more], greedy(8), use_tqdm=False)
        assert mine.outputs[0].token_ids == spoken + whole.outputs[0].token_ids
        last = llm.finish(turn.request_id)
        assert last.finished and last.outputs[0].token_ids == mine.outputs[0].token_ids
        with pytest.raises(UnknownRequest):
            llm.resume(turn.request_id, more)


def test_a_conversation_of_several_turns_on_the_offline_api() -> None:
    with tiny_llm() as llm:
        outputs = llm.generate([prompt_of(5), prompt_of(6, 1)], greedy(4, on_stop="pause"), use_tqdm=False)
        assert [output.finished for output in outputs] == [False, False]
        name = outputs[0].request_id
        counts = [len(llm.resume(name, f" turn {i}", max_tokens=3).outputs[0].token_ids) for i in range(3)]
        assert counts == [7, 10, 13]
        with pytest.raises(InvalidRequest):
            llm.resume(name, max_tokens=0)
        assert len(llm.resume(name, "x").outputs[0].token_ids) == 17  # its own max_tokens once more
        assert llm.finish(name).outputs[0].finish_reason == "length"
        with pytest.raises(UnknownRequest):
            llm.finish(name)
        assert [seq.request for seq in llm.engine.snapshot().sequences] == [outputs[1].request_id]
        llm.engine.abort(outputs[1].request_id)
        assert not llm.engine.has_work


def test_generate_on_a_paused_engine_says_so_and_keeps_the_requests() -> None:
    with tiny_llm() as llm:
        [turn] = llm.generate([prompt_of(5)], greedy(4, on_stop="pause"), use_tqdm=False)
        llm.engine.pause_engine()
        with pytest.raises(EngineIsPaused, match="operator") as paused:
            llm.generate([prompt_of(5)], greedy(4), use_tqdm=False)
        with pytest.raises(EngineIsPaused):
            next(llm.stream(prompt_of(5), greedy(4)))
        left = [seq.request for seq in llm.engine.snapshot().sequences]
        assert left == [turn.request_id, *paused.value.request_ids]
        llm.engine.continue_engine()
        assert len(llm.resume(turn.request_id, [1], 2).outputs[0].token_ids) == 6
        assert llm.wait(paused.value.request_ids)[0].finished
        llm.finish(turn.request_id)


@pytest.mark.timeout(30)
@each_overlap
def test_generate_returns_when_one_of_a_group_stays_paused(overlap: bool) -> None:
    with tiny_llm(overlap=overlap) as llm:
        llm.engine.add_breakpoint("on=blocks.allocated seq=1", "sequence")
        [output] = llm.generate([prompt_of(5)], greedy(9, n=2), use_tqdm=False)
        assert not output.finished and output.outputs[0].finish_reason == "length"
        assert output.outputs[1].pause_reason == "breakpoint"


# What a resume costs


def computed_after(events: list[AnyEvent], seq: int) -> int:
    """Tokens that were computed for a sequence between its last resume and the first token that follows."""
    last = max(i for i, e in enumerate(events) if isinstance(e, SequenceResumed) and e.seq == seq)
    return sum(
        count
        for event in events[last:]
        if isinstance(event, StepPlanned)
        for chunk_seq, _, count in event.chunks
        if chunk_seq == seq
    )


@each_overlap
@pytest.mark.parametrize("place", ["device", "host", "disk"])
def test_a_resume_computes_what_is_new(place: str, overlap: bool) -> None:
    """512 tokens paused, 8 appended: those 8 are computed, and the one that was sampled last."""
    engine = FakeEngine(
        num_blocks=48, block_size=16, overlap=overlap, max_model_len=700, preemption_mode="swap",
        host_blocks=40 if place == "host" else 0, disk_blocks=40 if place == "disk" else 0,
    )  # fmt: skip
    prompt = [i % 997 for i in range(504)]
    name = engine.add(prompt, 8, on_stop="pause")
    engine.run()
    seq = engine.seq(name)
    assert len(seq.token_ids) == 512
    if place != "device":
        engine.add([(7 * i) % 991 for i in range(700 - 10)], 4)
        engine.run()
    assert seq.snapshot(engine.core.blocks.slots.host_blocks).residency == place
    more = list(range(600, 608))
    engine.resume(name, append=more, max_tokens=4)
    engine.run()
    assert 8 <= computed_after(engine.of(object), seq.seq_id) <= 8 + 16
    spoken = solo(prompt, 8)
    engine.finish(name)
    assert engine.ids(name) == spoken + solo(prompt + spoken + more, 4)
    engine.check_empty()


@pytest.mark.parametrize("place", ["device", "host", "disk"])
def test_a_resume_of_a_real_model_computes_what_is_new(place: str, tmp_path: Any) -> None:
    swap: dict[str, Any] = {"host_blocks": 40} if place == "host" else {}
    if place == "disk":
        swap = {"disk_blocks": 40, "swap_path": tmp_path / "swap"}
    with tiny_llm(num_blocks=48, block_size=16, **swap) as llm:
        events = recorded(llm)
        [turn] = llm.generate([prompt_of(504)], greedy(8, on_stop="pause"), use_tqdm=False)
        if place != "device":
            llm.generate([prompt_of(690, 1)], greedy(4), use_tqdm=False)
        [mine] = llm.engine.snapshot().sequences
        assert mine.residency == place and len(turn.outputs[0].token_ids) == 8
        more = prompt_of(8, 2)
        answer = llm.resume(turn.request_id, more, 4)
        llm.engine.core.flush()
        assert 8 <= computed_after(events, mine.seq) <= 8 + 16
        spoken = turn.outputs[0].token_ids
        llm.finish(turn.request_id)
        [whole] = llm.generate([prompt_of(504) + spoken + more], greedy(4), use_tqdm=False)
        assert answer.outputs[0].token_ids == spoken + whole.outputs[0].token_ids
