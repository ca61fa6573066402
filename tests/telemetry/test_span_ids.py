"""Ids of traces and spans: W3C trace context, and ids that everyone who reads a journal finds alike."""

from __future__ import annotations

import pytest

from journals import started
from nanolens.telemetry.events import (
    JournalDropped,
    Keyframe,
    RequestArrived,
    RequestFinished,
    SequenceSnapshot,
)
from nanolens.telemetry.span_ids import MAX_ENDED, SpanIds, TraceIds, TraceParent, parse_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
VALID = TraceParent(int(TRACE, 16), int(SPAN, 16), True)


@pytest.mark.parametrize(
    ("value", "parent"),
    [
        (f"00-{TRACE}-{SPAN}-01", VALID),
        (f"00-{TRACE}-{SPAN}-03", VALID),
        (f"00-{TRACE}-{SPAN}-00", TraceParent(VALID.trace_id, VALID.span_id, False)),
        (f"00-{TRACE}-{SPAN}-02", TraceParent(VALID.trace_id, VALID.span_id, False)),
        (f"cc-{TRACE}-{SPAN}-01", VALID),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", VALID),
    ],
)
def test_a_valid_parent(value: str, parent: TraceParent) -> None:
    assert parse_traceparent(value) == parent


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "00",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}0-{SPAN}-01",
        f"00-{TRACE}-{SPAN[:-1]}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}-01-",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'g' * 32}-{SPAN}-01",
        f"00-{'١' * 32}-{SPAN}-01",
        f"00_{TRACE}_{SPAN}_01",
    ],
)
def test_what_the_standard_says_to_ignore(value: str | None) -> None:
    assert parse_traceparent(value) is None


def test_ids_are_told_apart_by_everything_that_names_them() -> None:
    ids, other = SpanIds("run"), SpanIds("another run")
    found = [
        *(make.trace_id(request, t) >> 64 for make in (ids, other) for request in ("a", "b") for t in (1, 2)),
        *(make.root_id(request, t) for make in (ids, other) for request in ("a", "b") for t in (1, 2)),
        *(ids.refused_id(request, t) for request in ("a", "b") for t in (1, 2)),
        *(ids.span_id(seq, kind, t, n) for seq in (1, 11) for kind in ("x", "y") for t in (1, 11) for n in (0, 1)),
    ]
    assert len(set(found)) == len(found)
    assert found[0] == SpanIds("run").trace_id("a", 1) >> 64


def test_ids_fit_their_widths() -> None:
    ids = SpanIds("run")
    for i in range(100):
        assert 0 < ids.trace_id("r", i) < 1 << 128 and 0 < ids.span_id(i, "x", i) < 1 << 64
    assert ids.trace_id("r", 1, VALID) == VALID.trace_id


def arrived(request: str, t: int, traceparent: str | None = None) -> RequestArrived:
    return RequestArrived(t, request, [t], 1, 1, 0, {}, traceparent)


def finished(request: str) -> RequestFinished:
    return RequestFinished(9, request, "stop", 1, 1, 0)


def snapshot(request: str, t: int) -> SequenceSnapshot:
    return SequenceSnapshot(
        t, request, "WAITING", "prefill", "arrived", "", "none", 0, t, t, 1, 0, 0, 0, 1, 1, 0, []
    )  # fmt: skip


def keyframe(*live: tuple[str, int]) -> Keyframe:
    return Keyframe(9, 1, started(), [snapshot(*each) for each in live], [], [], [], b"", [], [], {})


def test_trace_ids_of_requests_that_live_or_have_just_ended() -> None:
    traces = TraceIds()
    traces.apply_all([arrived("early", 1), started(), arrived("a", 1), arrived("b", 2, f"00-{TRACE}-{SPAN}-01")])
    assert traces("a") == f"{SpanIds('run').trace_id('a', 1):032x}"
    assert (traces("b"), traces("early"), traces("c")) == (TRACE, "", "")
    traces.apply(finished("b"))
    assert traces("b") == TRACE


def test_a_trace_that_is_not_exported_has_no_id() -> None:
    parent = f"00-{TRACE}-{SPAN}-00"
    sampled, all_of_them = TraceIds(), TraceIds(keep_unsampled=True)
    for traces in (sampled, all_of_them):
        traces.apply_all([started(), arrived("a", 1, parent)])
    assert (sampled("a"), all_of_them("a")) == ("", TRACE)


def test_a_name_used_again_has_the_new_trace() -> None:
    traces = TraceIds()
    traces.apply_all([started(), arrived("a", 1), finished("a"), arrived("a", 2)])
    traces.apply_all(event for i in range(MAX_ENDED + 1) for event in (arrived(f"x{i}", i), finished(f"x{i}")))
    assert traces("a") == f"{SpanIds('run').trace_id('a', 2):032x}"
    assert (traces("x0"), traces("x1") != "") == ("", True)


def test_joining_at_a_keyframe_gives_the_same_traces() -> None:
    whole, late = TraceIds(), TraceIds()
    whole.apply_all([started(), arrived("a", 3), keyframe(("a", 3)), arrived("b", 4)])
    late.apply_all([keyframe(("a", 3)), arrived("b", 4)])
    assert [late("a"), late("b")] == [whole("a"), whole("b")] and late("a")


def test_over_a_gap_only_what_still_lives_is_known() -> None:
    traces = TraceIds()
    parent = f"00-{TRACE}-{SPAN}-01"
    traces.apply_all([started(), arrived("a", 1), arrived("b", 2, parent), arrived("c", 3, parent)])
    traces.apply_all([JournalDropped(8, 1, 1, "full"), arrived("d", 8), keyframe(("b", 2), ("c", 7))])
    assert (traces("a"), traces("d"), traces("b")) == ("", "", TRACE)
    assert traces("c") == f"{SpanIds('run').trace_id('c', 7):032x}"


def test_a_new_run_forgets_the_last() -> None:
    traces = TraceIds()
    traces.apply_all([started(), arrived("a", 1), started("next"), arrived("b", 1)])
    assert (traces("a"), traces("b")) == ("", f"{SpanIds('next').trace_id('b', 1):032x}")
