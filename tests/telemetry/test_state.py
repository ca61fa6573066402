"""The state projection: the events alone give what the engine itself says, from wherever a reader joins."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from journals import busy_engine, empty_keyframe, started
from nanolens.errors import AuditError
from nanolens.telemetry.differences import keyframe_differences
from nanolens.telemetry.events import (
    BlocksAllocated,
    BlocksFreed,
    JournalDropped,
    Keyframe,
    RequestArrived,
    SequencePreempted,
    StatusChanged,
    StepFinished,
    StepPlanned,
    WaitReasonChanged,
)
from nanolens.telemetry.reader import JournalReader
from nanolens.telemetry.state import EngineState

MODES = list(itertools.product((False, True), ("mixed", "prefill_first"), ("fcfs", "priority", "sjf")))


def arrival(seq: int = 0, prompt: int = 6, max_tokens: int = 9) -> list[object]:
    return [
        RequestArrived(5, f"r{seq}", [seq], prompt, max_tokens, 0, {}),
        StatusChanged(6, 0, seq, "", "WAITING", "arrived", f"r{seq}"),
    ]


def admission(seq: int = 0, blocks: tuple[int, ...] = (0, 1, 2), free: int = 5) -> list[object]:
    return [
        StatusChanged(7, 1, seq, "WAITING", "RUNNING", "admitted"),
        BlocksAllocated(7, 1, seq, [], list(blocks), [], free),
    ]


def planned(step: int, chunks: list[tuple[int, int, int]], decodes: int, idle: list[int] | None = None) -> StepPlanned:
    return StepPlanned(10 * step, step, "mixed", chunks, decodes, idle or [], 0, 1, 5)


def finished(step: int, wasted: list[int] | None = None) -> StepFinished:
    return StepFinished(10 * step + 5, step, 1, 1, 1, 1, 1, 1, wasted or [])


def state_after(*events: object) -> EngineState:
    state = EngineState()
    state.apply(started())
    state.apply_all(events)  # type: ignore[arg-type]
    return state


@pytest.mark.parametrize(("overlap", "batching", "policy"), MODES)
def test_equals_the_engines_own_keyframe_after_every_step(
    tmp_path: Path, overlap: bool, batching: str, policy: str
) -> None:
    engine = busy_engine(tmp_path, overlap=overlap, batching=batching, policy=policy)
    engine.core.close()
    state, compared = EngineState(), 0
    for frame in JournalReader(tmp_path).frames():
        for event in frame.events:
            if isinstance(event, Keyframe):
                assert keyframe_differences(event, state.to_keyframe()) == []
                compared += 1
            state.apply(event)
    assert compared > 50
    assert state.totals.counts["preemptions"] > 0
    assert state.totals.counts["blocks_evicted"] > 0
    assert state.totals.counts["prefix_hit_tokens"] > 0


@pytest.mark.parametrize("overlap", [False, True])
def test_a_late_reader_reaches_the_same_state_at_every_frame(tmp_path: Path, overlap: bool) -> None:
    engine = busy_engine(tmp_path, overlap=overlap)
    engine.core.close()
    frames = [frame.events for frame in JournalReader(tmp_path).frames()]
    whole = EngineState()
    expected = []
    for events in frames:
        whole.apply_all(events)
        expected.append(whole.to_keyframe())
    for start in range(0, len(frames), 5):
        late = EngineState()
        for events, want in zip(frames[start:], expected[start:], strict=True):
            late.apply_all(events)
            assert not late.joined or keyframe_differences(late.to_keyframe(), want) == []
        assert late.joined or start == len(frames) - 1


def test_events_before_the_first_keyframe_are_passed_over() -> None:
    state = EngineState()
    state.apply_all([finished(3), WaitReasonChanged(1, 3, 9, "no_blocks")])
    assert not state.joined
    with pytest.raises(AuditError, match=r"before engine\.started or the first keyframe"):
        state.to_keyframe()


def test_computed_tokens_rise_by_chunks_then_by_one_a_step() -> None:
    state = state_after(*arrival(), *admission(), planned(1, [(0, 0, 4)], 0))
    assert (state.snapshot(0).num_computed_tokens, state.snapshot(0).phase) == (4, "prefill")
    state.apply_all([finished(1), planned(2, [(0, 4, 2)], 0)])
    assert (state.snapshot(0).num_computed_tokens, state.snapshot(0).phase) == (6, "decode")
    state.apply_all([finished(2), planned(3, [], 1)])
    assert state.snapshot(0).num_computed_tokens == 7


def test_only_a_step_that_ends_the_prefill_gives_a_token() -> None:
    state = state_after(*arrival(), *admission(), planned(1, [(0, 0, 4)], 0), finished(1))
    assert state.snapshot(0).num_output_tokens == 0
    state.apply_all([planned(2, [(0, 4, 2)], 0), finished(2)])
    snapshot = state.snapshot(0)
    assert (snapshot.num_output_tokens, snapshot.first_token_t, snapshot.last_token_t) == (1, 25, 25)


def test_a_step_planned_before_the_last_was_read_counts_once() -> None:
    state = state_after(*arrival(), *admission(), planned(1, [(0, 0, 6)], 0), planned(2, [], 1))
    assert state.snapshot(0).num_output_tokens == 0
    state.apply(finished(1))
    assert state.snapshot(0).num_output_tokens == 1
    state.apply_all([planned(3, [], 1), finished(2)])
    snapshot = state.snapshot(0)
    assert (snapshot.num_output_tokens, snapshot.num_computed_tokens) == (2, 8)
    assert (snapshot.first_token_t, snapshot.last_token_t) == (15, 25)


def test_an_idle_sequence_neither_computes_nor_samples() -> None:
    state = state_after(*arrival(), *admission(), *arrival(1), *admission(1, (3, 4), 3))
    state.apply_all([planned(1, [(0, 0, 6), (1, 0, 6)], 0), planned(2, [], 1, idle=[1]), finished(1), finished(2)])
    assert (state.snapshot(0).num_output_tokens, state.snapshot(1).num_output_tokens) == (2, 1)
    assert (state.snapshot(0).num_computed_tokens, state.snapshot(1).num_computed_tokens) == (7, 6)


def test_a_step_without_decodes_leaves_decoding_sequences_alone() -> None:
    state = state_after(*arrival(), *admission(), planned(1, [(0, 0, 6)], 0), finished(1))
    state.apply_all([*arrival(1), *admission(1, (3, 4), 3), planned(2, [(1, 0, 6)], 0), finished(2)])
    assert (state.snapshot(0).num_output_tokens, state.snapshot(0).num_computed_tokens) == (1, 6)


def test_a_wasted_token_is_not_counted() -> None:
    state = state_after(*arrival(), *admission(), planned(1, [(0, 0, 6)], 0), finished(1), planned(2, [], 1))
    state.apply_all(
        [
            SequencePreempted(31, 3, 0, 0, "no_blocks", "recompute", 3, 7),
            StatusChanged(31, 3, 0, "RUNNING", "WAITING", "preempted"),
            BlocksFreed(31, 3, 0, [2, 1, 0], 8),
            finished(2, wasted=[0]),
        ]
    )
    snapshot = state.snapshot(0)
    assert (snapshot.num_output_tokens, snapshot.num_computed_tokens, snapshot.num_preemptions) == (1, 0, 1)


def test_a_token_in_flight_still_counts_for_a_sequence_that_stopped_running() -> None:
    state = state_after(*arrival(), *admission(), planned(1, [(0, 0, 6)], 0), finished(1), planned(2, [], 1))
    state.apply_all([StatusChanged(31, 2, 0, "RUNNING", "PAUSED", "operator"), finished(2)])
    assert state.snapshot(0).num_output_tokens == 2


def test_the_prefill_target_of_a_readmission_holds_the_outputs_so_far() -> None:
    state = state_after(*arrival(), *admission(), planned(1, [(0, 0, 6)], 0), finished(1))
    state.apply_all(
        [
            SequencePreempted(31, 2, 0, 0, "no_blocks", "recompute", 3, 6),
            StatusChanged(31, 2, 0, "RUNNING", "WAITING", "preempted"),
            BlocksFreed(31, 2, 0, [2, 1, 0], 8),
            StatusChanged(32, 3, 0, "WAITING", "RUNNING", "readmitted"),
        ]
    )
    assert (state.snapshot(0).prefill_target, state.snapshot(0).phase) == (7, "prefill")


def test_released_blocks_go_to_the_end_of_the_free_list_the_tail_first() -> None:
    state = state_after(*arrival(), *admission())
    assert list(state.pool.free) == [3, 4, 5, 6, 7]
    state.apply_all([StatusChanged(8, 1, 0, "RUNNING", "FINISHED", "aborted"), BlocksFreed(8, 1, 0, [2, 1, 0], 8)])
    assert list(state.pool.free) == [3, 4, 5, 6, 7, 2, 1, 0]


def test_a_loss_in_the_journal_passes_over_events_until_the_keyframe() -> None:
    state = state_after(*arrival(), JournalDropped(1, 5, 1, "disk full"), finished(9))
    assert not state.joined
    state.apply(empty_keyframe(step=12))
    assert state.joined
    assert (state.step, state.sequences) == (12, {})


def test_an_event_about_nothing_known_is_an_audit_error() -> None:
    with pytest.raises(AuditError, match=r"sequence.waits names 7, which the events before it do not have"):
        state_after(WaitReasonChanged(1, 1, 7, "no_blocks"))


def test_a_decode_step_costs_no_work_for_each_sequence() -> None:
    """Its cost is counted in look-ups of the sequence table, not in time."""
    state = state_after()
    for seq in range(100):
        state.apply_all([*arrival(seq, prompt=1), StatusChanged(7, 1, seq, "WAITING", "RUNNING", "admitted")])  # type: ignore[list-item]
    state.apply_all([planned(1, [(seq, 0, 1) for seq in range(100)], 0), finished(1)])
    state.sequences = {}
    for step in range(2, 50):
        state.apply_all([planned(step, [], 100), finished(step)])
    assert {state.steps.settle(seq).num_output_tokens for seq in state.steps.decoding.values()} == {49}
