"""Builders for tests of nano-inspect: views of a fake engine's run after any of its frames, and views of any size."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fake_engine import FakeEngine
from nanolens.benchmarks.inspect_load import big_keyframe, big_steps
from nanolens.engine.plan import StepResult
from nanolens.engine.sampling_params import SamplingParams
from nanolens.inspector.describe import sequences_of
from nanolens.inspector.history.step_log import StepLog
from nanolens.inspector.history.verdicts import judgement
from nanolens.inspector.view import EVENTS_SHOWN, EventRow, Judgement, Moment, SourceStatus, Stay, Story, Tick, View
from nanolens.telemetry.events import AnyEvent, StatusChanged
from nanolens.telemetry.latency_tracks import LatencyTracks
from nanolens.telemetry.lives import FINAL, Lives
from nanolens.telemetry.recorder import Recorder
from nanolens.telemetry.state import EngineState

LIVE = SourceStatus("live", 1_700_000_000.0)
MS = 1_000_000
Frames = tuple[tuple[AnyEvent, ...], ...]


class SteadyClock:
    """Moves 0.2 ms at each reading."""

    def __init__(self) -> None:
        self.now = 1_000 * MS

    def __call__(self) -> int:
        self.now += MS // 5
        return self.now


@functools.cache
def fake_run() -> Frames:
    """The frames of a run of 24 blocks of 4 tokens, 5 slots, 4 host and 4 disk blocks, by priority.

    After its last frame:

    - 0 `sleeper`, 6 `dropped`: PAUSED, without KV; 1 `dozer`: PAUSED, on disk; 7 `urgent`: PAUSED, on the device;
    - 2 and 3 `twins`, 4 `alike`: RUNNING, blocks 9 and 10 shared by all three;
    - 5 `low`: WAITING (no_blocks or head_of_line), preempted, in host memory; 8 `behind`: WAITING, never admitted.
    """
    frames: list[tuple[AnyEvent, ...]] = []
    clock = SteadyClock()
    recorder = Recorder(None, clock)
    recorder.subscribe(lambda events: frames.append(tuple(events)))
    engine = FakeEngine(
        recorder=recorder, clock=clock, num_blocks=24, max_num_seqs=5, host_blocks=4, disk_blocks=4,
        max_prefill_chunk=8, policy="priority",
    )  # fmt: skip
    collect = engine.runner.collect

    def collect_late(handle: Any) -> StepResult:
        clock.now += 3 * MS
        return replace(collect(handle), device_ns=3 * MS, wait_ns=2 * MS)

    engine.runner.collect = collect_late  # type: ignore[method-assign]

    def add(name: str, prompt: Iterable[int], max_tokens: int, steps: int, priority: int = 1, n: int = 1) -> None:
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0 if n == 1 else 1.0, n=n, priority=priority)
        engine.add_request(list(prompt), params, request_id=name)
        run(steps)

    def run(steps: int) -> None:
        for _ in range(steps):
            engine.step()

    shared = list(range(1, 10))
    add("sleeper", range(100, 115), 20, 4)
    engine.pause("sleeper")
    add("dozer", range(200, 214), 20, 4)
    engine.pause("dozer", reason="await_input")
    add("twins", shared, 40, 4, n=2)
    add("alike", [*shared[:8], 50, 51, 52], 40, 3)
    add("low", range(300, 310), 30, 3, priority=5)
    add("dropped", range(400, 403), 20, 2)
    add("urgent", range(500, 519), 12, 6, priority=0)
    add("behind", range(600, 612), 8, 1, priority=2)
    engine.pause("dropped")
    run(1)
    engine.pause("urgent")
    engine.core.flush()
    return tuple(frames)


def view_of_fake_run(frames: int | None = None) -> View:
    """The view after so many frames of `fake_run`; None: after the last, live."""
    return view_of(fake_run(), frames)


def view_of(run: Frames, frames: int | None = None) -> View:
    """The view after so many frames of a run; None: after the last, live."""
    state, log, rows = EngineState(), StepLog(), list(_rows(run[:frames]))
    for row in rows:
        state.apply(row.event)
        log.apply(row.event)
    whole = list(_rows(run))
    return View(
        moment=rows[-1].moment,
        is_live=frames is None,
        keyframe=state.to_keyframe(),
        steps=log.rows(),
        events=rows[-EVENTS_SHOWN:],
        is_order_sure=state.is_order_sure,
        stopped=state.stopped,
        first=Tick(whole[0].step, whole[0].t),
        last=Tick(whole[-1].step, whole[-1].t),
        status=LIVE,
    )


def story_of(seq: int, frames: int | None = None, run: Frames | None = None) -> Story | None:
    """A sequence's story after so many frames of a run (of `fake_run`); None where it does not live then."""
    rows = list(_rows((run or fake_run())[:frames]))
    lives = Lives()
    lives.apply_all(row.event for row in rows)
    lives.advance(rows[-1].t)
    life = lives.lives.get(seq)
    if life is None or life.status in FINAL:
        return None
    stays: list[Stay] = []
    for row in rows:
        if isinstance(row.event, StatusChanged) and row.event.seq == seq:
            if stays:
                stays[-1] = replace(stays[-1], end_t=row.t)
            stays.append(Stay(row.event.new, row.event.reason, row.t, rows[-1].t, row.step))
    parts = ("queued", "prefill", "decode", "preempted", "paused")
    return Story(
        seq, life.request, True, stays, [row for row in rows if seq in sequences_of(row.event)],
        {part: getattr(life, f"{part}_ns") for part in parts},
    )  # fmt: skip


def judgement_of(seq: int, frames: int | None = None, run: Frames | None = None) -> Judgement | None:
    """The verdict on a sequence after so many frames of a run (of `fake_run`); None where it does not live then."""
    tracks = LatencyTracks()
    for frame in (run or fake_run())[:frames]:
        for event in frame:
            tracks.apply(event)
    tracks.finish()
    return judgement(tracks, seq)


def big_view(num_sequences: int = 1000, blocks_each: int = 64, steps: int = 50) -> View:
    """A view of so many sequences, a tenth of them paused in host memory, a tenth waiting, after so many steps of
    10 ms; each step ends one of those that run and begins another.
    """
    keyframe = big_keyframe(num_sequences, blocks_each)
    state, log, rows = EngineState.from_keyframe(keyframe), StepLog(), []
    for offset, frame in enumerate(itertools.islice(big_steps(keyframe, 10.0), steps)):
        for index, event in enumerate(frame):
            state.apply(event)
            log.apply(event)
            rows.append(EventRow(Moment(1, offset + 1, index + 1), state.step, state.t, event))
    now = state.to_keyframe()
    moment = rows[-1].moment if rows else Moment(1, 0, 1)
    last = Tick(now.step, now.t)
    return View(moment, True, now, log.rows(), rows[-EVENTS_SHOWN:], True, None, Tick(0, keyframe.t), last, LIVE)


def _rows(frames: Iterable[Iterable[AnyEvent]]) -> Iterable[EventRow]:
    """Events with the moments just after them; a frame's place stands for its offset."""
    step = t = 0
    for offset, frame in enumerate(frames):
        for index, event in enumerate(frame):
            step, t = getattr(event, "step", step), getattr(event, "t", t)
            yield EventRow(Moment(1, offset, index + 1), step, t, event)
