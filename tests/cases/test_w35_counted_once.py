"""W35: a preemption, or an admission that is tried again, counts cache queries, hits or a first token twice.

The engine's side: its events, and the counters made from them.
"""

from __future__ import annotations

import pytest

from fake_engine import FakeEngine, solo
from nanolens.telemetry.events import (
    PrefixMatched,
    RequestArrived,
    RequestFinished,
    SequencePreempted,
    StatusChanged,
    StepFinished,
)


def run_counting(engine: FakeEngine) -> None:
    """Run to the end; no counter ever falls."""
    before = engine.core.recorder.totals.snapshot()
    while engine.step():
        now = engine.core.recorder.totals.snapshot()
        assert all(now[name] >= value >= 0 for name, value in before.items())
        before = now


@pytest.mark.parametrize("overlap", [False, True])
def test_a_preemption_counts_no_look_up_and_no_first_token_again(overlap: bool) -> None:
    engine = FakeEngine(num_blocks=8, block_size=4, overlap=overlap)
    prompts = [list(range(i * 20, i * 20 + 7)) for i in range(4)]
    names = [engine.add(prompt, 12) for prompt in prompts]
    run_counting(engine)
    totals = engine.core.recorder.totals.counts
    assert totals["preemptions"] == len(engine.of(SequencePreempted)) >= 1
    assert totals["prefix_queried_tokens"] == sum(map(len, prompts)) == 28
    assert totals["prefix_hit_tokens"] == 0
    assert totals["refound_tokens"] == sum(event.hit for event in engine.of(PrefixMatched) if event.recompute) > 0
    assert totals["generated_tokens"] == 4 * 12
    arrived = {event.request: event.t for event in engine.of(RequestArrived)}
    first_reads = [event.t for event in engine.of(StepFinished)]
    for name, prompt in zip(names, prompts, strict=True):
        assert engine.ids(name) == solo(prompt, 12)
        metrics = engine.outputs[name].metrics
        assert metrics is not None and metrics.ttft_s is not None
        assert metrics.arrived_t == arrived[name] and metrics.first_token_t in first_reads
        admitted = [e for e in engine.of(StatusChanged) if (e.seq, e.reason) == (names.index(name), "admitted")]
        assert [metrics.first_scheduled_t] == [event.t for event in admitted]
    victim = engine.of(SequencePreempted)[0]
    metrics = engine.outputs[names[victim.seq]].metrics
    assert metrics is not None and metrics.num_preemptions >= 1 and metrics.first_token_t < victim.t
    for event in engine.of(RequestFinished):
        assert 0 <= event.num_cached_tokens <= event.num_prompt_tokens


def test_an_admission_that_fails_for_five_steps_looks_up_once() -> None:
    engine = FakeEngine(num_blocks=6, block_size=4)
    engine.add(list(range(10)), 9)
    engine.step()
    late = engine.add(list(range(100, 114)), 2)
    waited = 0
    while not engine.core.requests[late].sequences[0].block_table:
        engine.step()
        waited += engine.core.requests[late].sequences[0].wait_reason == "no_blocks"
    run_counting(engine)
    assert waited >= 5
    assert [event.seq for event in engine.of(PrefixMatched)] == [0, 1]
    assert engine.core.recorder.totals.counts["prefix_queried_tokens"] == 24
    assert engine.core.recorder.totals.counts["prefix_hit_tokens"] == 0
    assert engine.ids(late) == solo(list(range(100, 114)), 2)
