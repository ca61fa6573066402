"""W03: a preempted sequence finds its own blocks again, and is scheduled for its full length all the same."""

from __future__ import annotations

import pytest

from fake_engine import FakeEngine, solo
from nanolens.telemetry.events import BlocksAllocated, PrefixMatched, SequencePreempted, StepPlanned

PROMPTS = [list(range(7)), list(range(100, 107))]


def outputs(num_blocks: int, overlap: bool) -> tuple[FakeEngine, list[list[int]]]:
    engine = FakeEngine(num_blocks=num_blocks, block_size=4, overlap=overlap)
    names = [engine.add(prompt, 10, ignore_eos=True) for prompt in PROMPTS]
    engine.run()
    return engine, [engine.ids(name) for name in names]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_resumed_sequence_computes_what_is_not_cached(overlap: bool) -> None:
    engine, ids = outputs(5, overlap)
    assert len(engine.of(SequencePreempted)) >= 1
    assert ids == outputs(64, overlap)[1] == [solo(prompt, 10) for prompt in PROMPTS]
    resumes = [event for event in engine.of(PrefixMatched) if event.recompute]
    assert resumes
    for matched in resumes:
        planned = next(event for event in engine.of(StepPlanned) if event.step == matched.step)
        [(_, start, count)] = [chunk for chunk in planned.chunks if chunk[0] == matched.seq]
        assert (start, count) == (matched.hit, matched.queried - matched.hit) and count >= 1
        [table] = [e for e in engine.of(BlocksAllocated) if (e.step, e.seq) == (matched.step, matched.seq)]
        assert len(table.cached) + len(table.new) == -(-matched.queried // 4)
