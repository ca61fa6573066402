"""The core loop: tokens in, outputs out, and what ends a request. On a fake model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from fake_engine import VOCAB_SIZE, FakeEngine, solo
from nanolens.engine.outputs import Delta, RequestOutput
from nanolens.engine.plan import StepPlan
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import AuditError, InvalidRequest, PromptTooLong
from nanolens.telemetry.events import (
    BlocksFreed,
    CallbackFailed,
    EngineError,
    EngineStarted,
    EngineStopped,
    RequestArrived,
    RequestFinished,
    RequestRefused,
    StatusChanged,
    StepFinished,
    StepPlanned,
    TokensSampled,
)

OVERLAP = pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlap"])


def prompt(first: int, number: int) -> list[int]:
    return list(range(first, first + number))


def idle(engine: FakeEngine) -> bool:
    """Whether nothing of a request is left anywhere."""
    core = engine.core
    return (
        not core.has_work
        and not core.scheduler.waiting
        and not core.scheduler.running
        and core.blocks.num_free == core.blocks.num_blocks
        and not any(core.blocks.refs)
    )


# Tokens


@OVERLAP
@pytest.mark.parametrize("batching", ["mixed", "prefill_first"])
@pytest.mark.parametrize("num_blocks", [7, 64])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_tokens_are_those_of_a_run_alone(overlap: bool, batching: str, num_blocks: int, prefix_cache: bool) -> None:
    engine = FakeEngine(
        overlap=overlap, batching=batching, num_blocks=num_blocks, prefix_cache=prefix_cache,
        max_num_batched_tokens=16, max_prefill_chunk=5,
    )  # fmt: skip
    prompts = [prompt(0, 3 + i) if i % 2 else prompt(i * 40, 3 + i) for i in range(9)]
    names = [engine.add(tokens, 4 + i) for i, tokens in enumerate(prompts)]
    engine.run()
    for i, name in enumerate(names):
        assert engine.ids(name) == solo(prompts[i], 4 + i)
    assert idle(engine)


@OVERLAP
def test_the_siblings_of_a_request_share_its_prompt_and_end_one_by_one(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    name = engine.add(prompt(0, 9), 5, n=4)
    output = engine.run()[name]
    assert [o.index for o in output.outputs] == [0, 1, 2, 3]
    assert all(o.token_ids == solo(prompt(0, 9), 5) and o.finish_reason == "length" for o in output.outputs)
    assert len(engine.of(RequestFinished)) == 1 and engine.of(RequestFinished)[0].num_output_tokens == 20
    assert idle(engine)


@OVERLAP
def test_steps_in_flight_are_at_most_two_and_none_is_left_unread(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    engine.add(prompt(0, 4), 6)
    in_flight = []
    while engine.step():
        in_flight.append(engine.runner.in_flight)
    assert max(in_flight) == (1 if overlap else 0) and engine.runner.in_flight == 0
    assert [e.step for e in engine.of(StepFinished)] == [e.step for e in engine.of(StepPlanned)]


def test_with_nothing_to_do_a_step_says_so_and_records_nothing() -> None:
    engine = FakeEngine()
    assert not engine.has_work and not engine.step()
    assert [type(event) for event in engine.events] == [EngineStarted]


# Ends


@OVERLAP
def test_a_stop_token_ends_the_text_and_is_its_last_token(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    expected = solo(prompt(0, 4), 9)
    output = engine.outputs
    name = engine.add(prompt(0, 4), 9, stop_token_ids=[expected[4]])
    engine.run()
    assert engine.ids(name) == expected[:5]
    assert (output[name].outputs[0].finish_reason, output[name].outputs[0].stop_reason) == ("stop", expected[4])


@OVERLAP
def test_the_models_end_of_sequence_has_no_stop_reason(overlap: bool) -> None:
    expected = solo(prompt(0, 4), 9)
    engine = FakeEngine(overlap=overlap, eos=frozenset({expected[2], 999}))
    name = engine.add(prompt(0, 4), 9)
    engine.run()
    assert engine.ids(name) == expected[:3]
    assert engine.outputs[name].outputs[0].finish_reason == "stop"
    assert engine.outputs[name].outputs[0].stop_reason is None


def test_ignore_eos_goes_past_the_models_end_but_not_past_an_own_stop() -> None:
    expected = solo(prompt(0, 4), 9)
    engine = FakeEngine(eos=frozenset({expected[2]}))
    past = engine.add(prompt(0, 4), 9, ignore_eos=True)
    own = engine.add(prompt(0, 4), 9, ignore_eos=True, stop_token_ids=[expected[2]])
    engine.run()
    assert engine.ids(past) == expected
    assert engine.ids(own) == expected[:3] and engine.outputs[own].outputs[0].stop_reason == expected[2]


def test_min_tokens_holds_off_a_stop() -> None:
    expected = solo(prompt(0, 4), 9)
    engine = FakeEngine(eos=frozenset({expected[0], expected[1], expected[5]}))
    name = engine.add(prompt(0, 4), 9, min_tokens=4)
    engine.run()
    assert engine.ids(name) == expected[:6]


@OVERLAP
def test_a_sequence_ends_at_max_model_len(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap, max_model_len=12)
    name = engine.add(prompt(0, 9), None)
    engine.run()
    assert engine.ids(name) == solo(prompt(0, 9), 3)
    assert engine.outputs[name].outputs[0].finish_reason == "length"


@OVERLAP
def test_a_sequence_may_fill_the_whole_pool(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap, num_blocks=4)
    name = engine.add(prompt(0, 5), None)
    other = engine.add(prompt(50, 15), None)
    engine.run()
    assert engine.ids(name) == solo(prompt(0, 5), 11)
    assert engine.ids(other) == solo(prompt(50, 15), 1)


def test_no_token_is_computed_after_the_last_one_may_have_come() -> None:
    engine = FakeEngine(overlap=True)
    engine.add(prompt(0, 4), 5)
    engine.run()
    assert sum(event.num_sampled for event in engine.of(StepFinished)) == 5
    assert all(not event.wasted for event in engine.of(StepFinished))


def test_a_token_that_came_too_late_is_recorded_as_wasted() -> None:
    expected = solo(prompt(0, 4), 9)
    engine = FakeEngine(overlap=True, eos=frozenset({expected[3]}))
    name = engine.add(prompt(0, 4), 9)
    engine.run()
    assert engine.ids(name) == expected[:4]
    assert [event.wasted for event in engine.of(StepFinished)] == [[], [], [], [], [0]]
    assert engine.core.recorder.totals.counts["generated_tokens"] == 4


# Abort


@OVERLAP
@pytest.mark.parametrize("after", range(12))
def test_an_abort_at_any_time_frees_all_and_touches_nobody(overlap: bool, after: int) -> None:
    engine = FakeEngine(overlap=overlap, num_blocks=9, max_prefill_chunk=3, max_num_seqs=3)
    names = [engine.add(prompt(i * 20, 6), 6, n=1 + i % 2) for i in range(4)]
    for _ in range(after):
        engine.step()
    victims = [name for name in names[1:3] if name in engine.core.requests]
    for victim in victims:
        assert engine.abort(victim)
        assert engine.outputs[victim].finished and not engine.abort(victim)
        engine.core.audit()
    engine.run()
    for i, name in enumerate(names):
        for out in engine.outputs[name].outputs:
            expected = solo(prompt(i * 20, 6), 6)
            if name in victims:
                assert out.finish_reason in ("abort", "length") and out.token_ids == expected[: len(out.token_ids)]
            else:
                assert out.token_ids == expected
    assert idle(engine)


def test_an_abort_is_on_record_at_once() -> None:
    engine = FakeEngine()
    name = engine.add(prompt(0, 6), 6)
    engine.step()
    engine.abort(name)
    ends = [event for event in engine.events if isinstance(event, RequestFinished)]  # no flush here
    assert [event.finish_reason for event in ends] == ["abort"]
    assert engine.core.recorder.totals.counts["requests_finished_abort"] == 1
    assert idle(engine)


def test_an_unknown_id_is_no_abort() -> None:
    engine = FakeEngine()
    engine.add(prompt(0, 6), 2)
    before = len(engine.events)
    assert not engine.abort("nobody")
    assert len(engine.of(StatusChanged)) == 1 and len(engine.events) >= before


# Failures


def fail_once(at: int) -> Callable[[StepPlan], Exception | None]:
    return lambda plan: RuntimeError("device lost") if plan.step == at else None


def break_collect(engine: FakeEngine, at: int) -> None:
    """Let the reading of a step fail."""
    steps, launch, collect = {}, engine.runner.launch, engine.runner.collect

    def remember(plan: StepPlan) -> Any:
        handle = launch(plan)
        steps[id(handle)] = (plan.step, handle)
        return handle

    def read(handle: Any) -> Any:
        result = collect(handle)
        if steps[id(handle)][0] == at:
            raise RuntimeError("read failed")
        return result

    engine.runner.launch, engine.runner.collect = remember, read  # type: ignore[method-assign]


@OVERLAP
@pytest.mark.parametrize("where", ["launch", "collect"])
@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_failed_step_ends_its_requests_and_no_others(overlap: bool, where: str, at: int) -> None:
    engine = FakeEngine(overlap=overlap, max_num_seqs=2)
    if where == "launch":
        engine.runner.fail_launch = fail_once(at)
    else:
        break_collect(engine, at)
    names = [engine.add(prompt(i * 20, 6), 8) for i in range(4)]
    engine.run()
    for i, name in enumerate(names):
        output = engine.outputs[name]
        if i < 2:
            assert output.outputs[0].finish_reason == "error"
            assert output.error is not None and output.error.startswith(f"step {at} failed: RuntimeError: ")
        else:
            assert output.error is None and engine.ids(name) == solo(prompt(i * 20, 6), 8)
    assert [event.step for event in engine.of(EngineError)] == [at]
    assert idle(engine)
    again = engine.add(prompt(0, 6), 8)
    engine.run()
    assert engine.ids(again) == solo(prompt(0, 6), 8)


def test_the_runner_hears_of_released_sequences_even_after_a_failed_launch() -> None:
    engine = FakeEngine(max_num_seqs=2)
    short, long = engine.add(prompt(0, 4), 2), engine.add(prompt(20, 4), 9)
    engine.runner.fail_launch = fail_once(3)  # the plan that tells of the first one's end
    engine.run()
    assert engine.ids(short) == solo(prompt(0, 4), 2) and engine.outputs[long].error
    engine.add(prompt(40, 4), 2)
    engine.run()
    engine.add(prompt(60, 4), 2)
    engine.run()
    told = [seq for plan in engine.runner.plans for seq in plan.released]
    assert told == [0, 1, 2]
    assert set(engine.runner.last) == {3}


@OVERLAP
def test_a_row_without_a_valid_token_ends_its_request_only(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    engine.runner.fail_rows = lambda plan: {1: "non-finite logits"} if plan.step == 3 else {}
    names = [engine.add(prompt(i * 20, 6), 8) for i in range(3)]
    engine.run()
    bad = engine.outputs[names[1]]
    assert bad.error == "sequence 1: non-finite logits" and bad.outputs[0].finish_reason == "error"
    assert bad.outputs[0].token_ids == solo(prompt(20, 6), 2)
    for i in (0, 2):
        assert engine.ids(names[i]) == solo(prompt(i * 20, 6), 8)
    assert not engine.of(EngineError) and idle(engine)
    assert engine.core.recorder.totals.counts["generated_tokens"] == 8 + 2 + 8


@OVERLAP
def test_a_failing_sequence_takes_its_siblings_along(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    engine.runner.fail_rows = lambda plan: {1: "non-finite logits"} if plan.step == 4 else {}
    name = engine.add(prompt(0, 6), 8, n=3)
    engine.run()
    assert [out.finish_reason for out in engine.outputs[name].outputs] == ["error"] * 3
    kept = sum(len(out.token_ids) for out in engine.outputs[name].outputs)
    assert engine.of(RequestFinished)[0].num_output_tokens == kept
    assert engine.core.recorder.totals.counts["generated_tokens"] == kept
    assert idle(engine)


def test_a_failed_request_tells_its_stream() -> None:
    engine, deltas = FakeEngine(), []
    engine.runner.fail_launch = fail_once(3)
    engine.add_request(prompt(0, 6), SamplingParams(max_tokens=9), on_output=deltas.append)
    engine.run()
    assert [delta.finish_reason for delta in deltas] == [None, None, "error"]
    assert deltas[-1].token_ids == []


def test_a_state_that_contradicts_itself_is_found_by_the_audit() -> None:
    engine = FakeEngine()
    engine.add(prompt(0, 6), 9)
    engine.step()
    engine.core.scheduler.running.clear()
    with pytest.raises(AuditError, match=r"RUNNING queue holds \[\], live sequences are \[0\]"):
        engine.core.audit()


# Callbacks


@OVERLAP
def test_deltas_join_to_the_output(overlap: bool) -> None:
    engine, deltas, done = FakeEngine(overlap=overlap), [], []
    params = SamplingParams(max_tokens=5, n=2)
    engine.add_request(prompt(0, 6), params, on_output=deltas.append, on_finish=done.append)
    engine.run()
    [output] = done
    for out in output.outputs:
        own = [delta for delta in deltas if delta.index == out.index]
        assert [token for delta in own for token in delta.token_ids] == out.token_ids == solo(prompt(0, 6), 5)
        assert [delta.finish_reason for delta in own] == [None] * 4 + ["length"]


def test_a_callback_that_raises_touches_nothing_else() -> None:
    def broken(value: object) -> None:
        raise KeyError("mine")

    engine = FakeEngine()
    beside = engine.add(prompt(20, 6), 4)
    name = engine.add_request(prompt(0, 6), SamplingParams(max_tokens=3), on_output=broken, on_finish=broken)
    engine.run()
    assert engine.ids(beside) == solo(prompt(20, 6), 4)
    failures = engine.of(CallbackFailed)
    assert [event.request for event in failures] == [name] * 4
    assert failures[0].message == "KeyError: 'mine'"
    assert idle(engine)


@OVERLAP
def test_a_callback_may_abort_its_own_request(overlap: bool) -> None:
    engine, done = FakeEngine(overlap=overlap), []

    def stop_at_two(delta: Delta) -> None:
        if len(engine.core.requests["mine"].sequences[0].output_token_ids) == 2:
            engine.abort("mine")

    params = SamplingParams(max_tokens=9, n=2)
    engine.add_request(prompt(0, 6), params, request_id="mine", on_output=stop_at_two, on_finish=done.append)
    beside = engine.add(prompt(20, 6), 6)
    engine.run()
    [output] = done
    assert [out.finish_reason for out in output.outputs] == ["abort", "abort"]
    assert engine.ids(beside) == solo(prompt(20, 6), 6)
    assert not engine.of(CallbackFailed) and idle(engine)


def test_a_step_is_recorded_whole_though_a_callback_aborts_amid_it() -> None:
    engine = FakeEngine(overlap=True)
    first = engine.add(prompt(0, 6), 9)
    batches: list[list[Any]] = []
    engine.core.recorder.subscribe(lambda batch: batches.append(copy.deepcopy(list(batch))))
    victim = engine.add(prompt(20, 6), 9)
    params = SamplingParams(max_tokens=2)
    engine.add_request(prompt(40, 6), params, on_output=lambda delta: engine.abort(victim) and None)
    other = engine.add(prompt(60, 6), 9)
    engine.core.requests[first].on_output = lambda delta: engine.abort(other) and None
    engine.run()
    as_read = [event for batch in batches for event in batch if isinstance(event, StepFinished)]
    assert as_read == engine.of(StepFinished)
    assert any(3 in event.wasted for event in as_read)
    kept = sum(len(out.outputs[0].token_ids) for out in engine.outputs.values()) + 2
    assert engine.core.recorder.totals.counts["generated_tokens"] == kept


def test_a_callback_may_add_a_request() -> None:
    engine = FakeEngine()
    added: list[str] = []

    def follow_up(output: RequestOutput) -> None:
        added.append(engine.add([*output.prompt_token_ids, *output.outputs[0].token_ids], 3))

    engine.add_request(prompt(0, 6), SamplingParams(max_tokens=4, temperature=0), on_finish=follow_up)
    engine.run()
    assert engine.ids(added[0]) == solo([*prompt(0, 6), *solo(prompt(0, 6), 4)], 3)


# The record


def test_the_events_of_a_request_come_in_order() -> None:
    engine = FakeEngine()
    engine.add(prompt(0, 5), 2)
    engine.run()
    kinds = [event.__struct_config__.tag for event in engine.events]
    assert kinds == [
        "engine.started", "request.arrived", "sequence.status",  # arrived
        "sequence.status", "prefix.matched", "blocks.allocated", "step.planned", "step.finished", "blocks.cached",
        "step.planned", "step.finished", "sequence.status", "blocks.freed", "request.finished",
    ]  # fmt: skip


def test_times_never_go_back_and_steps_are_counted_from_one() -> None:
    engine = FakeEngine(overlap=True, num_blocks=7)
    for i in range(4):
        engine.add(prompt(i * 20, 6), 8)
    engine.run()
    planned = [event.step for event in engine.of(StepPlanned)]
    assert planned == list(range(1, len(planned) + 1))
    times = [event.t for event in engine.events if not isinstance(event, RequestArrived)]
    assert times == sorted(times)


def test_what_an_arrival_records() -> None:
    engine = FakeEngine()
    name = engine.add_request(
        prompt(0, 4), SamplingParams(max_tokens=5, n=2, seed=11, stop_token_ids=[3]), priority=2, traceparent="00-ab"
    )
    [event] = engine.of(RequestArrived)
    assert (event.request, event.seqs, event.num_prompt_tokens, event.max_tokens) == (name, [0, 1], 4, 5)
    assert (event.priority, event.traceparent, event.prompt_token_ids) == (2, "00-ab", None)
    assert event.params["seed"] == 11 and event.params["num_stop_token_ids"] == 1
    assert [seq.seed for seq in engine.core.requests[name].sequences] == [11, 12]


def test_unseeded_requests_get_seeds_of_their_own_that_are_on_record() -> None:
    engine, same = FakeEngine(), FakeEngine()
    for one in (engine, same):
        for _ in range(3):
            one.add(prompt(0, 4), 1)
    seeds = [event.params["seed"] for event in engine.of(RequestArrived)]
    assert len(set(seeds)) == 3 and all(0 <= seed < 2**63 for seed in seeds)
    assert seeds == [event.params["seed"] for event in same.of(RequestArrived)]  # the engine's own seed is 0


def test_content_is_on_record_only_when_asked_for() -> None:
    for content in (False, True):
        engine = FakeEngine(journal_content=content)
        name = engine.add(prompt(0, 4), 3)
        engine.run()
        sampled = [token for event in engine.of(TokensSampled) for token in event.tokens]
        assert sampled == (engine.ids(name) if content else [])
        assert engine.of(RequestArrived)[0].prompt_token_ids == (prompt(0, 4) if content else None)


def test_metrics_are_the_times_on_record() -> None:
    engine = FakeEngine(max_num_seqs=1)
    engine.add(prompt(0, 4), 3)
    name = engine.add(prompt(20, 4), 3)
    engine.run()
    metrics = engine.outputs[name].metrics
    assert metrics is not None
    own = [event for event in engine.of(StatusChanged) if event.seq == 1]
    reads = [event.t for event in engine.of(StepFinished)][3:]
    assert metrics.arrived_t == engine.of(RequestArrived)[1].t
    assert metrics.first_scheduled_t == own[1].t and metrics.finished_t == own[2].t
    assert (metrics.first_token_t, metrics.last_token_t) == (reads[0], reads[-1])


# The end


@OVERLAP
def test_close_aborts_what_is_left_and_reads_what_is_in_flight(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap, max_num_seqs=2)
    names = [engine.add(prompt(i * 20, 6), 9) for i in range(3)]
    engine.step()
    engine.close()
    assert all(engine.outputs[name].outputs[0].finish_reason == "abort" for name in names)
    assert engine.runner.closed and engine.runner.in_flight == 0
    assert isinstance(engine.events[-1], EngineStopped)
    assert [e.step for e in engine.of(StepFinished)] == [e.step for e in engine.of(StepPlanned)]
    assert len(engine.of(BlocksFreed)) == 2 and idle(engine)


def test_a_second_close_does_nothing() -> None:
    engine = FakeEngine()
    engine.close()
    number = len(engine.events)
    engine.close()
    assert len(engine.events) == number


def test_close_gets_through_though_the_last_step_can_not_be_read() -> None:
    engine = FakeEngine(overlap=True)
    engine.add(prompt(0, 6), 9)
    break_collect(engine, 1)
    engine.step()
    engine.close()
    assert engine.runner.closed and isinstance(engine.events[-1], EngineStopped)


# Bad requests


@pytest.mark.parametrize(
    ("tokens", "params", "field", "message"),
    [
        ([-1], {}, "prompt", f"prompt[0]=-1: must be a token id from 0 to {VOCAB_SIZE - 1}"),
        ([3, VOCAB_SIZE], {}, "prompt", f"prompt[1]={VOCAB_SIZE}: must be a token id from 0 to {VOCAB_SIZE - 1}"),
        ([], {}, "prompt", "prompt is empty: at least one token is needed"),
        ("text", {}, "prompt", "this model has no tokenizer: send token ids"),
        (7, {}, "prompt", "prompt: must be a text or a list of token ids, not int"),
        ([1], {"stop_token_ids": [VOCAB_SIZE + 7]}, "stop_token_ids",
         f"stop_token_ids[0]={VOCAB_SIZE + 7}: must be a token id from 0 to {VOCAB_SIZE - 1}"),
        ([1], {"logit_bias": {VOCAB_SIZE: 5}}, "logit_bias",
         f"logit_bias {{{VOCAB_SIZE}}}: must be a token id from 0 to {VOCAB_SIZE - 1}"),
        ([1], {"max_tokens": 0}, "max_tokens", "max_tokens=0: must be at least 1"),
        ([1], {"top_k": -2}, "top_k", "top_k=-2: must be at least -1 (0 and -1 turn it off)"),
        ([1], {"stop": ["x"]}, "stop",
         "stop strings need a tokenizer; this model has none: use stop_token_ids"),
        ([1], {"bad_words": ["x"]}, "bad_words",
         "bad words need a tokenizer; this model has none: use logit_bias"),
    ],
)  # fmt: skip
def test_a_bad_request_is_refused_in_words_and_its_neighbour_goes_on(
    tokens: Any, params: dict[str, Any], field: str, message: str
) -> None:
    engine = FakeEngine()
    healthy = engine.add(prompt(0, 6), 6)
    engine.step()
    with pytest.raises(InvalidRequest) as refused:
        engine.add_request(tokens, SamplingParams(**params))
    assert (refused.value.field, str(refused.value)) == (field, message)
    assert engine.core.requests.keys() == {healthy} and not engine.core.scheduler.waiting
    engine.run()
    assert engine.ids(healthy) == solo(prompt(0, 6), 6)


def test_a_prompt_must_leave_room_for_a_token() -> None:
    engine = FakeEngine(num_blocks=4)
    with pytest.raises(PromptTooLong, match=r"prompt has 16 tokens: at most 15 fit, since max_model_len=16 holds"):
        engine.add(prompt(0, 16), 1)
    fits = engine.add(prompt(0, 15), 5)
    engine.run()
    assert engine.ids(fits) == solo(prompt(0, 15), 1)


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    engine = FakeEngine()
    engine.add_request(prompt(0, 4), SamplingParams(max_tokens=2), request_id="one")
    with pytest.raises(InvalidRequest, match="request_id='one': a live request has this id"):
        engine.add_request(prompt(20, 4), SamplingParams(max_tokens=2), request_id="one")
    [refused] = engine.of(RequestRefused)
    assert (refused.request, refused.field, refused.reason) == ("one", "request_id", "InvalidRequest")
    engine.run()
    engine.add_request(prompt(0, 4), SamplingParams(max_tokens=2), request_id="one")
    engine.run()
    assert len(engine.of(RequestFinished)) == 2 and idle(engine)
