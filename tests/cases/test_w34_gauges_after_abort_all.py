"""W34: once everything is aborted, gauges stay where they were until the next step, and the counter of aborts at 0.

Here its engine side: what projections of the journal show without another step.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_engine import Clock, FakeEngine
from nanolens.telemetry.events import AnyEvent
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.reader import JournalReader
from nanolens.telemetry.recorder import Recorder
from nanolens.telemetry.state import EngineState


def four_running_four_waiting(overlap: bool, journal: Path) -> tuple[FakeEngine, EngineState]:
    """An engine, and a state that is fed with what its recorder hands out."""
    clock = Clock()
    recorder = Recorder(JournalWriter(journal, "run", clock=clock), clock)
    state = EngineState()

    def follow(events: list[AnyEvent]) -> None:
        for event in events:
            state.apply(event)

    recorder.subscribe(follow)
    engine = FakeEngine(num_blocks=40, max_num_seqs=4, overlap=overlap, recorder=recorder)
    for i in range(8):
        engine.add(list(range(10 * i, 10 * i + 6)), 20)
    for _ in range(3):
        engine.step()
    return engine, state


def in_use(state: EngineState) -> tuple[int, int, int]:
    """Running, waiting, and blocks that are not free."""
    keyframe = state.to_keyframe()
    return len(keyframe.running), len(keyframe.waiting), keyframe.started.num_blocks - len(keyframe.free_blocks)


@pytest.mark.parametrize("overlap", [False, True])
def test_without_another_step_all_is_at_zero_and_eight_aborts_are_counted(overlap: bool, tmp_path: Path) -> None:
    engine, state = four_running_four_waiting(overlap, tmp_path)
    running, waiting, blocks = in_use(state)
    assert (running, waiting) == (4, 4) and blocks >= 8
    for name in list(engine.core.requests):
        engine.abort(name)
    assert in_use(state) == (0, 0, 0)
    assert state.totals.snapshot()["requests_finished_abort"] == 8
    engine.core.recorder.close()
    read = EngineState()
    for frame in JournalReader(tmp_path).frames():
        for event in frame.events:
            read.apply(event)
    assert in_use(read) == (0, 0, 0)
    assert read.totals.snapshot()["requests_finished_abort"] == 8


@pytest.mark.parametrize("overlap", [False, True])
def test_those_that_are_paused_are_gone_too(overlap: bool, tmp_path: Path) -> None:
    engine, state = four_running_four_waiting(overlap, tmp_path)
    for name in list(engine.core.requests)[::2]:
        engine.pause(name)
    assert sum(seq.status == "PAUSED" for seq in state.to_keyframe().sequences) == 4
    for name in list(engine.core.requests):
        engine.abort(name)
    assert in_use(state) == (0, 0, 0) and not state.to_keyframe().sequences
    assert state.totals.snapshot()["requests_finished_abort"] == 8
