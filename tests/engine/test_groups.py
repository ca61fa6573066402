"""Several sequences of one request: how siblings share a prompt, and how an error or an abort of one takes all."""

from __future__ import annotations

from typing import Any

import pytest

from fake_engine import FakeEngine, solo
from nanolens.engine.outputs import Delta, RequestOutput
from nanolens.engine.sampling_params import SamplingParams
from nanolens.telemetry.events import (
    BlockCopied,
    BlocksSwapped,
    PrefixMatched,
    RequestFinished,
    SequencePreempted,
    StatusChanged,
    StepPlanned,
    WaitReasonChanged,
)
from real_engine import prompt_of, recorded, tiny_llm

SIZE = 4  # tokens in a block of the engines here
OVERLAP = pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlap"])
LENGTHS = [1, 2, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE - 1, 2 * SIZE, 2 * SIZE + 1, 5 * SIZE + 2]


def prompt(first: int, number: int) -> list[int]:
    return list(range(first, first + number))


def steps(engine: FakeEngine, count: int) -> None:
    for _ in range(count):
        engine.step()


def chunks_of(engine: FakeEngine, seq: int) -> list[tuple[int, int]]:
    """The prefill work of a sequence: (first position, tokens)."""
    planned = [chunk for event in engine.of(StepPlanned) for chunk in event.chunks]
    return [(start, count) for owner, start, count in planned if owner == seq]


def all_alike(engine: FakeEngine, name: str, tokens: list[int], count: int) -> None:
    """Every sequence of the request has given what it gives alone, and nothing is left."""
    engine.run()
    assert [output.token_ids for output in engine.outputs[name].outputs] == [solo(tokens, count)] * len(
        engine.outputs[name].outputs
    )
    engine.check_empty()


def move_out(engine: FakeEngine) -> None:
    """Have what the sequence paused the longest holds alone moved to the swap space, as under pressure."""
    scheduler = engine.core.scheduler
    assert scheduler.residency.vacate(engine.core.blocks.num_free + 1, scheduler.step, ())


# Copy on write


@OVERLAP
@pytest.mark.parametrize("length", LENGTHS)
def test_siblings_compute_one_token_of_the_prompt(length: int, overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    name = engine.add(prompt(0, length), 6, n=3)
    all_alike(engine, name, prompt(0, length), 6)
    assert chunks_of(engine, 0) == [(0, length)]
    assert chunks_of(engine, 1) == chunks_of(engine, 2) == [(length - 1, 1)]


@pytest.mark.parametrize("length", LENGTHS)
def test_the_block_with_the_last_prompt_token_is_copied_and_the_full_ones_are_shared(length: int) -> None:
    engine = FakeEngine()
    name = engine.add(prompt(0, length), 6, n=2)
    steps(engine, 2)
    leader, sibling = engine.seq(name, 0), engine.seq(name, 1)
    last, copied = divmod(length - 1, SIZE)
    assert sibling.block_table[:last] == leader.block_table[:last]
    assert set(sibling.block_table[last:]).isdisjoint(leader.block_table)
    assert [(event.seq, event.source_seq, event.source, event.target, event.num_tokens)
            for event in engine.of(BlockCopied)] == (
        [(1, 0, leader.block_table[last], sibling.block_table[last], copied)] if copied else []
    )  # fmt: skip
    assert [event.hit for event in engine.of(PrefixMatched) if event.seq == 1] == [last * SIZE]
    all_alike(engine, name, prompt(0, length), 6)


def test_siblings_wait_for_the_leaders_prompt_and_hold_nobody_up() -> None:
    engine = FakeEngine(max_prefill_chunk=4)
    engine.add(prompt(0, 10), 4, n=2)
    other = engine.add(prompt(100, 3), 4)
    engine.step()
    assert engine.snapshot().running == [0, 2]
    assert [(event.seq, event.reason) for event in engine.of(WaitReasonChanged)] == [(1, "sibling_prefill")]
    engine.run()
    assert engine.ids(other) == solo(prompt(100, 3), 4)


def test_without_a_prefix_cache_nothing_is_shared_or_copied() -> None:
    engine = FakeEngine(prefix_cache=False)
    name = engine.add(prompt(0, 10), 6, n=3)
    all_alike(engine, name, prompt(0, 10), 6)
    assert [chunks_of(engine, seq) for seq in range(3)] == [[(0, 10)]] * 3
    assert not engine.of(BlockCopied)


# The leader is not where it was when the sibling comes


def held_back(**options: Any) -> tuple[FakeEngine, str]:
    """A leader of 10 tokens that decodes, and its sibling that waits for the only free slot of two."""
    engine = FakeEngine(**({"max_num_seqs": 2} | options))
    engine.add(prompt(300, 3), 8)
    name = engine.add(prompt(0, 10), 12, n=2)
    steps(engine, 3)
    assert engine.snapshot().running == [0, 1] and engine.snapshot().waiting == [2]
    return engine, name


def test_a_leader_that_decodes_already_gives_its_block_as_it_is() -> None:
    engine, name = held_back()
    steps(engine, 6)
    assert len(engine.seq(name, 0).token_ids) > 12, "its block holds tokens of its own behind the prompt"
    all_alike(engine, name, prompt(0, 10), 12)
    assert chunks_of(engine, 2) == [(9, 1)] and len(engine.of(BlockCopied)) == 1


def test_a_leader_that_has_ended_leaves_the_cached_blocks() -> None:
    engine = FakeEngine(max_num_seqs=1)
    name = engine.add(prompt(0, 10), 6, n=2)
    all_alike(engine, name, prompt(0, 10), 6)
    assert chunks_of(engine, 1) == [(8, 2)] and not engine.of(BlockCopied)


def test_a_paused_leader_gives_its_block() -> None:
    engine, name = held_back()
    assert engine.pause(name, 0)
    engine.step()
    assert chunks_of(engine, 2) == [(9, 1)] and len(engine.of(BlockCopied)) == 1
    engine.resume(name, index=0)
    all_alike(engine, name, prompt(0, 10), 12)


def test_a_leader_in_the_swap_space_gives_nothing_and_the_prompt_is_computed() -> None:
    engine, name = held_back(num_blocks=16, host_blocks=16)
    engine.pause(name, 0)
    move_out(engine)
    assert [event.kind for event in engine.of(BlocksSwapped)] == ["out"]
    engine.step()
    assert not engine.of(BlockCopied) and chunks_of(engine, 2) == [(8, 2)], "full blocks stay cached where they were"
    engine.resume(name, index=0)
    all_alike(engine, name, prompt(0, 10), 12)


def test_a_preempted_leader_gives_nothing_until_it_has_computed_its_prompt_again() -> None:
    engine = FakeEngine(num_blocks=7, max_num_seqs=2)
    engine.add(prompt(300, 6), 14)
    name = engine.add(prompt(0, 10), 12, n=2)
    all_alike(engine, name, prompt(0, 10), 12)
    assert 1 in [event.seq for event in engine.of(SequencePreempted)]


def test_a_block_that_is_to_be_copied_is_not_filled_by_a_move_of_the_same_step() -> None:
    engine = FakeEngine(num_blocks=15, max_model_len=48, host_blocks=40, max_num_seqs=4)
    first = engine.add(prompt(200, 20), 8)  # 5 blocks, soon 6
    name = engine.add(prompt(0, 11), 8, n=2)  # 3 blocks, and 1 of the sibling's own
    other = engine.add(prompt(100, 22), 8)  # 6 blocks, of which the last one is in no cache
    engine.step()
    engine.pause(other)
    move_out(engine)
    engine.pause(name, 0)
    engine.resume(other)  # where the block that the sibling copies has to move out
    steps(engine, 3)
    assert len(engine.of(BlockCopied)) == 1
    engine.resume(name, index=0)
    engine.run()
    assert engine.ids(first) == solo(prompt(200, 20), 8) and engine.ids(other) == solo(prompt(100, 22), 8)
    all_alike(engine, name, prompt(0, 11), 8)


@OVERLAP
def test_a_sibling_that_takes_a_place_and_loses_it_in_the_same_step_keeps_nothing_that_was_not_copied(
    overlap: bool,
) -> None:
    engine = FakeEngine(
        num_blocks=8, host_blocks=8, policy="priority", preemption_mode="swap", overlap=overlap, prefix_cache=True
    )
    names = [engine.add(prompt(100 * i, 7 - (i == 2)), 8) for i in range(3)]  # sequences 0 to 2, 2 blocks each
    engine.step()
    group = engine.add(prompt(500, 4), 8, n=2)  # 3 and 4
    engine.step()
    if overlap:
        engine.pause_engine()  # reads what is in flight: the leader's prompt
        engine.continue_engine()
    engine.set_priority(names[2], 5)
    engine.step()  # the sibling takes the place of 2; then 0, 1 and its leader begin a block, of 2 that are left
    assert [(event.seq, event.by) for event in engine.of(SequencePreempted)] == [(2, 4), (4, 3)]
    engine.run()
    for i, name in enumerate(names):
        assert engine.outputs[name].outputs[0].token_ids == solo(prompt(100 * i, 7 - (i == 2)), 8)
    all_alike(engine, group, prompt(500, 4), 8)


@pytest.mark.parametrize("num_blocks", [8, 11, 40])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
@OVERLAP
def test_groups_under_pressure_give_what_they_give_alone(num_blocks: int, mode: str, overlap: bool) -> None:
    engine = FakeEngine(
        num_blocks=num_blocks, overlap=overlap, preemption_mode=mode, host_blocks=12, max_num_seqs=4, max_model_len=32
    )
    asked = {engine.add(prompt(50 * i, 4 + i), 9 + i, n=1 + i % 3): (prompt(50 * i, 4 + i), 9 + i) for i in range(6)}
    engine.run()
    for name, (tokens, count) in asked.items():
        assert all(output.token_ids == solo(tokens, count) for output in engine.outputs[name].outputs)
    engine.check_empty()


# On a real model


def tokens_alone(tokens: list[int], seed: int, **params: Any) -> list[int]:
    with tiny_llm() as llm:
        output = llm.generate(tokens, SamplingParams(seed=seed, **params), use_tqdm=False)[0]
    ids: list[int] = output.outputs[0].token_ids
    return ids


@OVERLAP
@pytest.mark.parametrize("length", [1, 3, 4, 5, 11])
def test_each_sibling_of_a_real_model_has_the_tokens_of_its_own_seed(length: int, overlap: bool) -> None:
    params = {"temperature": 0.8, "max_tokens": 10, "ignore_eos": True}
    tokens = prompt_of(length)
    with tiny_llm(overlap=overlap) as llm:
        events = recorded(llm)
        output = llm.generate(tokens, SamplingParams(n=3, seed=5, **params), use_tqdm=False)[0]
        copies = [event.num_tokens for event in events if isinstance(event, BlockCopied)]
    assert copies == ([(length - 1) % SIZE] * 2 if (length - 1) % SIZE else [])
    given = [each.token_ids for each in output.outputs]
    assert given == [tokens_alone(tokens, 5 + i, **params) for i in range(3)]
    assert given[0] != given[1] != given[2]


@pytest.mark.parametrize("length", [3, 11])
def test_prompt_logprobs_of_a_group_are_those_of_one(length: int) -> None:
    params = {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True, "prompt_logprobs": 2}
    tokens = prompt_of(length)
    with tiny_llm() as llm:
        alone = llm.generate(tokens, SamplingParams(**params), use_tqdm=False)[0]
        group = llm.generate(tokens, SamplingParams(n=2, **params), use_tqdm=False)[0]
    assert group.prompt_logprobs is not None and alone.prompt_logprobs is not None
    assert [entry and entry.logprob for entry in group.prompt_logprobs] == pytest.approx(
        [entry and entry.logprob for entry in alone.prompt_logprobs], abs=1e-4
    )
    assert [each.token_ids for each in group.outputs] == [alone.outputs[0].token_ids] * 2


@OVERLAP
def test_a_row_of_a_real_model_that_is_not_finite_ends_its_group_and_no_other(overlap: bool) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    with tiny_llm(overlap=overlap) as llm:
        expected = llm.generate(prompt_of(9), params, use_tqdm=False)[0].outputs[0].token_ids
        events, done = recorded(llm), {}
        runner = llm.engine.core.runner
        collect = runner.collect

        def spoil(handle: Any) -> Any:
            result = collect(handle)
            group = llm.engine.core.requests.get("group")
            if group is not None and len(group.sequences[1].token_ids) == 8:
                result.failed[group.sequences[1].seq_id] = "non-finite logits"
            return result

        runner.collect = spoil  # type: ignore[method-assign]

        def keep(output: RequestOutput) -> None:
            done[output.request_id] = output

        group_params = SamplingParams(n=3, temperature=0.8, seed=1, max_tokens=12, ignore_eos=True)
        llm.engine.add_request(prompt_of(5, 1), group_params, request_id="group", on_finish=keep)
        llm.engine.add_request(prompt_of(9), params, request_id="other", on_finish=keep)
        while llm.engine.step():
            pass
        assert done["other"].outputs[0].token_ids == expected
        assert [each.finish_reason for each in done["group"].outputs] == ["error"] * 3
        errors = {e.seq: e.cause for e in events if isinstance(e, StatusChanged) and e.new == "ERROR"}
        culprit = next(seq for seq, cause in errors.items() if cause == -1)
        assert sorted(errors.values()) == [-1, culprit, culprit]
        assert done["group"].error == f"sequence {culprit}: non-finite logits"
        assert llm.engine.core.blocks.num_free == 64


# One takes all


def causes(engine: FakeEngine, new: str) -> dict[int, tuple[str, int]]:
    """Sequence -> why it ended so, and which sibling drew it in."""
    return {event.seq: (event.reason, event.cause) for event in engine.of(StatusChanged) if event.new == new}


@OVERLAP
@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_an_error_of_one_ends_all_and_names_it_as_the_cause(culprit: int, overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    engine.runner.fail_rows = lambda plan: {culprit: "non-finite logits"} if plan.step == 5 else {}
    name = engine.add(prompt(0, 6), 9, n=3)
    other = engine.add(prompt(100, 6), 9)
    engine.run()
    assert causes(engine, "ERROR") == {
        seq: ("error", -1 if seq == culprit else culprit) for seq in range(3)
    }
    assert engine.outputs[name].error == f"sequence {culprit}: non-finite logits"
    assert [output.finish_reason for output in engine.outputs[name].outputs] == ["error"] * 3
    assert engine.of(RequestFinished)[0].error == f"sequence {culprit}: non-finite logits"
    assert engine.ids(other) == solo(prompt(100, 6), 9)
    engine.check_empty()


def test_an_error_reaches_siblings_that_wait_and_those_that_are_paused_and_none_that_has_ended() -> None:
    engine = FakeEngine(max_num_seqs=3)
    name = engine.add(prompt(0, 6), 9, n=4)
    steps(engine, 4)
    engine.pause(name, 1)
    engine.pause(name, 2)
    engine.finish(name, 2)
    assert [engine.seq(name, i).status.value for i in range(4)] == ["RUNNING", "PAUSED", "FINISHED", "WAITING"]
    engine.runner.fail_rows = lambda plan: {0: "non-finite logits"}
    engine.run()
    assert causes(engine, "ERROR") == {0: ("error", -1), 1: ("error", 0), 3: ("error", 0)}
    assert [output.finish_reason for output in engine.outputs[name].outputs] == ["error", "error", "stop", "error"]
    engine.check_empty()


def test_each_sibling_tells_its_stream_of_the_error_once() -> None:
    engine, deltas = FakeEngine(), []
    engine.runner.fail_rows = lambda plan: {1: "non-finite logits"} if plan.step == 4 else {}
    params = SamplingParams(max_tokens=9, n=3, temperature=0.0)
    engine.add_request(prompt(0, 6), params, on_output=deltas.append)
    engine.run()
    assert sorted(delta.index for delta in deltas if delta.finish_reason == "error") == [0, 1, 2]
    assert [delta.finish_reason for delta in deltas].count(None) == len(deltas) - 3


@OVERLAP
@pytest.mark.parametrize("after", range(6))
def test_an_abort_takes_all_of_a_group_whatever_they_do(after: int, overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap, max_num_seqs=3)
    name = engine.add(prompt(0, 6), 9, n=4)
    other = engine.add(prompt(100, 6), 9)
    steps(engine, after)
    if after > 3:
        engine.pause(name, 1)
    assert engine.abort(name)
    assert set(causes(engine, "FINISHED").values()) == {("aborted", -1)}
    assert [output.finish_reason for output in engine.outputs[name].outputs] == ["abort"] * 4
    engine.run()
    assert engine.ids(other) == solo(prompt(100, 6), 9)
    engine.check_empty()


@OVERLAP
def test_a_callback_of_one_sibling_may_end_the_whole_request(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)

    def stop(delta: Delta) -> None:
        if delta.index == 1 and delta.token_ids:
            engine.abort("group")

    params = SamplingParams(max_tokens=9, n=3, temperature=0.0)
    engine.add_request(prompt(0, 6), params, request_id="group", on_output=stop, on_finish=engine._finished)
    engine.run()
    assert [output.finish_reason for output in engine.outputs["group"].outputs] == ["abort"] * 3
    engine.check_empty()


@pytest.mark.parametrize("what", ["pause", "resume", "finish"])
def test_a_callback_that_ends_the_request_amid_an_operation_on_all_of_it_does_no_harm(what: str) -> None:
    engine, armed = FakeEngine(), []

    def stop(delta: Delta) -> None:
        if armed:
            engine.abort("group")

    params = SamplingParams(max_tokens=9, n=3, temperature=0.0)
    engine.add_request(prompt(0, 6), params, request_id="group", on_output=stop, on_finish=engine._finished)
    steps(engine, 4)
    if what != "pause":
        engine.pause("group")
    armed.append(True)
    {"pause": engine.pause, "resume": engine.resume, "finish": engine.finish}[what]("group")
    engine.run()
    assert {output.finish_reason for output in engine.outputs["group"].outputs} <= {"abort", "stop"}
    engine.check_empty()
