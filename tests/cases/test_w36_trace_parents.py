"""W36: the parent that a caller names is lost or breaks the request; aborted and refused requests have no span.

The engine's and the spans' side; that header names may have any case is the server's.
"""

from __future__ import annotations

from collections import Counter

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from fake_engine import FakeEngine
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import InvalidRequest
from nanolens.telemetry.spans import SpanBuilder
from nanolens.telemetry.tail_rules import KEEP_ALL, TailRules
from span_checks import check_whole, is_root, roots, spans_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"
UNSAMPLED = f"00-{TRACE}-{SPAN}-00"
MALFORMED = [
    "",
    "00-abc-def-01",
    f"00-{TRACE}-{SPAN}",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"ff-{TRACE}-{SPAN}-01",
    f"00-{TRACE.upper()}-{SPAN.upper()}-01",
    "\ud800",
    "garbage " * 8,
]


def add(engine: FakeEngine, name: str, traceparent: str | None, prompt: list[int] | None = None) -> None:
    params = SamplingParams(max_tokens=4, temperature=0.0)
    engine.add_request(
        [1, 2, 3] if prompt is None else prompt, params, request_id=name, traceparent=traceparent,
        on_finish=engine._finished,
    )  # fmt: skip


def finish(engine: FakeEngine, rules: TailRules = KEEP_ALL) -> list[ReadableSpan]:
    engine.run()
    engine.core.close()
    return spans_of(engine.events, rules)


def parent(span: ReadableSpan) -> tuple[str, str] | None:
    return None if span.parent is None else (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}")


def test_a_valid_parent_is_the_parent() -> None:
    engine = FakeEngine()
    add(engine, "a", VALID)
    spans = finish(engine)
    (root,) = [span for span in spans if is_root(span)]
    assert parent(root) == (TRACE, SPAN) and root.parent is not None and root.parent.is_remote
    assert {f"{span.context.trace_id:032x}" for span in spans} == {TRACE}


@pytest.mark.parametrize("value", [None, *MALFORMED])
def test_without_a_valid_parent_a_trace_of_its_own_begins_and_the_request_works(value: str | None) -> None:
    engine = FakeEngine()
    try:
        add(engine, "a", value)
    except InvalidRequest:
        assert value == "\ud800"  # no header can hold it
        return
    (root,) = [span for span in finish(engine) if is_root(span)]
    assert root.parent is None and f"{root.context.trace_id:032x}" != TRACE
    assert len(engine.ids("a")) == 4 and root.attributes["nanolens.finish_reason"] == "length"


def test_two_requests_never_share_a_span_id() -> None:
    """Neither under one parent, nor when a name is used again."""
    engine = FakeEngine()
    for i in range(20):
        add(engine, f"a{i}", VALID)
    engine.run()
    for i in range(20):
        add(engine, f"a{i}", VALID if i % 2 else None)
    spans = finish(engine)
    assert len({span.context.span_id for span in spans}) == len(spans)
    by_request = Counter(span.attributes["nanolens.request"] for span in spans if is_root(span))
    assert set(by_request.values()) == {2} and len(by_request) == 20


def test_one_ended_root_also_for_an_abort_and_a_refusal() -> None:
    engine = FakeEngine()
    add(engine, "good", VALID)
    add(engine, "aborted", VALID)
    with pytest.raises(InvalidRequest):
        add(engine, "refused", VALID, prompt=[])
    with pytest.raises(InvalidRequest):
        add(engine, "refused orphan", "00-bad", prompt=[])
    engine.step()
    engine.abort("aborted")
    engine.run()
    engine.core.close()
    spans = check_whole(engine.events)
    found = roots(spans)
    assert len(found) == sum(is_root(span) for span in spans) == 4
    assert {name: span.status.status_code for name, span in found.items()} == {
        "good": StatusCode.UNSET,
        "aborted": StatusCode.ERROR,
        "refused": StatusCode.ERROR,
        "refused orphan": StatusCode.ERROR,
    }
    assert found["aborted"].status.description == "aborted"
    assert [parent(found[name]) for name in ("good", "aborted", "refused")] == [(TRACE, SPAN)] * 3
    assert found["refused orphan"].parent is None
    assert all(span.end_time is not None for span in spans)


@pytest.mark.parametrize(
    ("keep", "kept", "dropped"), [([], {"own", "sampled"}, True), (["unsampled"], {"own", "sampled", "not"}, False)]
)
def test_what_the_caller_does_not_sample_is_not_exported_and_counted(
    keep: list[str], kept: set[str], dropped: bool
) -> None:
    engine = FakeEngine()
    for name, value in (("own", None), ("sampled", VALID), ("not", UNSAMPLED)):
        add(engine, name, value)
    engine.run()
    engine.core.close()
    builder = SpanBuilder(rules=TailRules.parse(keep))
    builder.apply_all(engine.events)
    spans = builder.take()
    assert set(roots(spans)) == kept
    assert (builder.counts["dropped_unsampled"] > 0) is dropped
    assert builder.counts["recorded"] == len(spans) + builder.counts["dropped_unsampled"]
