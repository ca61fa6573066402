"""The state through pauses, resumptions, priorities and a paused engine, from events made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from nanolens.telemetry.audit import Audit
from nanolens.telemetry.differences import keyframe_differences
from nanolens.telemetry.events import (
    AnyEvent,
    EngineContinued,
    EnginePaused,
    Keyframe,
    PriorityChanged,
    RequestArrived,
    SequencePreempted,
    SequenceResumed,
    StatusChanged,
    StepFinished,
    StepPlanned,
)
from nanolens.telemetry.state import EngineState
from stories import find, story, swap_started

SECOND = 10**9


def until(kind: type, where: Any = lambda e: True) -> EngineState:
    """The state of the story after the first such event."""
    events, state = story(), EngineState()
    state.apply_all(events[: find(events, kind, where) + 1])
    return state


def arrive(state: EngineState, seq: int, t: int, prompt: int = 6, max_tokens: int = 4, priority: int = 0) -> None:
    state.apply(RequestArrived(t, f"r{seq}", [seq], prompt, max_tokens, priority, {}))
    state.apply(StatusChanged(t, 0, seq, "", "WAITING", "arrived", f"r{seq}"))


def queue_of(state: EngineState) -> list[int]:
    return state.to_keyframe().waiting


def begun(**config: Any) -> EngineState:
    state = EngineState()
    state.apply(swap_started(**config))
    return state


def test_the_state_is_the_one_worked_out_by_hand() -> None:
    events = story()
    at = find(events, Keyframe)
    state = EngineState()
    state.apply_all(events[:at])
    assert keyframe_differences(events[at], state.to_keyframe()) == []  # type: ignore[arg-type]


def test_a_reader_that_joins_at_the_keyframe_reaches_the_same_state_after_each_event() -> None:
    events = story()
    at = find(events, Keyframe)
    whole, late = EngineState(), EngineState()
    whole.apply_all(events[:at])
    for event in events[at:]:
        whole.apply(event)
        late.apply(event)
        assert keyframe_differences(late.to_keyframe(), whole.to_keyframe()) == []


def test_a_reader_that_joins_anywhere_reaches_the_same_state_at_the_end() -> None:
    """Joined while a step was in flight, it knows who sampled, and a step of moves alone takes no token."""
    events = story()
    whole = EngineState()
    for cut, event in enumerate(events):
        whole.apply(event)
        if whole.steps.decoding and not isinstance(event, StatusChanged):
            late, rest = EngineState.from_keyframe(whole.to_keyframe()), EngineState()
            rest.apply_all(events[: cut + 1])
            for later in events[cut + 1 :]:
                late.apply(later)
                rest.apply(later)
                if isinstance(later, StepFinished):
                    assert keyframe_differences(late.to_keyframe(), rest.to_keyframe()) == []


def test_a_pause_leaves_what_was_kept_and_takes_no_token_of_the_step_in_flight() -> None:
    state = until(StepFinished, lambda e: e.step == 3)
    snapshot = state.snapshot(0)
    assert (snapshot.status, snapshot.num_computed_tokens, snapshot.num_output_tokens) == ("PAUSED", 7, 2)
    assert state.snapshot(1).num_output_tokens == 2
    assert state.running == {1}


def test_appended_tokens_are_neither_prompt_nor_output_and_must_be_computed() -> None:
    state = until(StatusChanged, lambda e: e.new == "RUNNING" and e.reason == "resumed")
    snapshot = state.snapshot(0)
    assert (snapshot.num_prompt_tokens, snapshot.num_output_tokens, snapshot.num_appended_tokens) == (6, 2, 3)
    assert (snapshot.prefill_target, snapshot.phase, snapshot.max_tokens) == (11, "prefill", 12)
    assert snapshot.num_computed_tokens == 7


def test_a_preemption_with_swap_keeps_computed_tokens() -> None:
    state = until(SequencePreempted)
    assert state.snapshot(1).num_computed_tokens == 11
    assert state.snapshot(1).num_preemptions == 1


def test_a_waiting_sequence_that_pauses_keeps_its_computed_tokens() -> None:
    state = until(StatusChanged, lambda e: e.reason == "resumed")
    state.apply(StatusChanged(535, 5, 0, "WAITING", "PAUSED", "operator"))
    assert state.snapshot(0).num_computed_tokens == 7
    assert queue_of(state) == []


def test_a_pause_void_in_flight_and_a_quick_resumption_take_each_token_once() -> None:
    """Step 2 is in flight when the sequence pauses and goes on in step 3: the token of step 2 is not its own."""
    state = begun()
    arrive(state, 0, 10)
    state.apply_all(
        [
            StatusChanged(20, 1, 0, "WAITING", "RUNNING", "admitted"),
            StepPlanned(21, 1, "prefill", [(0, 0, 6)], 0, [], 0, 1, 8),
            StepPlanned(22, 2, "decode", [], 1, [], 0, 1, 8),
            StepFinished(23, 1, 1, 1, 1, 1, 6, 1, []),
            StatusChanged(24, 2, 0, "RUNNING", "PAUSED", "operator", "", 6),
            SequenceResumed(25, 2, 0, 0, 4),
            StatusChanged(26, 2, 0, "PAUSED", "RUNNING", "resumed"),
            StepPlanned(27, 3, "prefill", [(0, 6, 1)], 0, [], 0, 1, 8),
            StepFinished(28, 2, 1, 1, 1, 1, 1, 1, [0]),
        ]
    )
    assert (state.snapshot(0).num_output_tokens, state.snapshot(0).num_computed_tokens) == (1, 7)
    state.apply_all([StepPlanned(29, 4, "decode", [], 1, [], 0, 1, 8), StepFinished(30, 3, 1, 1, 1, 1, 1, 1, [])])
    assert (state.snapshot(0).num_output_tokens, state.snapshot(0).num_computed_tokens) == (2, 8)
    state.apply(StepFinished(31, 4, 1, 1, 1, 1, 1, 1, []))
    assert (state.snapshot(0).num_output_tokens, state.snapshot(0).last_token_t) == (3, 31)


def test_a_step_of_moves_alone_is_no_ones_token() -> None:
    """A reader that joined while step 2 was in flight does not take step 3, of moves alone, for it."""
    state = begun()
    arrive(state, 0, 10)
    state.apply_all(
        [
            StatusChanged(20, 1, 0, "WAITING", "RUNNING", "admitted"),
            StepPlanned(21, 1, "prefill", [(0, 0, 6)], 0, [], 0, 1, 8),
        ]
    )
    rest: list[AnyEvent] = [
        StepPlanned(22, 2, "moves", [], 0, [], 0, 1, 8),
        StepFinished(23, 1, 1, 1, 1, 1, 6, 1, []),
        StepFinished(24, 2, 1, 1, 1, 1, 0, 0, []),
    ]
    late = EngineState.from_keyframe(state.to_keyframe())
    for event in rest:
        late.apply(event)
        state.apply(event)
        assert late.snapshot(0) == state.snapshot(0)
    assert (state.snapshot(0).num_output_tokens, state.snapshot(0).first_token_t) == (1, 23)
    assert state.steps.planned(2) is None


def test_the_engines_pause_is_part_of_the_state() -> None:
    state = begun()
    assert state.to_keyframe().engine_paused == ""
    state.apply(EnginePaused(5, 0, "operator"))
    assert state.to_keyframe().engine_paused == "operator"
    late = EngineState.from_keyframe(state.to_keyframe())
    assert late.engine_paused == "operator"
    late.apply(EngineContinued(6, 0, 0))
    assert late.to_keyframe().engine_paused == ""
    assert keyframe_differences(state.to_keyframe(), late.to_keyframe()) == [
        "engine_paused: operator given,  expected"
    ]


@pytest.mark.parametrize(("gap_s", "order"), [(9, [1, 0]), (11, [0, 1])])
def test_under_priority_waiting_weighs_a_level_for_each_aging_time(gap_s: int, order: list[int]) -> None:
    state = begun(policy="priority")  # no aging_s, as in an older journal: 10 seconds
    arrive(state, 0, SECOND, priority=1)
    arrive(state, 1, SECOND * (1 + gap_s), priority=0)
    assert queue_of(state) == order


def test_a_priority_changes_the_place_of_who_waits() -> None:
    state = begun(policy="priority", aging_s=1.0)
    for seq in range(3):
        arrive(state, seq, SECOND + seq)
    assert queue_of(state) == [0, 1, 2]
    state.apply(PriorityChanged(SECOND, 0, 2, -1))
    assert queue_of(state) == [2, 0, 1]
    assert state.snapshot(2).priority == -1


@pytest.mark.parametrize(("tokens", "order"), [(499, [0, 1]), (501, [1, 0])])
def test_under_sjf_waiting_weighs_a_thousand_tokens_for_each_aging_time(tokens: int, order: list[int]) -> None:
    state = begun(policy="sjf", aging_s=1.0)
    arrive(state, 0, SECOND, prompt=1 + tokens)
    arrive(state, 1, SECOND + SECOND // 2, prompt=1)
    assert queue_of(state) == order


def test_under_sjf_a_place_is_kept_as_it_was_when_the_wait_began() -> None:
    """A sequence that loses its KV while it waits has more to compute, and keeps its place, for a late reader too."""
    state = begun(policy="sjf")
    arrive(state, 0, 10, prompt=20)
    arrive(state, 1, 11, prompt=10)
    state.apply_all(
        [
            StatusChanged(20, 1, 0, "WAITING", "RUNNING", "admitted"),
            StepPlanned(21, 1, "prefill", [(0, 0, 20)], 0, [], 1, 1, 8),
            StepFinished(22, 1, 1, 1, 1, 1, 20, 1, []),
            SequencePreempted(23, 2, 0, 0, "no_blocks", "swap", 0, 0, 20),
            StatusChanged(24, 2, 0, "RUNNING", "WAITING", "preempted"),
        ]
    )
    assert queue_of(state) == [0, 1]  # 1 token to compute and 3 to generate, against 10 and 4
    state.sequences[0].num_computed_tokens = 0  # as a failed move leaves it
    late = EngineState.from_keyframe(state.to_keyframe())
    for each in (state, late):
        assert queue_of(each) == [0, 1]
        arrive(each, 2, 30, prompt=1)
    assert queue_of(state) == [0, 2, 1]
    assert state.is_order_sure and not late.is_order_sure
    audit = Audit()
    audit.state = late
    audit.apply(state.to_keyframe())
    late.apply(StatusChanged(31, 2, 0, "WAITING", "FINISHED", "aborted"))
    assert late.is_order_sure


def test_a_resumed_sequence_waits_with_what_it_has_left() -> None:
    state = begun(policy="sjf")
    arrive(state, 0, 10, prompt=20, max_tokens=4)
    arrive(state, 1, 11, prompt=10)
    state.apply(StatusChanged(20, 0, 0, "WAITING", "PAUSED", "operator"))
    state.apply_all([SequenceResumed(21, 0, 0, 5, 6), StatusChanged(22, 0, 0, "PAUSED", "WAITING", "resumed")])
    assert queue_of(state) == [1, 0]
    assert state.waiting[0][0] == (25 + 6) * 10 * SECOND // 1000 + 10
