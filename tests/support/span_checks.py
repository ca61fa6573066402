"""What holds for the spans of any whole journal, and small helpers to look at them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from nanolens.telemetry.event_fields import tag_of
from nanolens.telemetry.events import (
    AnyEvent,
    BlockCopied,
    BlocksAllocated,
    BlocksSwapped,
    EngineStarted,
    RequestArrived,
    RequestFinished,
    RequestRefused,
    SequencePreempted,
    StatusChanged,
    StepFinished,
    StepPlanned,
)
from nanolens.telemetry.lives import Lives
from nanolens.telemetry.span_draft import MAX_ATTRIBUTES, MAX_EVENTS, MAX_LINKS
from nanolens.telemetry.span_names import ATTRIBUTES, LINKS, NOTES, SPANS, pattern_of
from nanolens.telemetry.spans import SpanBuilder
from nanolens.telemetry.state import EngineState
from nanolens.telemetry.tail_rules import KEEP_ALL, TailRules

ONE_FOR_ONE = (StatusChanged, BlocksAllocated, SequencePreempted, BlocksSwapped, BlockCopied)


def spans_of(events: Iterable[AnyEvent], rules: TailRules = KEEP_ALL) -> list[ReadableSpan]:
    """The spans that have come out after these events."""
    builder = SpanBuilder(rules=rules)
    builder.apply_all(events)
    return builder.take()


def is_root(span: ReadableSpan) -> bool:
    return span.parent is None or span.parent.is_remote


def roots(spans: Iterable[ReadableSpan]) -> dict[str, ReadableSpan]:
    """The roots by request; of requests that used a name one after another the last."""
    return {str(span.attributes["nanolens.request"]): span for span in spans if is_root(span)}


def named(spans: Iterable[ReadableSpan], name: str, seq: int | None = None) -> list[ReadableSpan]:
    """The spans of a name, of one sequence or of all, by their begin."""
    found = [s for s in spans if s.name == name and (seq is None or s.attributes["nanolens.seq"] == seq)]
    return sorted(found, key=lambda span: span.start_time)


def place(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def linked(span: ReadableSpan, role: str) -> list[tuple[int, int]]:
    """Where the links of a role lead."""
    return [
        (link.context.trace_id, link.context.span_id) for link in span.links if link.attributes["nanolens.link"] == role
    ]


def check_whole(events: Sequence[AnyEvent]) -> list[ReadableSpan]:
    """Everything that must hold for a journal in which all requests have ended; its spans."""
    builder = SpanBuilder()
    builder.apply_all(events)
    spans = builder.take()
    traces = builder._run.traces  # type: ignore[union-attr]
    assert not builder.open_requests and not traces.seqs and not traces.lives.lives and len(traces.steps) <= 2
    check_one_for_one(events, spans)
    check_roots(events, spans)
    check_nesting(spans)
    check_states(spans)
    check_links(events, spans)
    check_steps(events, spans)
    check_vocabulary(spans)
    assert [span.to_json() for span in spans_of(events)] == [span.to_json() for span in spans]
    return spans


def check_one_for_one(events: Sequence[AnyEvent], spans: Sequence[ReadableSpan]) -> None:
    """Each such event has one span, of its sequence and from its time on, and no other span says so.

    Spans about blocks tell what was free before and after.
    """
    (offset,) = [event.wall_offset_ns for event in events if isinstance(event, EngineStarted)]
    wanted = Counter((tag_of(type(e)), e.seq, e.t + offset) for e in events if isinstance(e, ONE_FOR_ONE))
    found = Counter(
        (s.attributes["nanolens.event"], s.attributes["nanolens.seq"], s.start_time)
        for s in spans
        if "nanolens.event" in s.attributes
    )
    assert found == wanted
    state, free = EngineState(), Counter[tuple[int, int, int, int]]()
    for event in events:
        before = len(state.pool.free)
        state.apply(event)
        if isinstance(event, BlocksAllocated | BlocksSwapped):
            free[event.seq, event.t + offset, before, len(state.pool.free)] += 1
    names = ("seq", "blocks.free_before", "blocks.free_after")
    told = [
        (s, *(s.attributes[f"nanolens.{name}"] for name in names))
        for s in spans
        if f"nanolens.{names[1]}" in s.attributes
    ]
    assert Counter((seq, s.start_time, before, after) for s, seq, before, after in told) == free


def check_roots(events: Sequence[AnyEvent], spans: Sequence[ReadableSpan]) -> None:
    """Each request has one root that has ended, with the figures of its end and the sums of its sequences' lives."""
    found = [span for span in spans if is_root(span)]
    asked = [e.request for e in events if isinstance(e, RequestArrived | RequestRefused)]
    assert Counter(str(span.attributes["nanolens.request"]) for span in found) == Counter(asked)
    assert len({place(span) for span in spans}) == len({span.context.span_id for span in spans}) == len(spans)
    assert all(span.end_time is not None and span.start_time <= span.end_time for span in spans)
    lives = Lives()
    lives.apply_all(events)
    whole: dict[str, int] = defaultdict(int)
    for life in lives.lives.values():
        whole[life.request] += life.lifetime_ns
    for event in events:
        if not isinstance(event, RequestFinished) or asked.count(event.request) > 1:
            continue
        told = roots(found)[event.request].attributes
        assert told["gen_ai.usage.output_tokens"] == event.num_output_tokens
        assert told["gen_ai.usage.cache_read.input_tokens"] == event.num_cached_tokens
        parts = [told[f"nanolens.{part}_seconds"] for part in ("queued", "prefill", "decode", "preempted", "paused")]
        assert min(parts) >= 0 and abs(sum(parts) - whole[event.request] / 1e9) < 1e-9


def check_nesting(spans: Sequence[ReadableSpan]) -> None:
    """Every span but a root has its parent among the spans, and lies within it; statuses lie under the root."""
    by_id = {span.context.span_id: span for span in spans}
    for span in spans:
        if is_root(span):
            continue
        parent = by_id[span.parent.span_id]
        assert parent.context.trace_id == span.context.trace_id == span.parent.trace_id
        assert parent.start_time <= span.start_time <= span.end_time <= parent.end_time, (parent.name, span.name)
        if span.attributes.get("nanolens.event") == "sequence.status":
            assert is_root(parent)
        elif span.name != "blocks.swapped":
            assert parent.attributes["nanolens.seq"] == span.attributes["nanolens.seq"]


def check_states(spans: Sequence[ReadableSpan]) -> None:
    """The statuses of a sequence follow each other without a gap, from its arrival to a final one without length."""
    states: dict[int, list[ReadableSpan]] = defaultdict(list)
    for span in spans:
        if span.attributes.get("nanolens.event") == "sequence.status":
            states[span.attributes["nanolens.seq"]].append(span)
    for mine in states.values():
        mine.sort(key=lambda span: (span.start_time, span.end_time))
        assert mine[0].attributes["nanolens.from"] == ""
        for before, after in pairwise(mine):
            assert before.end_time == after.start_time
            assert before.name == before.attributes["nanolens.to"] == after.attributes["nanolens.from"]
        assert mine[-1].name in ("FINISHED", "ERROR") and mine[-1].start_time == mine[-1].end_time


def check_links(events: Sequence[AnyEvent], spans: Sequence[ReadableSpan]) -> None:
    """Every link leads to a span; a preemption links to who gets the blocks, and is linked to from there."""
    known = {place(span): span for span in spans}
    for span in spans:
        for link in span.links:
            assert (link.context.trace_id, link.context.span_id) in known
    for span in named(spans, "preempted"):
        if span.attributes["nanolens.preemption.by_seq"] == span.attributes["nanolens.seq"]:
            assert not span.links
            continue
        (to,) = linked(span, "preemptor")
        assert known[to].attributes["nanolens.seq"] == span.attributes["nanolens.preemption.by_seq"]
        assert known[to].start_time <= span.start_time <= known[to].end_time
        assert place(span) in linked(known[to], "victim")


def check_steps(events: Sequence[AnyEvent], spans: Sequence[ReadableSpan]) -> None:
    """Each chunk has a span; the runs of decode steps have all tokens that steps gave to those without a chunk."""
    planned = {e.step: e for e in events if isinstance(e, StepPlanned)}
    assert Counter((s.attributes["nanolens.step"], s.attributes["nanolens.seq"]) for s in named(spans, "prefill")) == (
        Counter((step, chunk[0]) for step, plan in planned.items() for chunk in plan.chunks)
    )
    (offset,) = [event.wall_offset_ns for event in events if isinstance(event, EngineStarted)]
    read = {e.step: e.t + offset for e in events if isinstance(e, StepFinished)}
    ends = {span.context.span_id: span.end_time for span in spans}
    for chunk in named(spans, "prefill"):
        step = chunk.attributes["nanolens.step"]
        assert chunk.start_time == planned[step].t + offset
        if "nanolens.unfinished" in chunk.attributes:
            assert chunk.end_time == ends[chunk.parent.span_id] < read.get(step, chunk.end_time + 1)
        else:
            assert chunk.end_time == read[step]
    decoded = 0
    for event in events:
        if isinstance(event, StepFinished):
            chunked = {chunk[0] for chunk in planned[event.step].chunks}
            decoded += planned[event.step].decodes - len(set(event.wasted) - chunked)
    runs = named(spans, "decode")
    assert sum(run.attributes["nanolens.decode.tokens"] for run in runs) == decoded
    for run in runs:
        told = run.attributes
        steps = told["nanolens.decode.last_step"] - told["nanolens.decode.first_step"] + 1
        assert told["nanolens.decode.tokens"] + told["nanolens.decode.skipped_steps"] == steps
        if "nanolens.decode.interval_min_seconds" in told:
            shortest, mean, longest = (told[f"nanolens.decode.interval_{x}_seconds"] for x in ("min", "mean", "max"))
            assert 0 < shortest <= mean + 1e-12 and mean <= longest + 1e-12


def check_vocabulary(spans: Iterable[ReadableSpan]) -> None:
    """Names are those of the docs, values are such as the SDK takes, and no limit of the SDK is passed."""
    for span in spans:
        assert span.name in SPANS or (is_root(span) and "text_completion {model}" in SPANS)
        told = [span.attributes, *(x.attributes for x in span.links), *(x.attributes for x in span.events)]
        for attributes in told:
            assert {pattern_of(name) for name in attributes} <= set(ATTRIBUTES)
            assert dict(BoundedAttributes(MAX_ATTRIBUTES, dict(attributes))) == dict(attributes)
        assert len(span.links) <= MAX_LINKS and len(span.events) <= MAX_EVENTS
        assert {link.attributes["nanolens.link"] for link in span.links} <= set(LINKS)
        assert {event.name for event in span.events} <= set(NOTES)
        assert (span.status.description is not None) == (span.status.status_code is StatusCode.ERROR)
