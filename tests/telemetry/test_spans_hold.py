"""Spans of busy runs: as many as there are events, whole traces, children within parents, links that lead somewhere."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_engine import FakeEngine
from journals import busy_engine
from nanolens.errors import InvalidRequest
from nanolens.telemetry.events import (
    AnyEvent,
    BlockCopied,
    BlocksSwapped,
    Keyframe,
    SequencePreempted,
    StatusChanged,
    StepRetried,
    SwapFinished,
)
from nanolens.telemetry.reader import JournalReader
from random_lives import Driver
from span_checks import check_whole, named, roots, spans_of

WAYS = [*itertools.product(("recompute", "swap"), (False, True), ("fcfs", "priority", "sjf"))]


def eventful(mode: str, overlap: bool, policy: str) -> list[AnyEvent]:
    """A run with queues, chunks, cache hits, preemptions, swaps, pauses, siblings, an abort, errors and a refusal."""
    engine = FakeEngine(
        num_blocks=12, host_blocks=5, disk_blocks=12, max_num_seqs=4, max_prefill_chunk=5, overlap=overlap,
        policy=policy, preemption_mode=mode, paused_ttl_s=None, max_model_len=48,
    )  # fmt: skip
    names: list[str] = []
    engine.add([1, 2, 3, 4, 5, 6], max_tokens=6, n=2)
    for _ in range(4):
        engine.step()
    for i in range(18):
        prompt = [1, 2, 3, 4, 5, 6, 7, 8][: 4 * (i % 3)] + [20 + i] * (1 + i % 5)
        n, stop = 1 + (i % 6 == 5), "pause" if i % 7 == 3 else "finish"
        names.append(engine.add(prompt, max_tokens=6 + 3 * (i % 6), n=n, priority=i % 3, on_stop=stop))
        engine.step()
        if i % 5 == 4:
            engine.pause(names[i - 1])
        if i % 5 == 0 and i:
            engine.resume(names[i - 2], append=[9, 9] if i == 10 else None)
        if i == 12:
            engine.abort(names[12])
    with pytest.raises(InvalidRequest):
        engine.add([])
    victim = engine.core.book.live_sequences[-1].seq_id
    engine.runner.fail_rows = lambda plan: {victim: "not finite"} if _has(plan, victim) else {}
    while engine.core.requests:
        engine.step()
        engine.core.finish([s for s in engine.core.book.live_sequences if s.status and s.status.value == "PAUSED"])
    engine.core.close()
    return engine.events


def _has(plan: object, seq_id: int) -> bool:
    return any(seq.seq_id == seq_id for seq in plan.sequences)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("mode", "overlap", "policy"), WAYS)
def test_an_eventful_run(mode: str, overlap: bool, policy: str) -> None:
    events = eventful(mode, overlap, policy)
    spans = check_whole(events)
    reasons = {event.reason for event in events if isinstance(event, StatusChanged)}
    assert reasons >= {"admitted", "readmitted", "preempted", "operator", "resumed", "aborted", "error", "delivered"}
    assert {event.mode for event in events if isinstance(event, SequencePreempted)} >= {mode}
    assert mode != "swap" or any(isinstance(event, BlocksSwapped) for event in events)
    assert any(isinstance(event, BlockCopied) for event in events)
    assert sum(bool(span.links) for span in named(spans, "blocks.allocated")) > 0
    assert len({span.attributes["nanolens.step"] for span in named(spans, "prefill")}) > 18
    finish = {span.attributes.get("nanolens.finish_reason") for span in roots(spans).values()}
    assert finish >= {"length", "abort", "error", None}


@pytest.mark.parametrize("overlap", [False, True])
def test_a_run_that_only_has_device_memory(overlap: bool) -> None:
    engine = busy_engine(overlap=overlap)
    engine.core.close()
    spans = check_whole(engine.events)
    assert len(named(spans, "preempted")) > 5


def test_the_files_give_the_same_spans_as_the_events(tmp_path: Path) -> None:
    """Keyframes between the events change nothing, nor do segments."""
    engine = busy_engine(tmp_path, segment_bytes=1 << 14)
    engine.core.close()
    read = [event for frame in JournalReader(tmp_path).frames() for event in frame.events]
    assert any(isinstance(event, Keyframe) for event in read) and len(list(tmp_path.iterdir())) > 2
    assert [span.to_json() for span in spans_of(read)] == [span.to_json() for span in spans_of(engine.events)]


@pytest.mark.parametrize("overlap", [False, True])
def test_steps_that_fail(overlap: bool) -> None:
    """A step fails for want of memory and runs in halves, another fails for good; all that it had ends in ERROR."""
    engine = FakeEngine(overlap=overlap, max_prefill_chunk=4)
    for i in range(5):
        engine.add([i] * 9, max_tokens=6)
    broken = iter([None, None, MemoryError("one"), None, None, None, RuntimeError("dead"), *[None] * 100])
    engine.runner.fail_launch = lambda plan: next(broken)
    for i in range(5):
        engine.add([7, i] * 3, max_tokens=5)
    engine.run()
    engine.core.close()
    spans = check_whole(engine.events)
    assert any(isinstance(event, StepRetried) for event in engine.events) or named(spans, "ERROR")
    assert named(spans, "ERROR")


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), way=st.sampled_from(WAYS), failing=st.sampled_from([0.0, 0.2]))
def test_random_lives(seed: int, way: tuple[str, bool, str], failing: float) -> None:
    rng, (mode, overlap, policy) = random.Random(seed), way
    engine = FakeEngine(
        num_blocks=10, host_blocks=4, disk_blocks=9, max_num_seqs=4, max_prefill_chunk=6, overlap=overlap,
        policy=policy, preemption_mode=mode, aging_s=1e-4, paused_ttl_s=None, max_model_len=40,
    )  # fmt: skip
    engine.runner.fail_move = lambda move: "no space left" if rng.random() < failing else ""
    driver = Driver(engine, rng)
    for _ in range(250):
        rng.choice(driver.commands())()
    driver.drain()
    engine.core.close()
    spans = check_whole(engine.events)
    ended = {(e.seq, e.move) for e in engine.events if isinstance(e, SwapFinished)}
    for span in named(spans, "blocks.swapped"):
        move = (span.attributes["nanolens.seq"], span.attributes["nanolens.swap.move"])
        assert ("nanolens.swap.bytes" in span.attributes) + ("nanolens.unfinished" in span.attributes) == bool(move[1])
        assert move in ended or not move[1] or "nanolens.unfinished" in span.attributes
