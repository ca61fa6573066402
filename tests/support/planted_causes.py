"""Runs with a planted cause of latency, on a fake engine whose clock is its own: they always take the same time.

Each builder returns the engine and the request whose time the cause took.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fake_engine import FakeEngine
from nanolens.engine.plan import MoveResult
from nanolens.engine.sampling_params import SamplingParams
from nanolens.telemetry.events import StreamStalled
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.latency import Latency
from nanolens.telemetry.latency_tracks import LatencyTracks
from timed_engine import timed_engine

MS = 1_000_000

Case = tuple[FakeEngine, str]


def latency_of(engine: FakeEngine) -> Latency:
    """The latency model over all that an engine has recorded."""
    engine.core.flush()
    tracks = LatencyTracks()
    for event in engine.events:
        tracks.apply(event)
    tracks.finish()
    return Latency(tracks)


def written(engine: FakeEngine, path: Path) -> Path:
    """The journal of all that an engine has recorded, in frames of 20 events."""
    engine.core.flush()
    writer = JournalWriter(path, engine.core.started.run_id)
    for first in range(0, len(engine.events), 20):
        writer.append(engine.events[first : first + 20])
    writer.close()
    return path


def prompt(length: int, salt: int = 0) -> list[int]:
    """Tokens of which no block is another salt's."""
    return [(salt * 37 + i) % 997 for i in range(length)]


def steps(engine: FakeEngine, count: int) -> None:
    """So many steps."""
    for _ in range(count):
        engine.step()


def long_prefill() -> Case:
    """A decoder beside which a prompt of 240 tokens is computed in chunks of 60."""
    engine, _ = timed_engine(num_blocks=128, max_prefill_chunk=60)
    decoder = engine.add(prompt(8), 24)
    steps(engine, 4)
    engine.add(prompt(240, 1), 2)
    engine.run()
    return engine, decoder


def short_pool() -> Case:
    """A request that does not fit beside the two that hold all blocks."""
    engine, _ = timed_engine(num_blocks=32)
    engine.add(prompt(70, 1), 20)
    engine.add(prompt(22, 2), 16)
    steps(engine, 2)
    late = engine.add(prompt(40, 3), 2)
    engine.run()
    return engine, late


def behind_the_head() -> Case:
    """A small request behind one that does not fit: it waits for what the head waits for."""
    engine, _ = timed_engine(num_blocks=32)
    engine.add(prompt(90, 1), 30)
    steps(engine, 2)
    engine.add(prompt(60, 2), 2)
    small = engine.add(prompt(4, 3), 2)
    engine.run()
    return engine, small


def sequence_cap() -> Case:
    """A request for which the batch has no place."""
    engine, _ = timed_engine(max_num_seqs=2)
    engine.add(prompt(8, 1), 30)
    engine.add(prompt(8, 2), 20)
    steps(engine, 1)
    late = engine.add(prompt(8, 3), 2)
    engine.run()
    return engine, late


def token_budget() -> Case:
    """A request behind a prompt that takes each step's whole budget."""
    engine, _ = timed_engine(num_blocks=128, max_num_batched_tokens=32)
    engine.add(prompt(300, 1), 2)
    steps(engine, 1)
    late = engine.add(prompt(8, 2), 2)
    engine.run()
    return engine, late


def priority_preemption() -> Case:
    """A request that has to go for a more urgent one, and comes back when that has ended."""
    engine, _ = timed_engine(max_num_seqs=1, policy="priority", num_blocks=128)
    victim = engine.add(prompt(16, 1), 10, priority=5)
    steps(engine, 5)
    engine.add(prompt(60, 2), 40, priority=0)
    engine.run()
    return engine, victim


def blocks_preemption() -> Case:
    """Two that grow in a pool that is too small for both: the later one goes, and computes its tokens again."""
    engine, _ = timed_engine(num_blocks=16)
    engine.add(prompt(16, 1), 24)
    victim = engine.add(prompt(16, 2), 24)
    engine.run()
    return engine, victim


def slow_caller() -> Case:
    """A caller that sleeps for 50 ms before one step."""
    engine, clock = timed_engine()
    request = engine.add(prompt(8), 10)
    steps(engine, 4)
    clock.now += 50 * MS
    engine.run()
    return engine, request


def slow_callback() -> Case:
    """A callback that takes 60 ms for one token."""
    engine, clock = timed_engine()
    seen: list[int] = []

    def on_output(output: Any) -> None:
        seen.append(1)
        clock.now += 60 * MS if len(seen) == 4 else 0

    params = SamplingParams(max_tokens=10, temperature=0.0)
    request = engine.add_request(prompt(8), params, on_output=on_output)
    engine.run()
    return engine, request


def slow_reader() -> Case:
    """A reader that takes the last of a stream 100 ms after it was there."""
    engine, clock = timed_engine()
    request = engine.add(prompt(8), 10)
    engine.run()
    clock.now += 100 * MS
    engine.core.recorder.record(StreamStalled(clock(), request, 110 * MS, 7))
    return engine, request


def operator_pause() -> Case:
    """A sequence that an operator pauses for 80 ms."""
    engine, clock = timed_engine()
    request = engine.add(prompt(8), 10)
    steps(engine, 4)
    engine.pause(request)
    clock.now += 80 * MS
    engine.resume(request)
    engine.run()
    return engine, request


def breakpoint_pause() -> Case:
    """An engine that stands for 90 ms at a breakpoint which another request met."""
    engine, clock = timed_engine()
    request = engine.add(prompt(8, 1), 10)
    steps(engine, 4)
    engine.add_breakpoint("on=request.arrived")
    engine.add(prompt(8, 2), 2)
    engine.step()
    clock.now += 90 * MS
    engine.continue_engine()
    engine.run()
    return engine, request


def cold_cache() -> Case:
    """A prompt that was cached, and evicted by another one before it came again."""
    engine, _ = timed_engine(num_blocks=32)
    engine.add(prompt(80, 1), 2)
    engine.run()
    engine.add(prompt(120, 2), 2)
    engine.run()
    again = engine.add(prompt(80, 1), 2)
    engine.run()
    return engine, again


def swap_in() -> Case:
    """A paused sequence whose blocks others took; they come back slowly."""
    engine, clock = timed_engine(num_blocks=16, host_blocks=16)
    request = engine.add(prompt(24, 1), 8)
    steps(engine, 2)
    engine.pause(request)
    engine.add(prompt(40, 2), 4)
    engine.run()
    finish, slow = engine.runner.finish_moves, 70 * MS

    def finish_moves() -> list[MoveResult]:
        moves = finish()
        clock.now += slow * len(moves)
        return [replace(move, duration_ns=slow) for move in moves]

    engine.runner.finish_moves = finish_moves  # type: ignore[method-assign]
    engine.resume(request)
    engine.run()
    return engine, request


CASES: tuple[Callable[[], Case], ...] = (
    long_prefill, short_pool, behind_the_head, sequence_cap, token_budget, priority_preemption, blocks_preemption,
    slow_caller, slow_callback, slow_reader, operator_pause, breakpoint_pause, cold_cache, swap_in,
)  # fmt: skip
