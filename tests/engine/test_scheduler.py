"""The scheduler: who is in a step, who waits and why, who gives way."""

from __future__ import annotations

import sys
from collections import OrderedDict
from itertools import pairwise
from typing import Any

import pytest

from fake_engine import FakeEngine, solo
from nanolens.benchmarks.planning import DecodingScheduler
from nanolens.telemetry.events import (
    BlocksAllocated,
    PrefixMatched,
    SequencePreempted,
    StatusChanged,
    StepPlanned,
    WaitReasonChanged,
)


def prompt(first: int, number: int) -> list[int]:
    return list(range(first, first + number))


def admissions(engine: FakeEngine) -> list[int]:
    """Sequences in the order in which they became RUNNING."""
    return [event.seq for event in engine.of(StatusChanged) if event.new == "RUNNING"]


def waits(engine: FakeEngine, seq: int) -> list[str]:
    """The wait reasons of a sequence, in order."""
    return [event.reason for event in engine.of(WaitReasonChanged) if event.seq == seq]


def shapes(engine: FakeEngine) -> list[tuple[str, int, list[int]]]:
    """(kind, decodes, tokens of each chunk) of every step."""
    return [(e.kind, e.decodes, [count for _, _, count in e.chunks]) for e in engine.of(StepPlanned)]


def steps(engine: FakeEngine, number: int) -> None:
    for _ in range(number):
        assert engine.step()


# Batching


def test_mixed_computes_decodes_and_chunks_in_one_step() -> None:
    engine = FakeEngine(max_num_batched_tokens=6)
    engine.add(prompt(0, 4), 5)
    steps(engine, 1)
    engine.add(prompt(50, 12), 2)
    engine.run()
    assert shapes(engine)[:4] == [("prefill", 0, [4]), ("mixed", 1, [5]), ("mixed", 1, [5]), ("mixed", 1, [2])]
    assert shapes(engine)[4] == ("decode", 2, [])


def test_prefill_first_lets_decodes_wait_for_prefills() -> None:
    engine = FakeEngine(batching="prefill_first", max_num_batched_tokens=6)
    engine.add(prompt(0, 4), 3)
    steps(engine, 1)
    engine.add(prompt(50, 12), 3)
    engine.run()
    assert [kind for kind, _, _ in shapes(engine)] == ["prefill", "prefill", "prefill", "decode", "decode"]
    assert shapes(engine)[3] == ("decode", 2, [])


@pytest.mark.parametrize("batching", ["mixed", "prefill_first"])
@pytest.mark.parametrize("budget", [1, 3, 7])
def test_a_step_never_computes_more_than_its_budget(batching: str, budget: int) -> None:
    engine = FakeEngine(batching=batching, max_num_batched_tokens=budget)
    names = {engine.add(prompt(i * 20, 9 + i), 4): prompt(i * 20, 9 + i) for i in range(5)}
    engine.run()
    assert all(1 <= plan.num_tokens <= budget for plan in engine.runner.plans)
    for name, tokens in names.items():
        assert engine.ids(name) == solo(tokens, 4)


def test_a_chunk_has_at_most_the_set_size_and_only_the_last_one_samples() -> None:
    engine = FakeEngine(max_prefill_chunk=5)
    engine.add(prompt(0, 13), 1)
    engine.run()
    assert [event.chunks for event in engine.of(StepPlanned)] == [[(0, 0, 5)], [(0, 5, 5)], [(0, 10, 3)]]
    assert [plan.samples for plan in engine.runner.plans] == [[False], [False], [True]]


def test_several_prefills_share_a_step() -> None:
    engine = FakeEngine(max_num_batched_tokens=10)
    for i in range(3):
        engine.add(prompt(i * 20, 4), 1)
    engine.run()
    assert shapes(engine) == [("prefill", 0, [4, 4, 2]), ("prefill", 0, [2])]


def test_running_sequences_never_exceed_the_cap() -> None:
    engine = FakeEngine(max_num_seqs=2)
    for i in range(5):
        engine.add(prompt(i * 20, 4), 3)
    engine.run()
    assert max(event.running for event in engine.of(StepPlanned)) == 2
    assert admissions(engine) == [0, 1, 2, 3, 4]


def test_decodes_beyond_the_budget_are_listed_as_idle() -> None:
    engine = FakeEngine(batching="prefill_first", max_num_batched_tokens=2)
    names = [engine.add(prompt(i * 20, 2), 4) for i in range(3)]
    engine.run()
    assert [engine.ids(name) for name in names] == [solo(prompt(i * 20, 2), 4) for i in range(3)]
    listed = [event for event in engine.of(StepPlanned) if event.idle]
    assert listed
    for event in listed:
        plan = next(plan for plan in engine.runner.plans if plan.step == event.step)
        assert not set(event.idle) & {seq.seq_id for seq in plan.sequences}
        assert event.decodes + len(event.idle) == event.running


def test_a_step_of_prefills_alone_lists_no_idle_ones() -> None:
    engine = FakeEngine(batching="prefill_first")
    engine.add(prompt(0, 4), 4)
    steps(engine, 2)
    engine.add(prompt(20, 4), 4)
    engine.run()
    assert all(not event.idle for event in engine.of(StepPlanned))


# Policies


def test_fcfs_admits_in_order_of_arrival() -> None:
    engine = FakeEngine(max_num_seqs=1, policy="fcfs")
    for i, length in enumerate([9, 2, 5]):
        engine.add(prompt(i * 20, length), 2, priority=-i)
    engine.run()
    assert admissions(engine) == [0, 1, 2]


def test_priority_admits_the_lowest_value_first_and_then_the_oldest() -> None:
    engine = FakeEngine(max_num_seqs=1, policy="priority")
    for i, priority in enumerate([0, 5, -1, 5, -1]):
        engine.add(prompt(i * 20, 4), 2, priority=priority)
    engine.run()
    assert admissions(engine) == [2, 4, 0, 1, 3]


def test_sjf_admits_the_one_with_fewest_remaining_tokens_first() -> None:
    engine = FakeEngine(max_num_seqs=1, policy="sjf")
    for i, (length, max_tokens) in enumerate([(9, 9), (12, 1), (2, 2), (3, 10)]):
        engine.add(prompt(i * 20, length), max_tokens)
    engine.run()
    assert admissions(engine) == [2, 1, 3, 0]


def test_under_priority_the_least_urgent_is_preempted() -> None:
    engine = FakeEngine(num_blocks=5, policy="priority")
    names = [engine.add(prompt(i * 20, 7), 10, priority=priority) for i, priority in enumerate([3, 1])]
    engine.run()
    assert {event.seq for event in engine.of(SequencePreempted)} == {0}
    assert [engine.ids(name) for name in names] == [solo(prompt(0, 7), 10), solo(prompt(20, 7), 10)]


# Preemption


def test_the_last_of_the_running_order_gives_way() -> None:
    engine = FakeEngine(num_blocks=9)
    for i in range(3):
        engine.add(prompt(i * 20, 7), 10)
    engine.run()
    first = engine.of(SequencePreempted)[0]
    assert (first.seq, first.cause, first.mode) == (2, "no_blocks", "recompute")
    assert first.by in (0, 1) and first.num_blocks >= 2 and first.num_tokens >= 7
    assert {event.seq for event in engine.of(SequencePreempted)} <= {1, 2}


def test_nothing_is_admitted_in_a_step_that_preempts() -> None:
    engine = FakeEngine(num_blocks=6, max_num_seqs=2, policy="sjf")
    for i in range(2):
        engine.add(prompt(i * 20, 7), 10)
    steps(engine, 1)
    engine.add(prompt(60, 2), 2)  # waits for a slot only: it would fit into what a preemption frees
    engine.run()
    preempted = engine.of(SequencePreempted)[0]
    admitted = next(event for event in engine.of(StatusChanged) if event.seq == 2 and event.new == "RUNNING")
    assert (preempted.seq, admitted.step) == (1, preempted.step + 1)
    assert waits(engine, 2) == ["sequence_cap", "no_blocks"]


def test_the_preempted_one_is_readmitted_before_those_that_came_later() -> None:
    engine = FakeEngine(num_blocks=6, max_num_seqs=2)
    for i in range(5):
        engine.add(prompt(i * 20, 7), 10)
    engine.run()
    order = admissions(engine)
    assert order.index(2) > max(i for i, seq in enumerate(order) if seq == 1) and order.count(1) > 1
    reasons = [event.reason for event in engine.of(StatusChanged) if event.seq == 1 and event.new == "RUNNING"]
    assert reasons == ["admitted"] + ["readmitted"] * (len(reasons) - 1)


def test_a_preempted_sequence_finds_its_own_blocks_again() -> None:
    engine = FakeEngine(num_blocks=7)
    names = [engine.add(prompt(i * 20, 9), 12) for i in range(2)]
    engine.run()
    assert any(event.recompute for event in engine.of(PrefixMatched))
    assert [engine.ids(name) for name in names] == [solo(prompt(0, 9), 12), solo(prompt(20, 9), 12)]


def test_an_admission_leaves_blocks_for_those_that_decode() -> None:
    engine = FakeEngine(num_blocks=300, max_num_batched_tokens=4096)  # a hundredth is kept back: 3 blocks
    for i in range(150):
        engine.add(prompt(i * 5, 7), 2)
    steps(engine, 1)
    assert engine.of(StepPlanned)[0].free in (3, 4)
    assert len(engine.of(BlocksAllocated)) == 148


# Why a sequence waits


def test_who_stands_behind_a_full_house_waits_for_the_cap() -> None:
    engine = FakeEngine(max_num_seqs=1)
    for i in range(3):
        engine.add(prompt(i * 20, 4), 3)
    engine.run()
    assert waits(engine, 0) == []
    assert waits(engine, 1) == ["sequence_cap"]
    assert waits(engine, 2) == ["head_of_line", "sequence_cap"]


def test_who_finds_no_tokens_left_waits_for_the_budget() -> None:
    engine = FakeEngine(max_num_batched_tokens=4)
    engine.add(prompt(0, 12), 2)
    engine.add(prompt(20, 4), 2)
    engine.run()
    assert waits(engine, 1) == ["token_budget"]


def test_who_does_not_fit_waits_for_blocks() -> None:
    engine = FakeEngine(num_blocks=4)
    engine.add(prompt(0, 7), 6)
    engine.add(prompt(20, 10), 2)
    engine.run()
    assert waits(engine, 1) == ["no_blocks"]


def test_a_sibling_waits_for_the_prompt_that_it_will_share() -> None:
    engine = FakeEngine(max_num_batched_tokens=4)
    name = engine.add(prompt(0, 10), 2, n=3)
    engine.add(prompt(50, 4), 2)
    engine.run()
    assert waits(engine, 1) == ["sibling_prefill"]
    assert waits(engine, 2) == ["sibling_prefill", "token_budget"]
    assert waits(engine, 3) == ["token_budget"]  # not behind its elders: it is admitted while they wait
    assert [(event.seq, event.hit) for event in engine.of(PrefixMatched)] == [(0, 0), (3, 0), (1, 8), (2, 8)]
    assert [engine.ids(name, i) for i in range(3)] == [solo(prompt(0, 10), 2)] * 3


def test_a_wait_reason_is_recorded_when_it_changes_and_not_again() -> None:
    engine = FakeEngine(num_blocks=8, max_num_seqs=3, max_num_batched_tokens=8)
    for i in range(12):
        engine.add(prompt(i * 20, 3 + i % 9), 6, n=1 + i % 2)
    engine.run()
    for seq in range(18):
        life = [
            event.reason if isinstance(event, WaitReasonChanged) else event.new
            for event in engine.events
            if isinstance(event, WaitReasonChanged | StatusChanged) and event.seq == seq
        ]
        assert all(one != other for one, other in pairwise(life))
        assert life[-1] == "FINISHED"


@pytest.mark.parametrize("policy", ["fcfs", "priority", "sjf"])
def test_whoever_waits_after_a_step_knows_why(policy: str) -> None:
    engine = FakeEngine(num_blocks=8, max_num_seqs=3, max_num_batched_tokens=8, policy=policy)
    for i in range(12):
        engine.add(prompt(i * 20, 3 + i % 9), 6, n=1 + i % 2, priority=i % 3)
        engine.step()
        for seq in engine.core.scheduler.waiting:
            assert seq.wait_reason
    while engine.step():
        for seq in engine.snapshot().sequences:
            assert bool(seq.wait_reason) == (seq.status == "WAITING")
        behind = ("head_of_line", "sibling_prefill")
        assert len([seq for seq in engine.core.scheduler.waiting if seq.wait_reason not in behind]) <= 1


# What planning costs


def operations_of_a_plan(num_blocks: int) -> list[int]:
    """Calls made, and entries of the free list touched, in each of the plans of a few decode steps."""
    engine = DecodingScheduler(num_blocks, 256, 64)
    counter = {"calls": 0, "free list": 0}

    class Free(OrderedDict[int, None]):
        def __iter__(self) -> Any:
            for block in super().__iter__():
                counter["free list"] += 1
                yield block

        def __contains__(self, block: object) -> bool:
            counter["free list"] += 1
            return super().__contains__(block)

        def popitem(self, last: bool = True) -> tuple[int, None]:
            counter["free list"] += 1
            return super().popitem(last)

    class Refs(list[int]):
        def __iter__(self) -> Any:
            raise AssertionError("planning walked the blocks of the pool")

    engine.blocks.free = Free(engine.blocks.free)
    engine.blocks.refs = Refs(engine.blocks.refs)
    counts = []
    for _ in range(20):
        counter.update({"calls": 0, "free list": 0})
        sys.setprofile(lambda frame, event, arg: counter.update(calls=counter["calls"] + event.endswith("call")))
        try:
            plan = engine.plan()
        finally:
            sys.setprofile(None)
        engine.read(plan)
        counts += [counter["calls"], counter["free list"]]
    return counts


def test_planning_does_not_grow_with_the_pool() -> None:
    small, large = operations_of_a_plan(20_000), operations_of_a_plan(200_000)
    assert small == large
    assert max(small) < 256 * 20
