"""Spans of journals that are not whole: joined at a keyframe, with a gap, or ended by a dead engine."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from fake_engine import FakeEngine
from nanolens.telemetry.events import (
    AnyEvent,
    EngineStopped,
    JournalDropped,
    Keyframe,
    RequestArrived,
    RequestFinished,
    SequenceSnapshot,
    StatusChanged,
    StepFinished,
    StepPlanned,
)
from nanolens.telemetry.spans import SpanBuilder
from span_checks import check_nesting, check_vocabulary, is_root, named, place, roots, spans_of
from stories import find, story, swap_started


def is_partial(span: ReadableSpan) -> bool:
    return "nanolens.partial" in span.attributes


def long_run(overlap: bool = False) -> tuple[list[AnyEvent], list[int]]:
    """A busy run with a keyframe after every step, and where these stand."""
    engine = FakeEngine(num_blocks=14, max_num_seqs=4, max_prefill_chunk=5, overlap=overlap)
    events: list[AnyEvent] = []
    keyframes = []
    for i in range(60):
        if i < 12:
            engine.add([1, 2, 3, 4, i][: 3 + i % 3], max_tokens=6 + i, n=1 + (i % 5 == 4))
        engine.step()
        engine.core.flush()
        events += engine.events[len(events) - len(keyframes) :]
        keyframes.append(len(events))
        events.append(engine.snapshot())
    engine.run()
    engine.core.close()
    events += engine.events[len(events) - len(keyframes) :]
    return events, keyframes


@pytest.mark.parametrize("overlap", [False, True])
def test_whoever_joins_at_a_keyframe_finds_the_ids_of_one_who_read_it_all(overlap: bool) -> None:
    events, keyframes = long_run(overlap)
    whole = spans_of(events)
    known = {place(span): span for span in whole}
    for at in keyframes:
        spans = spans_of(events[at:])
        check_nesting(spans)
        check_vocabulary(spans)
        open_then = {each.request for each in events[at].sequences}  # type: ignore[union-attr]
        assert {s.attributes["nanolens.request"] for s in spans if is_root(s) and is_partial(s)} == open_then
        for span in spans:
            same = known[place(span)]
            assert (span.name, span.end_time) == (same.name, same.end_time)
            assert span.start_time == same.start_time or (is_partial(span) and span.name == "decode")
            if not is_partial(span) and not is_root(span):
                assert span.attributes == same.attributes


def test_a_request_that_arrives_after_the_join_is_whole() -> None:
    events, keyframes = long_run()
    whole, late = spans_of(events), spans_of(events[keyframes[2] :])
    for name, root in roots(late).items():
        if not is_partial(root):
            assert root.to_json() == roots(whole)[name].to_json()


def test_the_state_that_was_joined_is_partial_and_begins_when_it_began() -> None:
    events = story()
    spans = spans_of(events[find(events, Keyframe) :])
    (waiting,) = named(spans, "WAITING", 0)
    assert (waiting.start_time, waiting.end_time, is_partial(waiting)) == (531, 700, True)
    assert not any(is_partial(span) for span in named(spans, "RUNNING", 0))
    (root,) = [span for span in spans if is_root(span)]
    assert (root.start_time, root.end_time, is_partial(root)) == (10, 930, True)
    assert root.attributes["gen_ai.usage.output_tokens"] == 12


def test_events_before_anything_is_whole_are_passed_over() -> None:
    events = story()
    keyframe = find(events, Keyframe)
    builder = SpanBuilder()
    builder.apply_all(events[keyframe - 9 : keyframe])
    assert builder.open_requests == {}
    builder.apply_all(events[keyframe:])
    assert [s.to_json() for s in builder.take()] == [s.to_json() for s in spans_of(events[keyframe:])]


def test_over_a_gap_a_request_goes_on_and_is_partial() -> None:
    events = story()
    keyframe = find(events, Keyframe)
    before = events[: find(events, StatusChanged, lambda e: e.new == "PAUSED")]
    spans = spans_of([*before, JournalDropped(539, 9, 1, "full"), *events[keyframe:]])
    check_nesting(spans)
    (root,) = [span for span in spans if is_root(span)]
    assert is_partial(root) and root.attributes["gen_ai.request.max_tokens"] == 9
    first, second = named(spans, "RUNNING", 0)
    assert (first.start_time, first.end_time, is_partial(first)) == (100, 531, True)
    (waiting,) = named(spans, "WAITING", 0)[1:]
    assert (waiting.start_time, is_partial(waiting), is_partial(second)) == (531, True, False)
    assert len({place(span) for span in spans}) == len(spans)


def snapshot(seq: int, status: str, wait_reason: str = "", computed: int = 4, outputs: int = 1) -> SequenceSnapshot:
    """A sequence of request r0, which arrived at 10 and has been in its status since 11."""
    return SequenceSnapshot(
        seq, "r0", status, "decode", "admitted", wait_reason, "device", 0, 10, 11, 4, outputs, computed, 0, 4, 9, 0, [],
        first_token_t=20, last_token_t=20,
    )  # fmt: skip


def keyframe(t: int, *sequences: SequenceSnapshot) -> Keyframe:
    waiting = [each.seq for each in sequences if each.status == "WAITING"]
    running = [each.seq for each in sequences if each.status == "RUNNING"]
    return Keyframe(t, 5, swap_started(), list(sequences), waiting, running, [], b"", [], list(range(8)), {})


def decode(step: int, t: int) -> list[AnyEvent]:
    return [
        StepPlanned(t, step, "decode", [], 1, [], 0, 1, 8),
        StepFinished(t + 1, step, 1, 1, 1, 1, 1, 1, []),
    ]


def test_a_reason_to_wait_counts_from_the_keyframe_on() -> None:
    running = StatusChanged(70, 6, 0, "WAITING", "RUNNING", "admitted")
    end = [StatusChanged(80, 6, 0, "RUNNING", "FINISHED", "stop"), RequestFinished(81, "r0", "stop", 4, 1, 0)]
    spans = spans_of([keyframe(50, snapshot(0, "WAITING", "no_blocks")), running, *end])
    assert named(spans, "WAITING")[0].attributes["nanolens.wait.no_blocks_seconds"] == pytest.approx(20e-9)


def test_a_run_of_decode_steps_ends_at_a_gap_and_another_begins_after_it() -> None:
    begin: list[AnyEvent] = [
        swap_started(),
        RequestArrived(10, "r0", [0, 1], 4, 9, 0, {}),
        *(StatusChanged(11, 0, seq, "", "WAITING", "arrived", "r0") for seq in (0, 1)),
        *(StatusChanged(12, 1, seq, "WAITING", "RUNNING", "admitted") for seq in (0, 1)),
        StepPlanned(13, 1, "prefill", [(0, 0, 4), (1, 0, 4)], 0, [], 0, 2, 8),
        StepFinished(20, 1, 1, 1, 1, 1, 8, 2, []),
        *decode(2, 30),
        StepPlanned(32, 3, "decode", [], 2, [], 0, 2, 8),
    ]
    alone = snapshot(0, "RUNNING", computed=9, outputs=6)
    alone.status_t = 12
    end: list[AnyEvent] = [
        StatusChanged(600, 8, 0, "RUNNING", "FINISHED", "stop"),
        RequestFinished(600, "r0", "stop", 4, 10, 0),
    ]
    gap = [JournalDropped(490, 1, 1, "full"), keyframe(500, alone)]
    spans = spans_of([*begin, *gap, *decode(7, 510), *decode(8, 520), *end])
    check_nesting(spans)
    first, second = named(spans, "decode", 0)
    assert [(s.start_time, s.end_time, is_partial(s)) for s in (first, second)] == [(30, 31, True), (510, 521, True)]
    assert first.context.span_id != second.context.span_id
    assert second.attributes["nanolens.decode.interval_max_seconds"] == pytest.approx(10e-9)
    (sibling,) = named(spans, "RUNNING", 1)  # it ended in the gap
    assert (sibling.end_time, sibling.attributes["nanolens.unfinished"]) == (490, True)


@pytest.mark.parametrize("overlap", [False, True])
def test_any_gap_leaves_whole_traces(overlap: bool) -> None:
    """What ended in the gap ends where it began; each request that was open before or after has one root."""
    events, keyframes = long_run(overlap)
    for first, last in zip(keyframes[:-9:3], keyframes[7::3], strict=False):
        left = [*events[:first], JournalDropped(0, 1, 1, "full"), *events[last:]]
        spans = spans_of(left)
        check_nesting(spans)
        arrived = {e.request for e in left if hasattr(e, "traceparent")}
        arrived |= {each.request for each in events[last].sequences}  # type: ignore[union-attr]
        found = [span.attributes["nanolens.request"] for span in spans if is_root(span)]
        assert sorted(found) == sorted(arrived)
        lost = arrived - {e.request for e in left if isinstance(e, RequestFinished)}
        for name in lost:
            assert is_partial(roots(spans)[name]) and "nanolens.finish_reason" not in roots(spans)[name].attributes


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (EngineStopped(999, "error"), "the engine stopped before the request ended: error"),
        (swap_started(), "the engine ended before the request"),
        (None, "the journal ends before the request"),
    ],
)
def test_what_a_dead_engine_leaves_open_ends_with_it(last: AnyEvent | None, message: str) -> None:
    events = story()
    events = events[: find(events, StepPlanned, lambda e: e.step == 7) + 1]
    builder = SpanBuilder()
    builder.apply_all(events)
    if last is not None:
        builder.apply(last)
    else:
        builder.close()
    spans = builder.take()
    check_nesting(spans)
    (root,) = [span for span in spans if is_root(span)]
    end = 999 if isinstance(last, EngineStopped) else 701
    assert (root.end_time, root.status.description, root.attributes["error.type"]) == (end, message, "engine")
    running = named(spans, "RUNNING", 0)[-1]
    (chunk,) = [s for s in named(spans, "prefill") if s.attributes["nanolens.step"] == 7]
    for cut in (running, chunk):
        assert (cut.end_time, cut.attributes["nanolens.unfinished"]) == (end, True)
    assert root.status.status_code is StatusCode.ERROR and builder.open_requests == {}


def test_a_keyframe_of_another_run_ends_what_was_open() -> None:
    events, keyframes = long_run()
    other = story()
    builder = SpanBuilder()
    builder.apply_all(events[: keyframes[5]])
    still_open = set(builder.open_requests)
    builder.apply_all([JournalDropped(0, 1, 1, "gone"), *other[find(other, Keyframe) :]])
    found = roots(builder.take())
    assert still_open < set(found) and "r0" in found
    assert {found[name].attributes["nanolens.run"] for name in still_open} == {"test"}
    assert found["r0"].attributes["nanolens.run"] == "run" and found["r0"].end_time == 930
