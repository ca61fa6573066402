"""The lives projection, held against the engine's own metrics and against its own sums."""

from __future__ import annotations

import pytest

from fake_engine import FakeEngine
from nanolens.telemetry.events import AnyEvent, JournalDropped, Keyframe, StatusChanged, StepFinished
from nanolens.telemetry.lives import Life, Lives

PARTS = ("queued_ns", "prefill_ns", "decode_ns", "preempted_ns", "paused_ns")


def lives_of(events: list[AnyEvent], keep_intervals: bool = False) -> dict[int, Life]:
    lives = Lives(keep_intervals)
    lives.apply_all(events)
    return lives.lives


def crowded(overlap: bool, **options: object) -> FakeEngine:
    """Six requests in a pool that holds about three: some are preempted."""
    engine = FakeEngine(num_blocks=13, overlap=overlap, **options)
    for number in range(6):
        engine.add(range(number * 20, number * 20 + 7), 14)
    engine.run()
    return engine


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("batching", ["mixed", "prefill_first"])
def test_the_parts_sum_to_the_lifetime(overlap: bool, batching: str) -> None:
    engine = crowded(overlap, batching=batching, max_num_batched_tokens=9)
    lives = lives_of(engine.events)
    ends = {e.seq: e.t for e in engine.of(StatusChanged) if e.new == "FINISHED"}
    assert len(lives) == 6
    assert sum(life.num_preemptions for life in lives.values()) > 0
    for life in lives.values():
        assert sum(getattr(life, part) for part in PARTS) == life.lifetime_ns
        assert life.until_t == ends[life.seq]
        assert all(getattr(life, part) >= 0 for part in PARTS)


@pytest.mark.parametrize("overlap", [False, True])
def test_it_agrees_with_the_engines_own_metrics(overlap: bool) -> None:
    engine = crowded(overlap)
    lives = lives_of(engine.events)
    for name, output in engine.outputs.items():
        life = next(life for life in lives.values() if life.request == name)
        m = output.metrics
        assert m is not None
        assert (life.since_t, life.first_token_t, life.last_token_t) == (m.arrived_t, m.first_token_t, m.last_token_t)
        assert life.queued_ns == m.first_scheduled_t - m.arrived_t
        assert life.num_output_tokens == m.num_output_tokens
        assert life.num_preemptions == m.num_preemptions
        if not m.num_preemptions:
            assert life.prefill_ns == m.first_token_t - m.first_scheduled_t
            assert life.preempted_ns == 0
        else:
            assert life.preempted_ns > 0


def test_it_counts_peak_blocks_and_cached_tokens() -> None:
    engine = FakeEngine(num_blocks=64)
    engine.add(range(9), 8)
    engine.run()
    engine.add(range(9), 8)
    engine.run()
    first, second = lives_of(engine.events).values()
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 8)
    assert first.peak_blocks == second.peak_blocks == 4  # 17 tokens, of which the last is never computed
    assert first.num_blocks == second.num_blocks == 0


def test_intervals_are_the_times_between_a_sequences_tokens() -> None:
    engine = crowded(overlap=True)
    for life in lives_of(engine.events, keep_intervals=True).values():
        assert len(life.intervals_ns) == life.num_output_tokens - 1
        assert sum(life.intervals_ns) == life.last_token_t - life.first_token_t


def test_siblings_have_a_life_each() -> None:
    engine = FakeEngine(num_blocks=64)
    engine.add(range(9), 5, n=3)
    engine.run()
    lives = lives_of(engine.events)
    assert [life.num_output_tokens for life in lives.values()] == [5, 5, 5]
    assert {life.request for life in lives.values()} == {"req-0"}


def test_an_aborted_sequence_ends_where_it_stands() -> None:
    engine = FakeEngine(num_blocks=64, max_num_seqs=1)
    engine.add(range(9), 5)
    waiting = engine.add(range(20, 29), 5)
    engine.step()
    engine.abort(waiting)
    engine.run()
    life = lives_of(engine.events)[1]
    assert (life.status, life.reason, life.num_output_tokens) == ("FINISHED", "aborted", 0)
    assert life.queued_ns == life.lifetime_ns > 0


def test_a_failed_sequence_counts_no_token_of_its_failed_step() -> None:
    engine = FakeEngine(num_blocks=64)
    engine.add(range(9), 5)
    engine.step()
    engine.runner.fail_rows = lambda plan: {plan.sequences[0].seq_id: "no valid token"}
    engine.run()
    life = lives_of(engine.events)[0]
    assert (life.status, life.num_output_tokens) == ("ERROR", 1)


def test_a_reader_that_joins_at_a_keyframe_tells_the_rest_of_each_life() -> None:
    engine = FakeEngine(num_blocks=13)
    for number in range(6):
        engine.add(range(number * 20, number * 20 + 7), 14)
    for _ in range(5):
        engine.step()
    keyframe = engine.snapshot()
    seen = len(engine.events)
    engine.run()
    whole, rest = lives_of(engine.events), lives_of([keyframe, *engine.events[seen:]])
    assert rest.keys() <= whole.keys() and rest
    for seq, life in rest.items():
        assert life.since_t == keyframe.t
        assert sum(getattr(life, part) for part in PARTS) == life.lifetime_ns
        assert life.num_output_tokens == whole[seq].num_output_tokens
        assert life.num_preemptions == whole[seq].num_preemptions


def test_it_passes_over_events_in_a_gap_until_the_next_keyframe() -> None:
    engine = FakeEngine(num_blocks=64)
    engine.add(range(9), 12)
    for _ in range(3):
        engine.step()
    before = list(engine.events)
    for _ in range(3):
        engine.step()
    keyframe = engine.snapshot()
    assert isinstance(keyframe, Keyframe)
    seen = len(engine.events)
    engine.run()
    life = lives_of([*before, JournalDropped(keyframe.t, 1, 1, "full"), keyframe, *engine.events[seen:]])[0]
    assert life.num_output_tokens == 12
    assert sum(getattr(life, part) for part in PARTS) == life.lifetime_ns


def test_looking_at_a_running_engine_counts_the_time_so_far() -> None:
    engine = FakeEngine(num_blocks=64)
    engine.add(range(9), 12)
    for _ in range(3):
        engine.step()
    lives = Lives()
    lives.apply_all(engine.events)
    now = engine.of(StepFinished)[-1].t + 500
    lives.advance(now)
    life = lives.lives[0]
    assert life.until_t == now and sum(getattr(life, part) for part in PARTS) == life.lifetime_ns
