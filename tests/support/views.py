"""Builders for tests of nano-inspect: views of a fake engine's run after any of its frames, and views of any size."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fake_engine import FakeEngine
from nanolens.engine.plan import StepResult
from nanolens.engine.sampling_params import SamplingParams
from nanolens.inspector.describe import sequences_of
from nanolens.inspector.history.step_log import StepLog
from nanolens.inspector.view import EventRow, Moment, SourceStatus, Stay, StepRow, Story, Tick, View
from nanolens.telemetry.events import (
    AnyEvent,
    EngineStarted,
    Keyframe,
    SequenceSnapshot,
    StatusChanged,
    StepFinished,
    StepPlanned,
)
from nanolens.telemetry.lives import FINAL, Lives
from nanolens.telemetry.recorder import Recorder
from nanolens.telemetry.state import EngineState
from nanolens.telemetry.totals import TOTAL_NAMES

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
        events=rows[-500:],
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


def big_view(num_sequences: int = 1000, blocks_each: int = 64, steps: int = 50) -> View:
    """A view of so many sequences that decode, each with its own blocks of 16 tokens; a tenth of them are paused in
    host memory, a tenth wait. Views of more `steps` show the same sequences later, some of them replaced by new ones.
    """
    t = 1_000_000 * MS + steps * 10 * MS
    pool = num_sequences * blocks_each
    started = EngineStarted(
        0, "big", 0, 1, "0", "fake", {"host_blocks": pool, "policy": "fcfs", "max_num_seqs": num_sequences}, pool, 16,
        1000, 16 * blocks_each,
    )  # fmt: skip
    sequences = [_big_sequence(i, blocks_each, steps, t) for i in range(num_sequences)]
    sequences.sort(key=lambda each: each.seq)
    held = {entry for each in sequences for entry in each.block_table if entry >= 0}
    waiting = [each.seq for each in sequences if each.status == "WAITING"]
    running = [each.seq for each in sequences if each.status == "RUNNING"]
    cached = sorted(held)[: pool // 2]
    rows = [_big_step(step, len(running), len(waiting)) for step in range(max(1, steps - 299), steps + 1)]
    keyframe = Keyframe(
        t=t, step=steps, started=started, sequences=sequences, waiting=waiting, running=running, cached_blocks=cached,
        cached_hashes=b"".join(block.to_bytes(8, "big") for block in cached),
        cached_by=[block // blocks_each for block in cached],
        free_blocks=[block for block in range(pool) if block not in held],
        totals=dict.fromkeys(TOTAL_NAMES, steps),
    )  # fmt: skip
    planned = [EventRow(Moment(1, row.planned.step, 1), row.planned.step, row.planned.t, row.planned) for row in rows]
    return View(
        Moment(1, steps, 1), True, keyframe, rows, planned, True, None, Tick(1, 1_000_000 * MS), Tick(steps, t), LIVE
    )


def _big_sequence(place: int, blocks: int, steps: int, t: int) -> SequenceSnapshot:
    """One of many; every 50 steps another one in 20 places gives way to a new sequence."""
    seq = place + 10_000 * ((steps + place % 20 * 50) // 1000)
    kind = {3: "PAUSED", 7: "WAITING"}.get(place % 10, "RUNNING")
    arrived = t - (place + steps) * 10 * MS
    table = range(place * blocks, (place + 1) * blocks)
    held = [-1 - entry for entry in table] if kind == "PAUSED" else [] if kind == "WAITING" else list(table)
    output = 0 if kind == "WAITING" else steps if kind == "RUNNING" else place
    return SequenceSnapshot(
        seq, f"request-{seq:06d}", kind, "prefill" if kind == "WAITING" else "decode",
        {"PAUSED": "operator", "WAITING": "arrived"}.get(kind, "admitted"), "no_blocks" if kind == "WAITING" else "",
        {"PAUSED": "host", "WAITING": "none"}.get(kind, "device"), place % 3, arrived, arrived + 5 * MS,
        40 + place % 900, output, 0 if kind == "WAITING" else 39 + place % 900 + output, 16 * (place % 3), 40, 5_000,
        place % 2, held, 0 if kind == "WAITING" else arrived + 20 * MS, t if kind == "RUNNING" else 0,
    )  # fmt: skip


def _big_step(step: int, running: int, waiting: int) -> StepRow:
    t = 1_000_000 * MS + step * 10 * MS
    planned = StepPlanned(t - 9 * MS, step, "decode", [], running, [], waiting, running, 100)
    finished = StepFinished(t, step, MS, MS // 2, 7 * MS + step % 5 * MS // 5, 8 * MS, running, running, [])
    return StepRow(planned, finished, 10 * MS, MS // 2, 0, 0, 0)


def _rows(frames: Iterable[Iterable[AnyEvent]]) -> Iterable[EventRow]:
    """Events with the moments just after them; a frame's place stands for its offset."""
    step = t = 0
    for offset, frame in enumerate(frames):
        for index, event in enumerate(frame):
            step, t = getattr(event, "step", step), getattr(event, "t", t)
            yield EventRow(Moment(1, offset, index + 1), step, t, event)
