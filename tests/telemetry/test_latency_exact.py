"""The parts of every request's time add up to it, to the nanosecond, whatever happened in the run."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from fake_engine import FakeEngine
from journals import busy_engine
from latency_checks import check_exact, check_whole, latency_of
from nanolens.engine.sampling_params import SamplingParams
from nanolens.telemetry.events import (
    AnyEvent,
    EngineStarted,
    Keyframe,
    RequestArrived,
    SequencePreempted,
    StatusChanged,
    StepFinished,
    StepPlanned,
)
from nanolens.telemetry.latency import PARTS, Latency
from nanolens.telemetry.latency_tracks import LatencyTracks
from random_lives import Driver
from stories import story
from timed_engine import timed_engine

WAYS = [*itertools.product(("recompute", "swap", "auto"), (False, True), ("fcfs", "priority", "sjf"))]
SMALL = {
    "num_blocks": 12, "host_blocks": 5, "disk_blocks": 12, "max_num_seqs": 4, "max_prefill_chunk": 5,
    "paused_ttl_s": None, "max_model_len": 48, "aging_s": 1e-2,
}  # fmt: skip


def random_run(seed: int, num_requests: int, keyframe_ns: int | None = None, **options: Any) -> list[AnyEvent]:
    """Random commands until so many requests have come, then until all have ended; the host takes its time too."""
    rng = random.Random(seed)
    engine, clock = timed_engine(**(SMALL | options))
    object.__setattr__(engine.core.config, "audit", False)  # it is tested elsewhere, and takes most of the time
    if keyframe_ns is not None:
        engine.core.recorder.keyframe_interval_ns = keyframe_ns
    driver = Driver(engine, rng)
    commands = driver.commands()
    while engine.core.book.requests or num_requests > 0:
        command = rng.choice(commands)
        if command == driver.add:
            num_requests -= len(engine.core.requests) <= 9
        command()
        if rng.random() < 0.1:
            clock.now += rng.randrange(5_000_000)
        if num_requests <= 0:
            driver.drain()
    engine.close()
    return engine.events


def ways_found(latency: Latency) -> set[str]:
    """The parts that any request has."""
    return {part for b in latency.breakdowns() for part in b.parts}


@pytest.mark.parametrize("seed", range(10))
def test_ten_thousand_random_requests(seed: int) -> None:
    mode, overlap, policy = WAYS[seed * 7 % len(WAYS)]
    batching = ("mixed", "prefill_first")[seed % 2]
    events = random_run(seed, 1000, preemption_mode=mode, overlap=overlap, policy=policy, batching=batching)
    assert sum(isinstance(event, RequestArrived) for event in events) == 1000
    found = ways_found(check_whole(events))
    assert found >= {
        "queue_next_step", "queue_sequence_cap", "engine_paused", "own_prefill", "prefill_interference", "own_decode",
        "batch_cost", "host_gap", "paused", "recompute",
    }  # fmt: skip


@pytest.mark.parametrize(("mode", "overlap", "policy"), WAYS)
def test_every_policy_and_mode(mode: str, overlap: bool, policy: str) -> None:
    events = random_run(100, 60, preemption_mode=mode, overlap=overlap, policy=policy)
    check_whole(events)
    assert any(isinstance(event, SequencePreempted) for event in events)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_run_whose_device_is_not_measured(overlap: bool) -> None:
    engine = busy_engine(overlap=overlap)
    engine.close()
    check_whole(engine.events)


def test_every_part_that_is_written_down_occurs_in_some_run() -> None:
    seen: set[str] = set()
    for mode, policy in itertools.product(("recompute", "swap"), ("fcfs", "priority")):
        seen |= ways_found(check_whole(random_run(7, 250, preemption_mode=mode, policy=policy)))
        seen |= ways_found(check_whole(random_run(8, 250, preemption_mode=mode, policy=policy, max_num_seqs=12)))
    assert set(PARTS) - seen <= {"back_pressure", "unknown", "queue_token_budget", "rank_skew", "stalled_step"}


def test_a_run_in_which_steps_fail() -> None:
    engine, _ = timed_engine(max_num_seqs=4)
    engine.runner.fail_launch = lambda plan: RuntimeError("no") if plan.step % 9 == 8 else None
    engine.runner.fail_rows = lambda plan: {s.seq_id: "not finite" for s in plan.sequences if s.seq_id % 7 == 6}
    for i in range(40):
        engine.add([1 + i] * (3 + i % 9), max_tokens=4 + i % 5, n=1 + (i % 5 == 4))
        engine.step()
    engine.run()
    engine.close()
    assert any(isinstance(event, StatusChanged) and event.new == "ERROR" for event in engine.events)
    check_whole(engine.events)


def test_the_story_made_by_hand() -> None:
    check_whole(story())


@pytest.mark.parametrize("overlap", [False, True])
def test_a_look_at_any_moment_divides_what_was_until_then(overlap: bool) -> None:
    events = random_run(3, 40, overlap=overlap)
    for end in range(1, len(events), 41):
        latency = latency_of(events[:end])
        assert all(b.ended or b.end_t == latency.tracks.t for b in check_exact(latency))


def test_a_look_after_the_newest_event_counts_the_time_until_then() -> None:
    engine, clock = timed_engine()
    engine.add([1, 2, 3], max_tokens=50)
    for _ in range(9):
        engine.step()
    (b,) = check_exact(latency_of(engine.events, t=clock.now + 5_000_000))
    assert b.end_t == clock.now + 5_000_000 and not b.ended and b.parts["host_gap"] > 5_000_000


def test_what_is_under_way_is_the_devices_time_until_it_is_read() -> None:
    engine, clock = timed_engine(overlap=True)
    engine.add([1, 2, 3], max_tokens=50)
    for _ in range(9):
        engine.step()
    planned = max(event.t for event in engine.of(StepPlanned))
    read = max(event.t for event in engine.of(StepFinished))
    assert planned > 0 and read > 0
    before = check_exact(latency_of(engine.events))[0].parts
    (b,) = check_exact(latency_of(engine.events, t=clock.now + 5_000_000))
    assert b.parts["own_decode"] - before["own_decode"] >= 5_000_000
    assert b.parts.get("host_gap", 0) == before.get("host_gap", 0)


def with_keyframes(seed: int, **options: Any) -> list[AnyEvent]:
    """A run with the engine's own state after every few events."""
    events: list[AnyEvent] = []
    engine, clock = timed_engine(**(SMALL | options))
    rng = random.Random(seed)
    driver = Driver(engine, rng)
    engine.core.recorder.subscribe(events.extend)
    events[:] = engine.of(EngineStarted)
    for _ in range(400):
        rng.choice(driver.commands())()
        engine.core.flush()
        if rng.random() < 0.15:
            clock.now += rng.randrange(3_000_000)
            frame = engine.snapshot()
            frame.totals = engine.core.recorder.totals.snapshot()
            events.append(frame)
    driver.drain()
    engine.close()
    return events


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_joined_at_any_keyframe_the_time_before_it_is_unknown(mode: str, overlap: bool) -> None:
    events = with_keyframes(5, overlap=overlap, preemption_mode=mode)
    frames = [i for i, event in enumerate(events) if isinstance(event, Keyframe)]
    for at in frames[:: max(1, len(frames) // 12)]:
        frame = events[at]
        living = {s.seq: s.arrived_t for s in frame.sequences}
        found = check_exact(latency_of(events[at:]))
        for b in found:
            known_from = frame.t - living[b.track.seq] if b.track.seq in living else 0
            unread = b.parts.get("unknown", 0) - known_from
            assert unread == 0 or (overlap and known_from and 0 < unread < 20_000_000)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_with_parts_of_the_journal_lost(seed: int, overlap: bool) -> None:
    events = with_keyframes(seed, overlap=overlap, preemption_mode=("swap", "recompute")[seed % 2])
    rng, tracks, lost = random.Random(seed), LatencyTracks(), 0
    for event in events:
        if lost:
            lost -= 1
            continue
        tracks.apply(event)
        if rng.random() < 0.01:
            tracks.lose()
            lost = rng.randrange(120)
    tracks.finish()
    assert "unknown" in {part for b in check_exact(Latency(tracks)) for part in b.parts}


def test_a_step_in_flight_where_reading_began_is_unknown() -> None:
    engine, _ = timed_engine(overlap=True)
    engine.add([1, 2, 3], max_tokens=9)
    for _ in range(4):
        engine.step()
    engine.core.flush()
    frame, seen = engine.snapshot(), len(engine.events)
    engine.run()
    engine.close()
    under_way = min(event.step for event in engine.events[seen:] if isinstance(event, StepFinished))
    latency = latency_of([frame, *engine.events[seen:]])
    (b,) = check_exact(latency)
    assert under_way <= frame.step and latency.windows.number[0] == under_way
    unread = int(latency.windows.device[0])
    assert unread > 1_000_000 and b.parts["unknown"] == frame.t - b.begin_t + unread


def test_a_pause_of_the_engine_that_ended_in_a_gap_goes_on_no_longer() -> None:
    engine, clock = timed_engine()
    engine.add([1, 2, 3], max_tokens=30)
    engine.step()
    engine.core.pause_engine("operator")
    engine.core.flush()
    tracks = LatencyTracks()
    for event in engine.events:
        tracks.apply(event)
    tracks.lose()
    lost_t, seen = clock.now, len(engine.events)
    engine.core.continue_engine(0)
    clock.now += 5_000_000
    engine.core.flush()
    frame = engine.snapshot()
    frame.totals = engine.core.recorder.totals.snapshot()
    missed, seen = seen, len(engine.events)
    engine.run()
    engine.close()
    for event in (frame, *engine.events[seen:]):
        tracks.apply(event)
    tracks.finish()
    (b,) = check_exact(Latency(tracks))
    assert seen > missed and b.parts["unknown"] >= 5_000_000
    assert [(end <= lost_t, cause) for _, end, cause in tracks.pauses] == [(True, "operator")]
    assert b.parts.get("engine_paused", 0) < 1_000_000


def test_a_journal_that_ends_in_a_gap() -> None:
    engine, clock = timed_engine()
    engine.add([1, 2, 3], max_tokens=50)
    engine.step()
    tracks = LatencyTracks()
    for event in engine.events:
        tracks.apply(event)
    tracks.lose()
    tracks.finish(clock.now + 1000)
    (b,) = check_exact(Latency(tracks))
    assert not b.ended and b.parts["unknown"] >= 1000


def test_an_id_that_is_used_again_keeps_both_requests() -> None:
    engine, _ = timed_engine()
    for tokens in (3, 7):
        engine.add_request([1, 2, 3], SamplingParams(max_tokens=tokens, temperature=0.0), request_id="mine")
        engine.run()
    engine.close()
    first, second = check_exact(latency_of(engine.events))
    assert first.request is not second.request and first.end_t <= second.begin_t
    assert (first.track.num_output_tokens, second.track.num_output_tokens) == (3, 7)


def test_of_several_sequences_the_last_one_counts() -> None:
    engine, _ = timed_engine(max_num_seqs=2)
    engine.add([1, 2, 3, 4, 5], max_tokens=9, n=3)
    engine.run()
    engine.close()
    latency = check_whole(engine.events)
    (b,) = latency.breakdowns()
    assert b.track.end_t == max(track.end_t for track in latency.tracks.tracks.values())
    assert b.track.seq == 2 and b.parts["queue_sequence_cap"] > 0


def test_nothing_applied_is_no_request_and_no_step() -> None:
    latency = latency_of([])
    assert list(latency.breakdowns()) == [] and len(latency.windows) == 0 and latency.model.num_steps == 0


def test_a_device_that_takes_no_time_is_host_gap() -> None:
    engine = FakeEngine()
    engine.add([1, 2], max_tokens=3)
    engine.run()
    engine.close()
    assert check_whole(engine.events).windows.device.sum() == 0
