"""A real trace of 1,000 requests with shared prefixes, served without a model, comes out the same."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from fake_engine import Clock, FakeEngine
from nanolens.engine.plan import MoveResult, StepPlan, StepResult
from nanolens.inspector.replay.recording import read_recording
from nanolens.inspector.replay.replay import replay
from nanolens.telemetry.events import BlocksSwapped, EngineReady, SequencePreempted
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.recorder import Recorder

SHRINK = 32  # lengths, so that a block of 512 tokens has 16
SPEED_UP = 10_000  # of the clock, so that a queue forms
BLOCK = 16


class QuickRunner:
    """Takes plans at their word: each token is a new one, each move is done at once."""

    def __init__(self, engine: FakeEngine) -> None:
        own = engine.runner
        self.num_blocks, self.host_blocks, self.disk_blocks = own.num_blocks, own.host_blocks, own.disk_blocks
        self.swap_ns_per_block, self.vocab_size = own.swap_ns_per_block, own.vocab_size
        self.moved: list[MoveResult] = []
        self.count = 0

    def launch(self, plan: StepPlan) -> list[int]:
        self.moved += [MoveResult(move.move, 64, 1000) for move in plan.moves]
        first, self.count = self.count, self.count + sum(plan.samples)
        return [token % 1000 for token in range(first, self.count)]

    def collect(self, handle: Any) -> StepResult:
        return StepResult(handle, moved=self.finish_moves(), device_ns=1000)

    def finish_moves(self) -> list[MoveResult]:
        moved, self.moved = self.moved, []
        return moved

    def is_sound(self) -> bool:
        return True

    def look(self) -> str:
        return ""

    def close(self) -> None:
        pass


def serve(rows: list[dict[str, Any]], path: Path, **options: Any) -> FakeEngine:
    """Serve a trace, each request at its time."""
    clock = Clock()
    recorder = Recorder(JournalWriter(path, "run", clock=clock), clock)
    engine = FakeEngine(
        recorder=recorder, clock=clock, num_blocks=400, block_size=BLOCK, max_model_len=8192, max_num_seqs=48,
        max_num_batched_tokens=512, **options,
    )  # fmt: skip
    engine.core.runner = QuickRunner(engine)  # type: ignore[assignment]
    object.__setattr__(engine.core.config, "audit", False)
    recorder.record(EngineReady(clock(), {"swap_ns_per_block": 1}))
    due, began = deque(rows), clock()
    while due or engine.has_work:
        while due and began + due[0]["timestamp"] * 1_000_000 // SPEED_UP <= clock.now:
            row = due.popleft()
            length = max(row["input_length"] // SHRINK, 1)
            prompt = [(7 * block + i // BLOCK) % 1000 for block in row["hash_ids"] for i in range(BLOCK)][:length]
            engine.add(prompt or [1], max_tokens=max(row["output_length"] // 4, 1), priority=row["output_length"] % 3)
        if not engine.step():
            clock.now += 1_000_000
    engine.close()
    return engine


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "fcfs", "preemption_mode": "recompute"},
        {"policy": "priority", "preemption_mode": "auto", "host_blocks": 300, "overlap": True},
    ],
    ids=["fcfs", "priority"],
)
def test_a_trace_of_1000_requests_comes_out_the_same(
    tmp_path: Path, shared_data: Path, options: dict[str, Any]
) -> None:
    lines = (shared_data / "mooncake_synthetic_first1000.jsonl").read_text().splitlines()
    serve([json.loads(line) for line in lines], tmp_path, **options)
    recording = read_recording(tmp_path)
    assert len(recording.arrivals) == len(recording.finished) == 1000
    kinds = {type(event) for event in recording.events}
    assert SequencePreempted in kinds and (BlocksSwapped in kinds) == ("host_blocks" in options)
    result = replay(recording)
    assert result.divergence is None, str(result.divergence)
    assert result.decisions == len(recording.events) > 10_000
