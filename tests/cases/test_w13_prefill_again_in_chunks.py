"""W13: a resumed sequence is taken for one that decodes, or a middle chunk of its second prefill gives a token."""

from __future__ import annotations

import pytest

from fake_engine import FakeEngine, solo
from nanolens.telemetry.events import SequencePreempted, StatusChanged, StepPlanned

A, B = list(range(7)), list(range(100, 106))


@pytest.mark.parametrize("overlap", [False, True])
def test_only_the_last_chunk_of_a_second_prefill_gives_a_token(overlap: bool) -> None:
    engine = FakeEngine(num_blocks=6, block_size=4, max_prefill_chunk=4, prefix_cache=False, overlap=overlap)
    a, b = engine.add(A, 9), engine.add(B, 9)
    seq = engine.core.requests[b].sequences[0]
    phases: list[tuple[int, str]] = []
    while engine.step():
        if seq.num_preemptions and seq.is_live and seq.block_table:
            phases.append((engine.core.scheduler.step, seq.phase))
    assert engine.ids(a) == solo(A, 9) and engine.ids(b) == solo(B, 9)

    [preempted] = engine.of(SequencePreempted)
    assert preempted.seq == 1
    resumed = [event for event in engine.of(StatusChanged) if event.seq == 1 and event.reason == "readmitted"]
    assert len(resumed) == 1
    again = [e for e in engine.of(StepPlanned) if e.step >= resumed[0].step and any(c[0] == 1 for c in e.chunks)]
    generated = 5 if overlap else 6  # with overlap one token was still on the device, and was lost
    assert [chunk for event in again for chunk in event.chunks] == [(1, 0, 4), (1, 4, 4), (1, 8, generated - 2)]
    sampled = [
        plan.samples[plan.sequences.index(seq)]
        for plan in engine.runner.plans
        if plan.step in {event.step for event in again}
    ]
    assert sampled == [False, False, True]
    by_step = dict(phases)
    assert [by_step[event.step] for event in again] == ["prefill", "prefill", "decode"]
    first = resumed[0].step
    assert again[0].step == first and [event.step for event in again] == [first, first + 1, first + 2]
