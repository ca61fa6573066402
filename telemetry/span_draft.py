"""Spans while their request is open, and what becomes of them in the end: OpenTelemetry's finished ones.

A draft counts in clock nanoseconds and holds plain values: most of the work is left for those that are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

T = TypeVar("T")
Value = str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float]

MAX_ATTRIBUTES = 128  # of a span: the SDK's limit, which no span here comes near
MAX_LINKS = 128  # of a span: the SDK's limit
MAX_EVENTS = 128  # of a span: the SDK's limit
MAX_LISTED = 64  # ids in one attribute; how many there are stands in the attribute of the same name with `_count`

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_OK = Status(StatusCode.UNSET)


class Place(NamedTuple):
    """A span that others can link to, and the sequence that it is of; span 0: known by its sequence only."""

    seq: int
    trace_id: int
    span_id: int


class Draft:
    """A span in the making.

    Attributes:
        name: of the span.
        span_id: its id.
        parent_id: id of its parent, in the same trace but for the root of a request; 0: none.
        start_t: its begin, in clock nanoseconds.
        end_t: its end; -1 while it is open.
        attributes: by name.
        error: what went wrong; None: nothing.
    """

    __slots__ = (
        "_events", "_links", "_num_events", "_num_links", "attributes", "end_t", "error", "name", "parent_id",
        "span_id", "start_t",
    )  # fmt: skip

    def __init__(
        self, name: str, span_id: int, parent_id: int, start_t: int, end_t: int, attributes: dict[str, Value]
    ) -> None:
        self.name = name
        self.span_id = span_id
        self.parent_id = parent_id
        self.start_t = start_t
        self.end_t = end_t
        self.attributes = attributes
        self.error: str | None = None
        self._links: list[tuple[Place, dict[str, Value]]] = []
        self._events: list[tuple[str, int, dict[str, Value]]] = []
        self._num_links = 0
        self._num_events = 0

    def link(self, place: Place, role: str, **attributes: Value) -> None:
        """Link to a span; those over the limit are counted."""
        self._num_links += 1
        if len(self._links) < MAX_LINKS:
            told: dict[str, Value] = {"nanolens.link": role, "nanolens.seq": place.seq}
            for key, value in attributes.items():
                told[f"nanolens.{key}"] = value
            self._links.append((place, told))

    def event(self, name: str, t: int, **attributes: Value) -> None:
        """Note what happened at a time; notes over the limit are counted."""
        self._num_events += 1
        if len(self._events) < MAX_EVENTS:
            self._events.append((name, t, {f"nanolens.{key}": value for key, value in attributes.items()}))

    def list_ids(self, name: str, ids: Sequence[int]) -> None:
        """Set an attribute to a list of ids, of which a long one is cut, and another to its length."""
        self.attributes[name + "_count"] = len(ids)
        if not ids:
            return
        if len(ids) > MAX_LISTED:
            self.attributes["nanolens.truncated"] = True
        self.attributes[name] = tuple(ids[:MAX_LISTED])

    def cut(self, t: int) -> None:
        """End it before what it waits for has come, unless it has ended."""
        if self.end_t < 0:
            self.end_t = t
            self.attributes["nanolens.unfinished"] = True


class SpanMaker:
    """Makes the finished spans of one run.

    Args:
        resource: of the spans.
        scope: of the spans.
        wall_offset_ns: wall clock minus the journal's clock.
    """

    def __init__(self, resource: Resource, scope: InstrumentationScope, wall_offset_ns: int) -> None:
        self._resource = resource
        self._scope = scope
        self._offset_ns = wall_offset_ns

    def finish(self, trace_id: int, root: Draft, others: Iterable[Draft]) -> list[ReadableSpan]:
        """The spans of a trace that has ended, the root first. The root's parent is a span of the caller, if any."""
        caller = SpanContext(trace_id, root.parent_id, True, _SAMPLED) if root.parent_id else None
        contexts = {root.span_id: SpanContext(trace_id, root.span_id, False, _SAMPLED)}
        spans = [self._span(root, contexts[root.span_id], caller, SpanKind.SERVER)]
        for draft in others:
            context = SpanContext(trace_id, draft.span_id, False, _SAMPLED)
            parent = contexts.get(draft.parent_id)
            if parent is None:
                parent = contexts[draft.parent_id] = SpanContext(trace_id, draft.parent_id, False, _SAMPLED)
            spans.append(self._span(draft, context, parent, SpanKind.INTERNAL))
        return spans

    def _span(self, draft: Draft, context: SpanContext, parent: SpanContext | None, kind: SpanKind) -> ReadableSpan:
        links, events = self._links(draft), self._events(draft)
        return ReadableSpan(
            name=draft.name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=draft.attributes,
            events=events,
            links=links,
            kind=kind,
            status=_OK if draft.error is None else Status(StatusCode.ERROR, draft.error),
            start_time=draft.start_t + self._offset_ns,
            end_time=draft.end_t + self._offset_ns,
            instrumentation_scope=self._scope,
        )

    def _links(self, draft: Draft) -> Sequence[Link]:
        links = [
            Link(SpanContext(place.trace_id, place.span_id, False, _SAMPLED), attributes)
            for place, attributes in draft._links
        ]
        return self._bounded(links, draft, draft._num_links)

    def _events(self, draft: Draft) -> Sequence[Event]:
        offset = self._offset_ns
        events = [Event(name, attributes, t + offset) for name, t, attributes in draft._events]
        return self._bounded(events, draft, draft._num_events)

    @staticmethod
    def _bounded(kept: Sequence[T], draft: Draft, count: int) -> Sequence[T]:
        """What is kept, in a list that says how many are missing, as exporters pass on."""
        if count == len(kept):
            return kept
        draft.attributes["nanolens.truncated"] = True
        bounded: BoundedList[T] = BoundedList(len(kept))
        bounded.extend(kept)
        bounded.dropped = count - len(kept)
        return bounded
