"""The offline API on a real engine: generate, chat, stream, what they return, and what is left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanolens.engine.llm import LLM
from nanolens.engine.outputs import RequestOutput
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import InvalidRequest
from nanolens.inspector.trace_cli import main as nano_trace
from nanolens.telemetry.events import (
    AnyEvent,
    EngineStopped,
    PrefixMatched,
    RequestArrived,
    RequestFinished,
    SequencePreempted,
    StatusChanged,
)
from nanolens.telemetry.reader import JournalReader
from real_engine import greedy, ids_of, is_idle, preemptions, prompt_of, recorded, tiny_llm
from tiny_models import save_tiny
from tiny_tokenizers import byte_level_tokenizer

QUESTION = [{"role": "user", "content": "Which way is up?"}]


def sampled(max_tokens: int = 12, **params: Any) -> SamplingParams:
    return SamplingParams(**({"temperature": 0.8, "seed": 3, "ignore_eos": True, "max_tokens": max_tokens} | params))


# generate


def test_outputs_come_in_the_order_of_the_prompts_whoever_ends_first() -> None:
    prompts = [prompt_of(4 + i, i) for i in range(6)]
    params = [greedy(24 - 4 * i) for i in range(6)]
    with tiny_llm() as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert [output.prompt_token_ids for output in outputs] == prompts
        assert [len(ids) for ids in ids_of(outputs)] == [24, 20, 16, 12, 8, 4]
        finished = sorted((output.request_id for output in outputs), key=lambda name: when(outputs, name))
        assert finished == [output.request_id for output in reversed(outputs)]
        for prompt, own, output in zip(prompts, params, outputs, strict=True):
            assert ids_of(llm.generate([prompt], own, use_tqdm=False)) == ids_of([output])


def when(outputs: list[RequestOutput], name: str) -> int:
    metrics = next(output.metrics for output in outputs if output.request_id == name)
    assert metrics is not None
    return metrics.finished_t


def test_one_prompt_of_text_or_ids_gives_one_output() -> None:
    with tiny_llm() as llm:
        by_text, by_ids = (llm.generate(prompt, greedy(5), use_tqdm=False) for prompt in ("hello", list(b"hello")))
        assert len(by_text) == len(by_ids) == 1
        assert (by_text[0].prompt, by_ids[0].prompt) == ("hello", None)
        assert by_text[0].outputs == by_ids[0].outputs
        assert llm.generate([], greedy(5), use_tqdm=False) == []


def test_text_is_what_the_tokens_decode_to() -> None:
    with tiny_llm() as llm:
        output = llm.generate("hello", greedy(30), use_tqdm=False)[0].outputs[0]
        assert llm.engine.tokenizer is not None
        assert output.text == llm.engine.tokenizer.decode(output.token_ids)
        assert (output.finish_reason, output.stop_reason, output.index) == ("length", None, 0)


@pytest.mark.parametrize("shown", [True, False])
def test_a_progress_bar_counts_requests_and_can_be_switched_off(
    shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with tiny_llm() as llm:
        llm.generate([[1], [2], [3]], greedy(4), use_tqdm=shown)
    bar = capsys.readouterr().err
    assert ("3/3" in bar and "requests" in bar) is shown
    assert bool(bar) is shown


def test_a_list_of_params_fits_the_prompts_one_by_one() -> None:
    with tiny_llm() as llm:
        one, two = llm.generate(["a", "a"], [greedy(3), sampled(7)], use_tqdm=False)
        assert (len(one.outputs[0].token_ids), len(two.outputs[0].token_ids)) == (3, 7)


def test_several_sequences_of_a_request_differ_and_each_is_that_of_its_seed() -> None:
    with tiny_llm() as llm:
        both = llm.generate("hello", sampled(n=2), use_tqdm=False)[0]
        assert [output.index for output in both.outputs] == [0, 1]
        assert both.outputs[0].token_ids != both.outputs[1].token_ids
        for index, output in enumerate(both.outputs):
            assert ids_of(llm.generate("hello", sampled(seed=3 + index), use_tqdm=False)) == [output.token_ids]
        metrics = both.metrics
        assert metrics is not None and (metrics.num_prompt_tokens, metrics.num_output_tokens) == (5, 24)


def test_siblings_share_the_blocks_of_their_prompt() -> None:
    with tiny_llm() as llm:
        prompt = prompt_of(17)
        name = llm.engine.add_request(prompt, sampled(n=3))
        while len([seq for seq in llm.engine.snapshot().sequences if seq.status == "RUNNING"]) < 3:
            llm.engine.step()
        tables = [seq.block_table for seq in llm.engine.snapshot().sequences]
        assert len({tuple(table[:4]) for table in tables}) == 1  # 16 of 17 tokens are in whole blocks
        llm.engine.abort(name)
        assert is_idle(llm.engine.snapshot())


# log-probabilities


def test_logprobs_have_an_entry_a_token_with_the_alternatives_asked_for() -> None:
    with tiny_llm() as llm:
        output = llm.generate("hello", sampled(9, logprobs=3), use_tqdm=False)[0].outputs[0]
        assert output.logprobs is not None and len(output.logprobs) == 9
        for token, entry in zip(output.token_ids, output.logprobs, strict=True):
            assert entry.token_id == token and len(entry.top) == 3
            values = [value for _, value in entry.top]
            assert values == sorted(values, reverse=True) and values[0] <= 0
            assert (entry.rank == 1) == (entry.top[0][0] == token)
            if entry.rank <= 3:
                assert entry.top[entry.rank - 1] == (token, entry.logprob)
        assert output.cumulative_logprob == pytest.approx(sum(entry.logprob for entry in output.logprobs))


def test_prompt_logprobs_have_an_entry_a_prompt_token_and_none_for_the_first() -> None:
    with tiny_llm() as llm:
        output = llm.generate("hello", greedy(2, prompt_logprobs=2), use_tqdm=False)[0]
        found = output.prompt_logprobs
        assert found is not None and len(found) == 5 and found[0] is None
        for token, entry in zip(list(b"hello")[1:], found[1:], strict=True):
            assert entry is not None and entry.token_id == token and len(entry.top) == 2


def test_nothing_is_reported_that_was_not_asked_for() -> None:
    with tiny_llm() as llm:
        output = llm.generate("hello", greedy(2), use_tqdm=False)[0]
        assert output.prompt_logprobs is None
        assert output.outputs[0].logprobs is None and output.outputs[0].cumulative_logprob is None


def test_logprobs_are_those_that_the_prompt_has_when_the_output_is_fed_back() -> None:
    with tiny_llm() as llm:
        first = llm.generate("hello", sampled(9, logprobs=0), use_tqdm=False)[0].outputs[0]
        again = llm.generate([list(b"hello") + first.token_ids], greedy(1, prompt_logprobs=0), use_tqdm=False)[0]
        assert first.logprobs is not None and again.prompt_logprobs is not None
        for one, other in zip(first.logprobs, again.prompt_logprobs[5:], strict=True):
            assert other is not None
            assert (one.token_id, one.rank) == (other.token_id, other.rank)
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


# chat


def test_chat_answers_one_conversation_or_many_through_the_template() -> None:
    with tiny_llm() as llm:
        assert llm.engine.tokenizer is not None
        one = llm.chat(QUESTION, greedy(6), use_tqdm=False)
        two = llm.chat([QUESTION, [{"role": "system", "content": "x"}, *QUESTION]], greedy(6), use_tqdm=False)
        assert [len(one), len(two)] == [1, 2]
        assert one[0].prompt_token_ids == llm.engine.tokenizer.apply_chat_template(QUESTION)
        assert ids_of(two)[0] == ids_of(one)[0] and two[1].prompt_token_ids != two[0].prompt_token_ids


# stream


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "params",
    [sampled(40), sampled(40, n=2), sampled(40, stop=["\ufffd", "q"]), sampled(1)],
    ids=["one", "two", "stop", "a token"],
)
def test_deltas_join_to_what_generate_gives(params: SamplingParams, overlap: bool) -> None:
    with tiny_llm(overlap=overlap) as llm:
        whole = llm.generate("hello", params, use_tqdm=False)[0]
        deltas = list(llm.stream("hello", params))
        for output in whole.outputs:
            own = [delta for delta in deltas if delta.index == output.index]
            assert "".join(delta.text for delta in own) == output.text
            assert [token for delta in own for token in delta.token_ids] == output.token_ids
            assert [delta.finish_reason for delta in own[:-1]] == [None] * (len(own) - 1)
            assert (own[-1].finish_reason, own[-1].stop_reason) == (output.finish_reason, output.stop_reason)
        assert is_idle(llm.engine.snapshot())


def test_a_stream_comes_while_it_is_computed() -> None:
    with tiny_llm() as llm:
        stream = llm.stream("hello", sampled(20))
        for expected in range(1, 6):
            next(stream)
            assert llm.engine.snapshot().sequences[0].num_output_tokens == expected
        stream.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("taken", [1, 7])
def test_closing_a_stream_ends_its_request_and_frees_every_block(taken: int, overlap: bool) -> None:
    with tiny_llm(overlap=overlap) as llm:
        events = recorded(llm)
        stream = llm.stream("hello", sampled(100, n=2))
        for _ in range(taken):
            next(stream)
        stream.close()  # type: ignore[attr-defined]
        assert is_idle(llm.engine.snapshot())
        assert [event.finish_reason for event in events if isinstance(event, RequestFinished)] == ["abort"]
        assert ids_of(llm.generate("hello", sampled(), use_tqdm=False))[0]


def test_two_streams_read_in_turn_give_each_its_own() -> None:
    with tiny_llm() as llm:
        alone = [[delta.text for delta in llm.stream(text, sampled(15))] for text in ("hello", "good day")]
        streams = [llm.stream("hello", sampled(15)), llm.stream("good day", sampled(15))]
        found: list[list[str]] = [[], []]
        for _ in range(15):
            for texts, stream in zip(found, streams, strict=True):
                texts += [delta.text for delta in [next(stream, None)] if delta is not None]
        assert ["".join(texts) for texts in found] == ["".join(texts) for texts in alone]


def test_a_bad_stream_is_refused_at_the_first_step() -> None:
    with tiny_llm() as llm:
        stream = llm.stream("")
        with pytest.raises(InvalidRequest, match="prompt is empty"):
            next(stream)


# the model's own defaults


@pytest.fixture(scope="module")
def model_with_defaults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model that suggests near-greedy sampling and knows two ends."""
    directory = tmp_path_factory.mktemp("model")
    save_tiny(directory, vocab_size=len(byte_level_tokenizer()), eos_token_id=2)
    byte_level_tokenizer().save_pretrained(directory)
    defaults = {"temperature": 0.7, "top_k": 1, "top_p": 0.9, "repetition_penalty": 1.1, "eos_token_id": [5, 9]}
    (directory / "generation_config.json").write_text(json.dumps(defaults))
    return directory


def test_the_models_defaults_hold_where_a_request_is_silent(model_with_defaults: Path) -> None:
    with LLM(str(model_with_defaults), num_blocks=64, device="cpu", seed=1) as llm:
        events = recorded(llm)
        llm.generate("hello", SamplingParams(max_tokens=3), use_tqdm=False)
        llm.generate("hello", SamplingParams(max_tokens=3, temperature=0.0, top_k=0, top_p=0.5), use_tqdm=False)
        params = [event.params for event in events if isinstance(event, RequestArrived)]
    names = ("temperature", "top_k", "top_p", "repetition_penalty", "min_p")
    assert [params[0][name] for name in names] == [0.7, 1, 0.9, 1.1, 0.0]
    assert [params[1][name] for name in names] == [0.0, 0, 0.5, 1.1, 0.0]


def test_the_models_defaults_change_the_tokens_and_a_request_overrides_them(model_with_defaults: Path) -> None:
    with LLM(str(model_with_defaults), num_blocks=64, device="cpu") as llm:
        own = SamplingParams(max_tokens=12, ignore_eos=True)
        silent = llm.generate("hello", own, use_tqdm=False)
        said = llm.generate("hello", replace(own, temperature=0.0, repetition_penalty=1.1), use_tqdm=False)
        free = llm.generate("hello", replace(own, top_k=0, top_p=1.0, temperature=1.5, seed=4), use_tqdm=False)
    assert ids_of(silent) == ids_of(said) != ids_of(free)


@pytest.mark.parametrize("end", [2, 5, 9])
def test_every_end_of_the_model_ends_a_text(model_with_defaults: Path, end: int) -> None:
    forced = SamplingParams(max_tokens=8, logit_bias={end: 100.0})
    with LLM(str(model_with_defaults), num_blocks=64, device="cpu") as llm:
        output = llm.generate("hello", forced, use_tqdm=False)[0].outputs[0]
        ignoring = llm.generate("hello", replace(forced, ignore_eos=True), use_tqdm=False)[0].outputs[0]
    assert (output.token_ids, output.finish_reason, output.stop_reason, output.text) == ([end], "stop", None, "")
    assert (ignoring.token_ids, ignoring.finish_reason) == ([end] * 8, "length")


# ends


def test_a_context_manager_ends_what_is_left_and_the_journal(tmp_path: Path) -> None:
    with tiny_llm(journal=str(tmp_path)) as llm:
        outputs: list[RequestOutput] = []
        llm.engine.add_request("hello", sampled(50), on_finish=outputs.append)
        llm.engine.step()
    assert [output.outputs[0].finish_reason for output in outputs] == ["abort"]
    assert isinstance(events_of(tmp_path)[-1], EngineStopped)
    llm.close()


def events_of(journal: Path) -> list[AnyEvent]:
    return [event for frame in JournalReader(journal).frames() for event in frame.events]


@pytest.mark.parametrize("overlap", [False, True])
def test_an_interrupt_inside_generate_ends_every_request_and_the_engine_serves_on(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tiny_llm(num_blocks=16, overlap=overlap) as llm:
        events = recorded(llm)
        expected = ids_of(llm.generate("hello", greedy(6), use_tqdm=False))
        steps, step = 0, llm.engine.step

        def interrupted() -> bool:
            nonlocal steps
            steps += 1
            if steps == 6:
                raise KeyboardInterrupt
            return step()

        monkeypatch.setattr(llm.engine, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate([prompt_of(12, i) for i in range(6)], greedy(20), use_tqdm=False)
        monkeypatch.undo()
        assert is_idle(llm.engine.snapshot())
        reasons = [event.finish_reason for event in events if isinstance(event, RequestFinished)]
        assert reasons == ["length"] + ["abort"] * 6
        assert ids_of(llm.generate("hello", greedy(6), use_tqdm=False)) == expected


class FourthCall:
    """Interrupts the fourth time that it is called; else gives back what it is given."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, given: Any) -> Any:
        self.calls += 1
        if self.calls == 4:
            raise KeyboardInterrupt
        return given


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("where", ["callback", "launch", "collect"])
def test_an_interrupt_inside_a_step_ends_its_requests_in_error_and_the_engine_serves_on(
    where: str, overlap: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens of such a step are lost: no request of it may go on as if nothing had been."""
    with tiny_llm(overlap=overlap, journal=str(tmp_path)) as llm:
        outputs: list[RequestOutput] = []
        fourth = FourthCall()
        on_output = fourth if where == "callback" else None
        for i in range(3):
            llm.engine.add_request(prompt_of(6, i), sampled(20), on_output=on_output, on_finish=outputs.append)
        if where != "callback":
            real = getattr(llm.engine.core.runner, where)
            monkeypatch.setattr(llm.engine.core.runner, where, lambda given: real(fourth(given)))
        with pytest.raises(KeyboardInterrupt):
            while llm.engine.step():
                pass
        monkeypatch.undo()
        assert [output.outputs[0].finish_reason for output in outputs] == ["error"] * 3
        assert all("KeyboardInterrupt" in (output.error or "") for output in outputs)
        while llm.engine.step():
            pass
        assert is_idle(llm.engine.snapshot())
        assert len(ids_of(llm.generate("hello", sampled(6), use_tqdm=False))[0]) == 6
    assert nano_trace(["check", str(tmp_path)]) == 0


# metrics


def test_metrics_are_what_the_journal_says(tmp_path: Path) -> None:
    prompts = [prompt_of(12)[: 4 * (i % 3)] + prompt_of(6, i) for i in range(8)]
    with tiny_llm(num_blocks=20, journal=str(tmp_path)) as llm:
        outputs = llm.generate(prompts, sampled(20), use_tqdm=False)
        outputs += llm.generate(prompts, sampled(20, n=2), use_tqdm=False)
    events = events_of(tmp_path)
    assert preemptions(events) > 0
    arrived = {event.request: event for event in events if isinstance(event, RequestArrived)}
    finished = {event.request: event for event in events if isinstance(event, RequestFinished)}
    for output in outputs:
        metrics, seqs = output.metrics, set(arrived[output.request_id].seqs)
        assert metrics is not None
        end = finished[output.request_id]
        assert (metrics.num_prompt_tokens, metrics.num_output_tokens, metrics.num_cached_tokens) == (
            end.num_prompt_tokens, end.num_output_tokens, end.num_cached_tokens,
        )  # fmt: skip
        assert metrics.num_output_tokens == sum(len(each.token_ids) for each in output.outputs)
        lost = [event for event in events if isinstance(event, SequencePreempted) and event.seq in seqs]
        assert metrics.num_preemptions == len(lost)
        first = next(event for event in events if isinstance(event, PrefixMatched) and event.seq == min(seqs))
        assert metrics.num_cached_tokens == first.hit and not first.recompute
        changes = [event for event in events if isinstance(event, StatusChanged) and event.seq in seqs]
        admitted = min(event.t for event in changes if event.reason == "admitted")
        ended = max(event.t for event in changes if event.new == "FINISHED")
        assert metrics.arrived_t == arrived[output.request_id].t
        assert (metrics.first_scheduled_t, metrics.finished_t) == (admitted, ended)
        assert metrics.arrived_t < metrics.first_scheduled_t < metrics.first_token_t <= metrics.last_token_t
        assert metrics.last_token_t <= metrics.finished_t


def test_metrics_are_there_without_any_recording() -> None:
    with tiny_llm(recording=False) as llm:
        output = llm.generate("hello", greedy(6), use_tqdm=False)[0]
    assert output.metrics is not None
    assert output.metrics.num_output_tokens == 6
    assert output.metrics.ttft_s is not None and output.metrics.ttft_s > 0


# the embedded model


@pytest.mark.model
def test_the_embedded_model_answers_and_stops_by_itself(smollm2: Callable[..., LLM]) -> None:
    llm = smollm2()
    params = SamplingParams(temperature=0.0, max_tokens=32)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    output = llm.chat(question, params, use_tqdm=False)[0].outputs[0]
    assert (output.text, output.finish_reason, output.stop_reason) == ("The capital of France is Paris.", "stop", None)
    deltas = list(llm.stream(llm.engine.chat_prompt(question), params))
    assert "".join(delta.text for delta in deltas) == output.text
    assert len(deltas) == len(output.token_ids)
