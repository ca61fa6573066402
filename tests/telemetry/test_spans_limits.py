"""What is too long for a span is cut, and the span says so."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan

from journals import started
from nanolens.telemetry.events import (
    AnyEvent,
    BlocksAllocated,
    BlocksCached,
    PriorityChanged,
    RequestArrived,
    RequestFinished,
    SequencePreempted,
    StatusChanged,
)
from nanolens.telemetry.span_draft import MAX_EVENTS, MAX_LINKS, MAX_LISTED
from nanolens.telemetry.spans import SpanBuilder
from nanolens.telemetry.tail_rules import TailRules
from span_checks import check_vocabulary, named, spans_of

MANY = 150


def arrive(seq: int, t: int) -> list[AnyEvent]:
    """A request of one sequence that runs at once."""
    return [
        RequestArrived(t, f"r{seq}", [seq], 4, 4, 0, {}),
        StatusChanged(t, 0, seq, "", "WAITING", "arrived", f"r{seq}"),
        StatusChanged(t, 1, seq, "WAITING", "RUNNING", "admitted"),
    ]


def end(seq: int, t: int) -> list[AnyEvent]:
    return [
        StatusChanged(t, 2, seq, "RUNNING", "FINISHED", "stop"),
        RequestFinished(t, f"r{seq}", "stop", 4, 1, 0),
    ]


def spans_after(events: list[AnyEvent]) -> list[ReadableSpan]:
    spans = spans_of(events)
    check_vocabulary(spans)
    return spans


def test_long_lists_of_blocks() -> None:
    blocks = list(range(MANY))
    events = [started(num_blocks=MANY), *arrive(0, 1), BlocksAllocated(2, 1, 0, [], blocks, [7], 0), *end(0, 3)]
    (span,) = named(spans_after(events), "blocks.allocated")
    assert span.attributes["nanolens.blocks.new"] == tuple(range(MAX_LISTED))
    assert span.attributes["nanolens.blocks.new_count"] == MANY
    assert span.attributes["nanolens.blocks.evicted"] == (7,)
    assert span.attributes["nanolens.truncated"] is True


def test_a_list_at_the_limit_is_whole() -> None:
    blocks = list(range(MAX_LISTED))
    events = [started(num_blocks=MANY), *arrive(0, 1), BlocksAllocated(2, 1, 0, [], blocks, [], 0), *end(0, 3)]
    (span,) = named(spans_after(events), "blocks.allocated")
    assert "nanolens.truncated" not in span.attributes


def test_blocks_filled_by_many() -> None:
    """Each of 150 blocks was filled by another: the links over the limit are counted where exporters look for it."""
    events: list[AnyEvent] = [started(num_blocks=MANY)]
    for seq in range(MANY):
        events += [*arrive(seq, seq + 1), BlocksAllocated(seq + 1, 1, seq, [], [seq], [], 0)]
        events.append(BlocksCached(seq + 1, 1, seq, [seq], b"contents"))
    events += [*arrive(MANY, 900), BlocksAllocated(901, 1, MANY, list(range(MANY)), [], [], 0), *end(MANY, 902)]
    (span,) = named(spans_after(events), "blocks.allocated", MANY)
    assert (len(span.links), span.dropped_links) == (MAX_LINKS, MANY - MAX_LINKS)
    assert span.attributes["nanolens.blocks.filled_by_seq_count"] == MANY
    assert span.attributes["nanolens.truncated"] is True


def test_one_that_preempts_many() -> None:
    events: list[AnyEvent] = [started(), *arrive(0, 1)]
    for seq in range(1, MANY + 1):
        events += arrive(seq, seq + 1)
        events.append(SequencePreempted(seq + 1, 1, seq, 0, "no_blocks", "recompute", 1, 4))
        events.append(StatusChanged(seq + 1, 1, seq, "RUNNING", "WAITING", "preempted"))
    (running,) = named(spans_after([*events, *end(0, 900)]), "RUNNING", 0)
    assert (len(running.links), running.dropped_links) == (MAX_LINKS, MANY - MAX_LINKS)
    assert running.attributes["nanolens.truncated"] is True


def test_many_notes() -> None:
    notes: list[AnyEvent] = [PriorityChanged(2 + i, 1, 0, i) for i in range(MANY)]
    (running,) = named(spans_after([started(), *arrive(0, 1), *notes, *end(0, 900)]), "RUNNING")
    assert (len(running.events), running.dropped_events) == (MAX_EVENTS, MANY - MAX_EVENTS)
    assert running.events[0].timestamp == 2 and running.attributes["nanolens.truncated"] is True


def test_things_of_one_kind_at_one_time_are_told_apart() -> None:
    same: list[AnyEvent] = [BlocksAllocated(2, 1, 0, [], [i], [], 7 - i) for i in range(3)]
    spans = spans_after([started(), *arrive(0, 1), *same, *end(0, 1)])
    assert len({span.context.span_id for span in spans}) == len(spans) == 1 + 3 + 3


def test_memory_follows_what_is_open() -> None:
    builder = SpanBuilder(rules=TailRules(failed=True))
    builder.apply(started())
    sizes = set()
    for seq in range(300):
        builder.apply_all([*arrive(seq, seq + 1), *end(seq, seq + 1)])
        traces = builder._run.traces  # type: ignore[union-attr]
        sizes.add(
            (len(traces.seqs), len(traces.requests), len(traces.lives.lives), len(traces.steps), len(builder._out))
        )
    assert sizes == {(0, 0, 0, 0, 0)}
    assert builder.counts == {"recorded": 1200, "kept": 0, "dropped_by_rules": 1200, "dropped_unsampled": 0}
