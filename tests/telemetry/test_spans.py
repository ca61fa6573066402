"""What spans tell: of a request, its statuses, its blocks, preemptions and steps."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from fake_engine import FakeEngine
from nanolens.errors import InvalidRequest
from nanolens.telemetry.events import (
    AnyEvent,
    BlocksCached,
    BreakpointHit,
    CallbackFailed,
    RequestArrived,
    RequestFinished,
    SequencePreempted,
    StatusChanged,
    StepFinished,
    StreamStalled,
    SwapFinished,
)
from nanolens.telemetry.metrics import Metrics
from nanolens.telemetry.spans import SpanBuilder
from span_checks import is_root, linked, named, place, roots, spans_of
from stories import find, story


def run(engine: FakeEngine) -> list[ReadableSpan]:
    engine.run()
    engine.core.close()
    return spans_of(engine.events)


def told(span: ReadableSpan, *names: str) -> list[Any]:
    """Attributes of ours by their names."""
    return [span.attributes[f"nanolens.{name}"] for name in names]


def since_start(span: ReadableSpan) -> tuple[int, int]:
    """Begin and end of a span of a run whose clocks agree."""
    return span.start_time, span.end_time


def test_the_root_follows_the_conventions() -> None:
    engine = FakeEngine()
    engine.add([1, 2, 3, 4, 5], max_tokens=3, temperature=0, top_p=1, top_k=7, seed=11, frequency_penalty=0.5)
    (root,) = roots(run(engine)).values()
    conventions = {name: value for name, value in root.attributes.items() if name.startswith("gen_ai.")}
    assert conventions == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "nanolens",
        "gen_ai.request.model": "fake",
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 7,
        "gen_ai.request.seed": 11,
        "gen_ai.request.frequency_penalty": 0.5,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.model": "fake",
        "gen_ai.response.finish_reasons": ("length",),
    }
    assert all(isinstance(conventions[f"gen_ai.request.{name}"], float) for name in ("temperature", "top_p"))
    assert (root.name, root.kind, root.parent) == ("text_completion fake", SpanKind.SERVER, None)
    assert root.status.status_code is StatusCode.UNSET
    assert root.context.trace_flags.sampled


def test_times_are_those_of_the_wall() -> None:
    events = story()
    events[0].wall_offset_ns = 5_000_000  # type: ignore[union-attr]
    (root,) = roots(spans_of(events)).values()
    assert (root.start_time, root.end_time) == (5_000_010, 5_000_930)


def test_a_request_lasts_as_long_as_its_metric_says_however_slow_its_callbacks_are() -> None:
    events = story()
    for event in events[find(events, RequestFinished) :]:
        event.t += 6_600_000  # type: ignore[union-attr]
    metrics = Metrics()
    metrics.apply_all(events)
    seconds = metrics.registry.get_sample_value("nanolens_request_seconds_sum")
    (root,) = roots(spans_of(events)).values()
    assert root.end_time - root.start_time == 920 and seconds == 920 / 1e9


def test_a_request_tells_where_its_time_went() -> None:
    (root,) = roots(spans_of(story())).values()
    parts = ("queued", "prefill", "decode", "preempted", "paused", "time_to_first_token")
    assert told(root, *(f"{part}_seconds" for part in parts)) == [
        pytest.approx(x / 1e9) for x in (259 + 190, 20 + 19, 396 + 611, 100, 235, 110 - 10)
    ]
    assert told(root, "preemptions", "pauses", "peak_blocks", "priority") == [1, 2, 4, 0]


def test_siblings_without_a_token_do_not_hide_the_first_one() -> None:
    engine = FakeEngine(max_num_seqs=1)
    name = engine.add([1, 2, 3], max_tokens=9, n=2)
    for _ in range(3):
        engine.step()
    engine.abort(name)
    (root,) = roots(run(engine)).values()
    assert told(root, "time_to_first_token_seconds")[0] > 0


def test_a_pause_that_lasted_too_long_is_told_from_an_abort() -> None:
    events = story()
    paused = events[find(events, StatusChanged, lambda e: e.reason == "delivered")]
    assert isinstance(paused, StatusChanged)
    paused.reason = "expired"
    (root,) = roots(spans_of(events)).values()
    assert (root.status.description, root.attributes["error.type"]) == ("expired", "expired")
    assert root.attributes["gen_ai.response.finish_reasons"] == ("abort", "abort")


def test_the_resource_is_the_run_and_what_was_given() -> None:
    builder = SpanBuilder({"service.name": "mine", "host.name": "here"})
    builder.apply_all(story())
    span = builder.take()[0]
    assert dict(span.resource.attributes) == {
        "service.name": "mine", "service.version": "0", "service.instance.id": "run", "process.pid": 1,
        "host.name": "here",
    }  # fmt: skip
    assert span.instrumentation_scope.name == "nanolens.telemetry"


def test_statuses_last_until_the_next_one() -> None:
    spans = spans_of(story())
    states = [s for s in spans if s.attributes.get("nanolens.event") == "sequence.status"]
    mine = sorted((s for s in states if told(s, "seq") == [0]), key=lambda s: (s.start_time, s.end_time))
    assert [(s.name, *since_start(s), *told(s, "from", "reason", "step")) for s in mine] == [
        ("WAITING", 11, 100, "", "arrived", 0),
        ("RUNNING", 100, 305, "WAITING", "admitted", 1),
        ("PAUSED", 305, 531, "RUNNING", "operator", 3),
        ("WAITING", 531, 700, "PAUSED", "resumed", 5),
        ("RUNNING", 700, 911, "WAITING", "resumed", 7),
        ("PAUSED", 911, 920, "RUNNING", "length", 9),
        ("FINISHED", 920, 920, "PAUSED", "delivered", 9),
    ]
    assert told(mine[2], "tokens.kept") == [7]
    assert told(mine[3], "resume.appended_tokens", "resume.max_tokens") == [3, 12]
    assert "nanolens.resume.max_tokens" not in mine[4].attributes
    assert told(mine[3], "wait.swap_in_seconds") == [pytest.approx((700 - 602) / 1e9)]


def test_reasons_to_wait_share_the_time_between_them() -> None:
    engine = FakeEngine(num_blocks=6, max_num_seqs=2)
    for i in range(4):
        engine.add([i] * 6, max_tokens=9)
    waits = [s.attributes for s in named(run(engine), "WAITING")]
    reasons = {name for attributes in waits for name in attributes if ".wait." in name}
    assert len(reasons) > 1
    for attributes, span in zip(waits, named(spans_of(engine.events), "WAITING"), strict=True):
        waited = sum(attributes[name] for name in attributes if ".wait." in name)
        assert 0 <= waited <= (span.end_time - span.start_time) / 1e9


def test_an_allocation_tells_its_blocks_and_what_is_free() -> None:
    spans = named(spans_of(story()), "blocks.allocated")
    assert [told(s, "seq", "blocks.free_before", "blocks.free_after") for s in spans] == [
        [0, 8, 6], [1, 6, 5], [1, 6, 5], [0, 4, 3], [0, 5, 4], [1, 4, 2],
    ]  # fmt: skip
    assert told(spans[1], "blocks.cached", "blocks.new", "blocks.cached_count", "blocks.evicted_count") == [
        (0,), (2,), 1, 0,
    ]  # fmt: skip
    assert "nanolens.blocks.evicted" not in spans[1].attributes
    assert all(s.start_time == s.end_time for s in spans)


def test_a_shared_block_links_to_the_state_in_which_it_was_first_filled() -> None:
    engine = FakeEngine(max_num_seqs=1)
    first = engine.add([1, 2, 3, 4, 5], max_tokens=3)
    engine.add([9] * 5, max_tokens=3)
    engine.run()
    engine.add([1, 2, 3, 4, 6], max_tokens=2)
    engine.add([1, 2, 3, 4, 7], max_tokens=2)
    spans = run(engine)
    (filled,) = [e for e in engine.events if isinstance(e, BlocksCached) and e.seq == 0 and e.step == 1]
    (running,) = named(spans, "RUNNING", 0)
    for seq in (2, 3):
        span = named(spans, "blocks.allocated", seq)[0]
        assert told(span, "blocks.cached", "blocks.filled_by_seq") == [tuple(filled.blocks), (0,)]
        assert linked(span, "filled_by") == [place(running)]
    assert running.context.trace_id == roots(spans)[first].context.trace_id


def test_own_blocks_found_again_are_no_link() -> None:
    engine = FakeEngine(num_blocks=8)
    for i in range(4):
        engine.add(list(range(i * 20, i * 20 + 7)), 12)
    spans = run(engine)
    refound = [s for s in named(spans, "blocks.allocated") if told(s, "blocks.cached_count") != [0]]
    assert refound
    for span in refound:
        own = told(span, "blocks.filled_by_seq") == [tuple(told(span, "seq"))]
        assert bool(span.links) is not own


def test_a_preemption_and_its_links() -> None:
    spans = spans_of(story())
    (preempted,) = named(spans, "preempted")
    assert told(
        preempted, "seq", "preemption.by_seq", "preemption.by_request", "preemption.cause", "preemption.mode",
        "preemption.blocks", "tokens.lost", "tokens.kept", "step",
    ) == [1, 0, "r0", "no_blocks", "swap", 3, 0, 11, 8]  # fmt: skip
    by = named(spans, "RUNNING", 0)[1]
    assert linked(preempted, "preemptor") == [place(by)] and linked(by, "victim") == [place(preempted)]
    assert preempted.parent.span_id == named(spans, "RUNNING", 1)[0].context.span_id


def test_a_sequence_that_preempts_itself_has_no_link() -> None:
    engine = FakeEngine(num_blocks=8)
    for i in range(4):
        engine.add(list(range(i * 20, i * 20 + 7)), 12)
    spans = run(engine)
    own = [e for e in engine.events if isinstance(e, SequencePreempted) and e.by == e.seq]
    found = [s for s in named(spans, "preempted") if told(s, "preemption.by_seq") == told(s, "seq")]
    assert len(found) == len(own) > 0
    assert not any(span.links for span in found)


def test_a_swap_lasts_until_its_data_has_arrived() -> None:
    spans = named(spans_of(story()), "blocks.swapped")
    assert [(*since_start(s), *told(s, "swap.kind", "swap.move", "seq")) for s in spans] == [
        (400, 411, "out", 1, 0), (450, 511, "down", 2, 0), (600, 611, "in", 3, 0), (802, 811, "out", 4, 1),
    ]  # fmt: skip
    assert told(spans[0], "swap.sources", "swap.targets", "swap.bytes") == [(1,), (-1,), 64]
    assert [s.status.description for s in spans] == [None, None, None, "OSError: no space left"]


def end_of_move(events: list[AnyEvent], move: int) -> SwapFinished:
    """Take the end of a move out of a journal."""
    found = events.pop(find(events, SwapFinished, lambda e: e.move == move))
    assert isinstance(found, SwapFinished)
    return found


def test_a_swap_that_outlasts_its_status_lies_under_the_request() -> None:
    events = story()
    late = end_of_move(events, 2)
    late.t = 705
    events.insert(find(events, StepFinished, lambda e: e.step == 7), late)
    spans = spans_of(events)
    (down,) = [s for s in named(spans, "blocks.swapped") if told(s, "swap.move") == [2]]
    assert (down.end_time, down.parent.span_id) == (705, spans[0].context.span_id)
    (other,) = [s for s in named(spans, "blocks.swapped") if told(s, "swap.move") == [1]]
    assert other.parent.span_id == named(spans, "PAUSED", 0)[0].context.span_id


def test_a_swap_that_outlasts_its_request_is_cut() -> None:
    events = story()
    late = end_of_move(events, 4)
    events.insert(len(events) - 1, late)
    (cut,) = [s for s in named(spans_of(events), "blocks.swapped") if told(s, "swap.move") == [4]]
    assert (cut.end_time, cut.attributes["nanolens.unfinished"]) == (930, True)


def test_a_copy_links_to_the_sibling_that_it_is_from() -> None:
    spans = spans_of(story())
    (copied,) = named(spans, "block.copied")
    assert told(copied, "seq", "copy.source_seq", "copy.source", "copy.target", "copy.tokens") == [1, 0, 1, 2, 1]
    assert linked(copied, "filled_by") == [place(named(spans, "RUNNING", 0)[0])]


def test_chunks_last_from_plan_to_read() -> None:
    spans = named(spans_of(story()), "prefill")
    assert [(*since_start(s), *told(s, "seq", "step", "prefill.start", "prefill.tokens")) for s in spans] == [
        (103, 110, 0, 1, 0, 6), (204, 210, 1, 2, 5, 1), (701, 710, 0, 7, 7, 4), (904, 910, 1, 9, 4, 8),
    ]  # fmt: skip
    assert told(spans[1], "step.kind") == ["mixed"]


def test_a_run_of_decode_steps_is_one_span() -> None:
    spans = named(spans_of(story()), "decode")
    names = ("seq", "decode.first_step", "decode.last_step", "decode.tokens", "decode.skipped_steps")
    assert [(*since_start(s), *told(s, *names)) for s in spans] == [
        (204, 210, 0, 2, 2, 1, 0),
        (300, 710, 1, 3, 7, 5, 0),
        (803, 910, 0, 8, 9, 2, 0),
    ]
    assert told(spans[0], "decode.interval_max_seconds") == [pytest.approx((210 - 110) / 1e9)]  # since the prefill
    assert told(spans[1], *(f"decode.interval_{x}_seconds" for x in ("min", "mean", "max"))) == [
        pytest.approx(x / 1e9) for x in (100, 100, 100)
    ]


def test_a_stall_within_a_run_shows_in_its_longest_interval() -> None:
    engine = FakeEngine(batching="prefill_first", max_num_seqs=4)
    engine.add([1] * 5, max_tokens=12)
    for _ in range(5):
        engine.step()
    engine.add([2] * 9, max_tokens=2)
    (decode,) = named(run(engine), "decode", 0)
    assert told(decode, "decode.tokens", "decode.skipped_steps") == [11, 1]
    shortest, longest = told(decode, "decode.interval_min_seconds", "decode.interval_max_seconds")
    assert longest > 1.5 * shortest


def test_never_a_span_for_a_token() -> None:
    counts = []
    for length in (20, 60):
        engine = FakeEngine(block_size=64, num_blocks=8)
        engine.add([1, 2, 3], max_tokens=length)
        counts.append(len(run(engine)))
    assert counts[0] == counts[1]


def test_siblings_are_told_apart_within_one_trace() -> None:
    engine = FakeEngine()
    engine.add([1, 2, 3, 4, 5, 6], max_tokens=4, n=3)
    spans = run(engine)
    (root,) = roots(spans).values()
    assert told(root, "seqs", "seqs_count") == [(0, 1, 2), 3]
    assert root.attributes["gen_ai.request.choice.count"] == 3
    assert root.attributes["gen_ai.usage.output_tokens"] == 12
    assert root.attributes["gen_ai.response.finish_reasons"] == ("length",) * 3
    assert {s.context.trace_id for s in spans} == {root.context.trace_id}
    assert [len(named(spans, "RUNNING", seq)) for seq in range(3)] == [1, 1, 1]


def test_an_abort_sets_the_status() -> None:
    engine = FakeEngine()
    name = engine.add([1, 2, 3], max_tokens=20)
    engine.step()
    engine.abort(name)
    spans = run(engine)
    root = roots(spans)[name]
    assert (root.status.status_code, root.status.description) == (StatusCode.ERROR, "aborted")
    assert root.attributes["error.type"] == "aborted"
    assert root.attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert named(spans, "FINISHED")[0].status.description == "aborted"


def test_an_error_tells_its_message() -> None:
    engine = FakeEngine()
    engine.runner.fail_rows = lambda plan: {1: "logits are not finite"}
    name = engine.add([1, 2, 3], max_tokens=20, n=2)
    spans = run(engine)
    root = roots(spans)[name]
    assert root.status.status_code is StatusCode.ERROR and "logits are not finite" in str(root.status.description)
    assert root.attributes["error.type"] == "error"
    ends = {told(s, "seq")[0]: s for s in named(spans, "ERROR")}
    assert {s.status.description for s in ends.values()} == {root.status.description}
    assert told(ends[0], "cause_seq") == [1] and "nanolens.cause_seq" not in ends[1].attributes


def test_a_refused_request_has_a_root_of_its_own() -> None:
    engine = FakeEngine()
    name = engine.add([1, 2, 3], max_tokens=4)
    with pytest.raises(InvalidRequest):
        engine.add_request([], request_id=name)
    spans = run(engine)
    good, refused = sorted((s for s in spans if is_root(s)), key=lambda s: "nanolens.refused.field" in s.attributes)
    assert told(refused, "request", "refused.field", "refused.reason") == [name, "prompt", "InvalidRequest"]
    assert refused.status.status_code is StatusCode.ERROR and refused.start_time == refused.end_time
    assert refused.context.trace_id != good.context.trace_id


def test_what_befalls_a_sequence_is_noted_on_its_status() -> None:
    events = story()
    events.insert(find(events, RequestFinished), CallbackFailed(931, "r0", "boom"))
    spans = spans_of(events)
    (hit,) = named(spans, "PAUSED", 0)[0].events
    assert (hit.name, dict(hit.attributes)["nanolens.action"]) == ("breakpoint.hit", "engine")
    assert any(isinstance(event, BreakpointHit) for event in events)
    assert [e.name for s in named(spans, "RUNNING", 1) for e in s.events] == ["sequence.priority"]
    (failed,) = spans[0].events
    assert (failed.name, failed.timestamp) == ("callback.failed", 931)
    assert dict(failed.attributes) == {"nanolens.message": "boom"}


def test_a_slow_reader_is_noted_on_its_request_until_that_ends() -> None:
    events = story()
    end = find(events, RequestFinished)
    events.insert(end + 1, StreamStalled(2000, "r0", 1_500_000_000, 1))
    events.insert(end, StreamStalled(920, "r0", 500_000_000, 8))
    (stalled,) = spans_of(events)[0].events
    assert (stalled.name, stalled.timestamp) == ("stream.stalled", 920)
    assert dict(stalled.attributes) == {"nanolens.stalled_seconds": 0.5, "nanolens.pieces": 8}


def test_a_root_comes_first_and_only_once_the_request_has_ended() -> None:
    events: list[AnyEvent] = story()
    builder = SpanBuilder()
    end = find(events, RequestFinished)
    builder.apply_all(events[:end])
    assert builder.take() == [] and builder.open_requests == {"r0": 10}
    assert builder.counts["recorded"] == 0
    builder.apply(events[end])
    spans = builder.take()
    assert is_root(spans[0]) and builder.counts["recorded"] == builder.counts["kept"] == len(spans) > 20
    assert builder.take() == [] and builder.open_requests == {}


def test_a_name_used_again_is_another_trace() -> None:
    engine = FakeEngine()
    for _ in range(2):
        engine.add_request([1, 2, 3], request_id="same")
        engine.run()
    arrivals = [e for e in engine.events if isinstance(e, RequestArrived)]
    found = [s for s in run(engine) if is_root(s)]
    assert len(arrivals) == 2 and len({s.context.trace_id for s in found}) == 2
