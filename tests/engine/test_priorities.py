"""Urgency: who takes whose place under "priority", who never does, and that nobody waits for ever."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_engine import FakeEngine, solo
from nanolens.errors import InvalidRequest, UnknownRequest
from nanolens.telemetry.events import (
    PriorityChanged,
    RequestArrived,
    SequencePreempted,
    StatusChanged,
    WaitReasonChanged,
)

SECOND = 1_000_000_000
OVERLAP = pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlap"])


def prompt(first: int, number: int) -> list[int]:
    return list(range(first, first + number))


class Asked(FakeEngine):
    """An engine under "priority" that knows what each request must give."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**({"policy": "priority"} | options))
        self.expected: dict[str, list[int]] = {}

    def ask(self, tokens: list[int], max_tokens: int = 8, priority: int = 0, **params: Any) -> str:
        name = self.add(tokens, max_tokens, priority=priority, **params)
        self.expected[name] = solo(tokens, max_tokens)
        return name

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def finish_all(self) -> None:
        """Run to the end: everybody has given what it gives alone, and nothing is left."""
        self.run()
        for name, tokens in self.expected.items():
            assert all(output.token_ids == tokens for output in self.outputs[name].outputs), name
        self.check_empty()

    def preempted(self) -> list[tuple[int, int, str]]:
        return [(event.seq, event.by, event.cause) for event in self.of(SequencePreempted)]

    def running(self) -> list[int]:
        return self.snapshot().running

    def admissions(self) -> list[int]:
        return [event.seq for event in self.of(StatusChanged) if event.new == "RUNNING"]

    def wait_reasons(self, seq: int) -> list[str]:
        return [event.reason for event in self.of(WaitReasonChanged) if event.seq == seq]


# Who takes whose place


@OVERLAP
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_an_urgent_arrival_takes_the_slot_of_the_least_urgent(overlap: bool, mode: str) -> None:
    engine = Asked(max_num_seqs=2, overlap=overlap, host_blocks=16, preemption_mode=mode)
    for i, priority in enumerate([5, 1]):
        engine.ask(prompt(20 * i, 7), 12, priority)
    engine.steps(4)
    engine.ask(prompt(100, 7), 4, 0)
    engine.step()
    assert engine.running() == [1, 2] and engine.preempted() == [(0, 2, "priority")]
    assert engine.of(SequencePreempted)[0].mode == mode
    engine.finish_all()
    assert engine.preempted() == [(0, 2, "priority")]


@OVERLAP
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_an_urgent_arrival_takes_the_blocks_of_the_least_urgent(overlap: bool, mode: str) -> None:
    engine = Asked(num_blocks=12, overlap=overlap, host_blocks=16, preemption_mode=mode)
    for i, priority in enumerate([5, 1]):
        engine.ask(prompt(20 * i, 10), 2 + 4 * i, priority)
    engine.step()
    engine.ask(prompt(100, 27), 4, 0)
    engine.step()
    assert engine.running() == [1, 2] and engine.preempted() == [(0, 2, "priority")]
    engine.finish_all()


def test_it_takes_no_more_places_than_it_needs() -> None:
    engine = Asked(num_blocks=14)
    for i, priority in enumerate([5, 6, 7]):
        engine.ask(prompt(20 * i, 10), 3, priority)  # 3 blocks each, 5 left
    engine.step()
    engine.ask(prompt(100, 23), 2, 0)  # 6 blocks
    engine.step()
    assert engine.preempted() == [(2, 3, "priority")]
    engine.finish_all()


def test_several_urgent_ones_take_the_places_from_the_end_of_the_order() -> None:
    engine = Asked(max_num_seqs=3)
    for i, priority in enumerate([6, 5, 7]):
        engine.ask(prompt(20 * i, 6), 9, priority)
    engine.steps(3)
    for i in range(3):
        engine.ask(prompt(100 + 20 * i, 6), 3, i - 3)
    engine.step()
    assert engine.preempted() == [(2, 3, "priority"), (0, 4, "priority"), (1, 5, "priority")]
    assert engine.running() == [3, 4, 5]
    engine.finish_all()
    assert engine.admissions()[6:] == [1, 0, 2], "they come back in their own order"


def test_what_paused_sequences_hold_goes_before_anybody_who_runs() -> None:
    engine = Asked(num_blocks=12, host_blocks=16)
    paused, _ = engine.ask(prompt(0, 15), 9, 5), engine.ask(prompt(40, 10), 3, 5)
    engine.step()
    engine.pause(paused)
    engine.ask(prompt(100, 27), 2, 0)  # 7 blocks; 5 are free
    engine.step()
    assert engine.preempted() == [] and engine.running() == [1, 2]
    engine.resume(paused)
    engine.finish_all()


def test_siblings_that_share_their_blocks_make_room_together() -> None:
    engine = Asked(num_blocks=12)
    engine.ask(prompt(0, 32), 8, 5, n=2)
    engine.steps(3)
    assert engine.core.blocks.num_free < 4
    engine.ask(prompt(300, 23), 2, 1)  # 6 blocks, more than either sibling holds alone
    engine.step()
    assert 2 in engine.running()
    engine.finish_all()


# Who does not


def test_nobody_is_preempted_where_that_would_not_help() -> None:
    engine = Asked(num_blocks=12)
    engine.ask(prompt(0, 22), 3, 0)  # 6 blocks, and more urgent
    engine.ask(prompt(40, 10), 3, 5)  # 3 blocks
    engine.step()
    engine.ask(prompt(100, 27), 2, 1)  # 7 blocks: 3 + 3 would be there
    engine.step()
    assert engine.preempted() == [] and engine.wait_reasons(2)[-1] == "no_blocks"
    engine.finish_all()


def test_blocks_that_the_urgent_one_shares_with_a_victim_are_no_gain() -> None:
    engine = Asked(num_blocks=8)
    engine.ask(prompt(0, 13), 3, 0)  # 4 blocks
    engine.ask(prompt(100, 9), 3, 5)  # 3 blocks, of which the next one would share 2
    engine.step()
    engine.ask(prompt(100, 8) + prompt(300, 11), 1, 1)  # 5 blocks: 1 + 3 would be there, those 2 among them
    engine.step()
    assert engine.preempted() == [] and engine.running() == [0, 1]
    engine.finish_all()


@pytest.mark.parametrize("priority", [3, 4])
def test_equals_and_less_urgent_ones_wait(priority: int) -> None:
    engine = Asked(max_num_seqs=1)
    engine.ask(prompt(0, 6), 6, 3)
    engine.step()
    engine.ask(prompt(100, 6), 2, priority)
    engine.finish_all()
    assert engine.preempted() == [] and engine.wait_reasons(1) == ["sequence_cap"]


@pytest.mark.parametrize(("after_s", "taken"), [(29, True), (31, False)])
def test_who_has_aged_past_the_urgent_one_keeps_its_place(after_s: int, taken: bool) -> None:
    engine = Asked(max_num_seqs=1, aging_s=10.0)
    engine.ask(prompt(0, 6), 9, 3)
    engine.steps(2)
    engine.core.clock.now += after_s * SECOND
    engine.ask(prompt(100, 6), 2, 0)
    engine.step()
    assert engine.preempted() == ([(0, 1, "priority")] if taken else [])
    engine.finish_all()


@pytest.mark.parametrize("policy", ["fcfs", "sjf"])
def test_other_policies_never_preempt_for_urgency(policy: str) -> None:
    engine = Asked(policy=policy, max_num_seqs=1)
    engine.ask(prompt(0, 6), 9, 5)
    engine.steps(2)
    engine.ask(prompt(100, 6), 2, -5)
    engine.finish_all()
    assert engine.preempted() == [] and engine.admissions() == [0, 1]


# The urgent one comes from the swap space


@pytest.mark.parametrize("delay", [0, 3])
def test_an_urgent_one_whose_blocks_were_swapped_out_takes_a_place_once(delay: int) -> None:
    engine = Asked(num_blocks=17, host_blocks=24, max_num_seqs=2, preemption_mode="swap")
    urgent = engine.ask(prompt(0, 20), 12, 0)
    engine.steps(2)
    engine.pause(urgent)
    for i, priority in enumerate([0, 5]):
        engine.ask(prompt(200 + 40 * i, 24), 30, priority)
    engine.steps(2)
    assert engine.snapshot().sequences[0].residency == "host"
    engine.set_priority("req-1", -1)
    engine.runner.move_delay = delay
    engine.resume(urgent)
    engine.steps(8)
    assert sorted(engine.running()) == [0, 1]
    assert [event[:2] for event in engine.preempted()] == [(2, 0)]
    assert "swap_in" in engine.wait_reasons(0)
    engine.run()
    assert engine.ids(urgent) == solo(prompt(0, 20), 12)
    engine.check_empty()


@OVERLAP
def test_one_that_is_on_its_way_back_leaves_the_slot_in_use_until_it_is_there(overlap: bool) -> None:
    engine = Asked(num_blocks=30, host_blocks=24, max_num_seqs=2, overlap=overlap)
    urgent = engine.ask(prompt(0, 20), 12, 0)
    engine.steps(3)
    engine.pause(urgent)
    engine.core.scheduler.residency.vacate(30, engine.core.scheduler.step, ())
    for i, priority in enumerate([-1, 5]):
        engine.ask(prompt(200 + 40 * i, 24), 30, priority)
    engine.steps(2)
    assert engine.snapshot().sequences[0].residency == "host"
    engine.runner.move_delay = 4
    engine.resume(urgent)
    engine.steps(3)
    assert engine.wait_reasons(0)[-1] == "swap_in" and engine.running() == [1, 2]
    engine.finish_all()
    assert engine.preempted() == [(2, 0, "priority")]


# What is on record of a wait


def test_the_preempted_one_waits_for_the_cap_or_for_blocks() -> None:
    for options, reason in (({"max_num_seqs": 1}, "sequence_cap"), ({"num_blocks": 6}, "no_blocks")):
        engine = Asked(**options)
        engine.ask(prompt(0, 10), 6, 5)
        engine.step()
        engine.ask(prompt(100, 14), 3, 0)
        engine.step()
        assert engine.preempted() == [(0, 1, "priority")] and engine.wait_reasons(0) == [reason]
        engine.finish_all()


# Nobody starves


def waits_under_a_stream(policy: str, aging_s: float, urgent: dict[str, Any], patient: dict[str, Any]) -> FakeEngine:
    """One patient request while urgent ones come faster than they can be served, for 60 s of an artificial clock."""
    engine = Asked(policy=policy, aging_s=aging_s, max_num_seqs=1)
    engine.ask(prompt(900, 4), **urgent)
    engine.step()
    engine.ask(prompt(800, 4), **patient)
    for i in range(300):
        engine.ask(prompt(3 * i, 4), **urgent)
        for _ in range(2):
            engine.core.clock.now += SECOND // 10
            engine.step()
    return engine


STREAMS = [
    ("priority", 2.0, {"max_tokens": 3, "priority": 0}, {"max_tokens": 5, "priority": 4}, 8.0),
    ("sjf", 100.0, {"max_tokens": 3}, {"max_tokens": 83}, 8.0),  # 80 tokens more weigh 8 s
]


@pytest.mark.parametrize(("policy", "aging_s", "urgent", "patient", "head_start_s"), STREAMS, ids=["priority", "sjf"])
def test_only_those_who_came_within_its_aging_go_before_a_patient_one(
    policy: str, aging_s: float, urgent: dict[str, Any], patient: dict[str, Any], head_start_s: float
) -> None:
    engine = waits_under_a_stream(policy, aging_s, urgent, patient)
    arrived = {event.seqs[0]: event.t for event in engine.of(RequestArrived)}
    status = [event for event in engine.of(StatusChanged) if event.new in ("RUNNING", "FINISHED")]
    ended = next(i for i, event in enumerate(status) if event.seq == 1 and event.new == "FINISHED")
    overtakers = {event.seq for event in status[:ended] if event.new == "RUNNING"} - {0, 1}
    assert overtakers, "it is not simply first come, first served"
    assert all(arrived[seq] <= arrived[1] + head_start_s * SECOND for seq in overtakers)
    assert len(engine.core.scheduler.waiting) > 100, "the stream has never let up"
    assert not [event for event in engine.of(SequencePreempted) if event.seq == 1]
    engine.finish_all()


@pytest.mark.parametrize(("policy", "aging_s", "urgent", "patient", "head_start_s"), STREAMS, ids=["priority", "sjf"])
def test_without_aging_it_would_wait_as_long_as_they_come(
    policy: str, aging_s: float, urgent: dict[str, Any], patient: dict[str, Any], head_start_s: float
) -> None:
    engine = waits_under_a_stream(policy, 1e6, urgent, patient)
    assert 1 not in engine.admissions()


@pytest.mark.parametrize("batching", ["prefill_first", "mixed"])
@OVERLAP
def test_two_that_come_back_from_the_swap_space_into_too_few_blocks_get_ahead(batching: str, overlap: bool) -> None:
    engine = Asked(
        policy="fcfs", num_blocks=6, host_blocks=12, preemption_mode="swap", batching=batching, overlap=overlap,
        max_num_batched_tokens=8,
    )  # fmt: skip
    names = [engine.ask(prompt(0, 8), 10), engine.ask(prompt(100, 11), 9)]
    engine.pause(names[0])
    engine.steps(4)
    engine.pause(names[1])
    for name in names:
        engine.resume(name)
    engine.finish_all()
    assert len(engine.preempted()) < 10


# A priority that changes


def test_a_waiting_one_moves_to_its_new_place() -> None:
    engine = Asked(max_num_seqs=1)
    names = [engine.ask(prompt(20 * i, 4), 3, priority) for i, priority in enumerate([0, 5, 6])]
    engine.step()
    engine.set_priority(names[2], 1)
    assert engine.snapshot().waiting == [2, 1]
    assert [(event.seq, event.priority) for event in engine.of(PriorityChanged)] == [(2, 1)]
    assert engine.snapshot().sequences[2].priority == 1
    engine.finish_all()
    assert engine.admissions() == [0, 2, 1]


def test_a_waiting_one_that_becomes_urgent_preempts() -> None:
    engine = Asked(max_num_seqs=1)
    names = [engine.ask(prompt(20 * i, 4), 5, 5) for i in range(2)]
    engine.steps(2)
    assert engine.preempted() == []
    engine.set_priority(names[1], 4)
    engine.step()
    assert engine.preempted() == [(0, 1, "priority")]
    engine.finish_all()


def test_a_running_one_is_spared_or_given_up_by_its_new_priority() -> None:
    engine = Asked(max_num_seqs=2)
    names = [engine.ask(prompt(20 * i, 4), 9, priority) for i, priority in enumerate([5, 3])]
    engine.steps(2)
    engine.set_priority(names[0], 2)
    engine.ask(prompt(100, 4), 2, 1)
    engine.step()
    assert engine.preempted() == [(1, 2, "priority")]
    engine.finish_all()


def test_a_paused_one_takes_its_new_place_when_it_goes_on() -> None:
    engine = Asked(max_num_seqs=1)
    name = engine.ask(prompt(0, 4), 6, 9)
    engine.steps(2)
    engine.pause(name)
    engine.set_priority(name, 0)
    engine.ask(prompt(20, 4), 6, 5)
    engine.steps(2)
    engine.resume(name)
    engine.step()
    assert engine.preempted() == [(1, 0, "priority")]
    engine.finish_all()


def test_all_live_sequences_of_a_request_change_and_no_ended_one() -> None:
    engine = Asked(num_blocks=64)
    name = engine.ask(prompt(0, 4), 6, 9, n=3)
    engine.steps(3)
    engine.pause(name, 1)
    engine.finish(name, 1)
    engine.set_priority(name, -7)
    assert [(event.seq, event.priority) for event in engine.of(PriorityChanged)] == [(0, -7), (2, -7)]
    del engine.expected[name]
    engine.finish_all()


@pytest.mark.parametrize("value", [1.5, "1", True, None, [], 1 << 31, -(1 << 31) - 1])
def test_what_is_no_priority_is_refused(value: Any) -> None:
    engine = Asked()
    name = engine.ask(prompt(0, 4), 3, 2)
    with pytest.raises(InvalidRequest, match=r"^priority=") as refused:
        engine.set_priority(name, value)
    assert refused.value.field == "priority"
    assert engine.snapshot().sequences[0].priority == 2 and not engine.of(PriorityChanged)
    engine.finish_all()


def test_nobody_of_that_name_has_a_priority() -> None:
    engine = Asked()
    with pytest.raises(UnknownRequest, match="no live request has the id"):
        engine.set_priority("nobody", 1)


# At random

requests = st.lists(
    st.tuples(
        st.integers(1, 20),  # tokens of the prompt
        st.integers(1, 10),  # of the output
        st.integers(-3, 3),  # priority
        st.integers(0, 4),  # steps until the next one comes
        st.integers(0, 8),  # seconds until then
        st.booleans(),  # begins like the others
        st.none() | st.tuples(st.integers(0, 11), st.integers(-3, 3)),  # whose priority changes then
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    asked=requests,
    num_blocks=st.integers(8, 20),
    cap=st.integers(1, 4),
    mode=st.sampled_from(["recompute", "swap", "auto"]),
    overlap=st.booleans(),
    policy=st.sampled_from(["priority", "sjf"]),
)
def test_whoever_comes_when_and_how_urgent_ends_with_its_own_tokens(
    asked: list[Any], num_blocks: int, cap: int, mode: str, overlap: bool, policy: str
) -> None:
    engine = Asked(
        num_blocks=num_blocks, max_num_seqs=cap, preemption_mode=mode, overlap=overlap, policy=policy, host_blocks=12,
        max_num_batched_tokens=16,
    )  # fmt: skip
    names = []
    for i, (length, max_tokens, priority, steps, seconds, shares, change) in enumerate(asked):
        names.append(engine.ask(prompt(0 if shares else 40 * (i + 1), length), max_tokens, priority))
        engine.core.clock.now += seconds * SECOND
        engine.steps(steps)
        if change is not None and names[change[0] % len(names)] in engine.core.requests:
            engine.set_priority(names[change[0] % len(names)], change[1])
    engine.finish_all()
