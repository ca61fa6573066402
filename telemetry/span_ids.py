"""Ids of traces and spans: worked out from what the journal says, so that everyone who reads it finds the same ones.

Knows W3C trace context and hashing. An event is named by its sequence, its kind and its time: unlike a count of the
events before it, a keyframe holds these too, and whoever joins there arrives at the ids of one who read from the start.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from .events import AnyEvent, EngineStarted, JournalDropped, Keyframe, RequestArrived, RequestFinished

MAX_ENDED = 1024  # requests that have ended and whose trace id is still given
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class TraceParent:
    """A valid `traceparent`: the span of the caller that a request belongs under, and whether its trace is sampled."""

    trace_id: int
    span_id: int
    sampled: bool


def parse_traceparent(value: str | None) -> TraceParent | None:
    """The caller's span that a `traceparent` names (W3C Trace Context, section 3.2.2).

    Returns:
        None for no value and for one that the standard says to ignore, so that a new trace begins: wrong lengths,
        capital letters, version ff, version 00 with more behind it, ids that are all zero.
    """
    match = _TRACEPARENT.fullmatch(value) if value is not None else None
    if match is None:
        return None
    version, trace, span, flags, more = match.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    trace_id, span_id = int(trace, 16), int(span, 16)
    if not trace_id or not span_id:
        return None
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & 1))


class SpanIds:
    """The ids of one run: hashes (BLAKE2b) of what names a request or an event, keyed by the run's id."""

    def __init__(self, run_id: str) -> None:
        self._key = blake2b(run_id.encode("utf-8", "surrogatepass"), digest_size=32).digest()

    def trace_id(self, request: str, arrived_t: int, parent: TraceParent | None = None) -> int:
        """16 bytes, never 0: the trace of a request, which is its caller's where it has one.

        Args:
            request: its id; another request may take it once this one has ended.
            arrived_t: when it arrived, in clock nanoseconds, which keeps the two apart.
            parent: the caller's span.
        """
        return parent.trace_id if parent is not None else self._hash(16, f"request\0{arrived_t}\0{request}")

    def root_id(self, request: str, arrived_t: int) -> int:
        """8 bytes, never 0: the span of a whole request."""
        return self._hash(8, f"root\0{arrived_t}\0{request}")

    def refused_id(self, request: str, t: int) -> int:
        """8 bytes, never 0: the span of a request that was refused; one with the same id may be alive."""
        return self._hash(8, f"refused\0{t}\0{request}")

    def span_id(self, seq: int, kind: str, t: int, again: int = 0) -> int:
        """8 bytes, never 0: the span of an event.

        Args:
            seq: the sequence that it concerns.
            kind: what the span is of, such as the event's tag.
            t: the event's time, in clock nanoseconds.
            again: how many spans of this sequence, kind and time came before it.
        """
        return self._hash(8, f"{kind}\0{seq}\0{t}\0{again}")

    def _hash(self, size: int, name: str) -> int:
        digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=size, key=self._key).digest()
        return int.from_bytes(digest, "big") or 1


class TraceIds:
    """Which trace each request is in: what exemplars of metrics refer to.

    Args:
        keep_unsampled: whether traces whose caller did not sample them are exported all the same.
    """

    def __init__(self, keep_unsampled: bool = False) -> None:
        self._keep_unsampled = keep_unsampled
        self._ids: SpanIds | None = None
        self._traces: dict[str, tuple[int, str]] = {}  # request -> when it arrived, and its trace
        self._ended: deque[tuple[str, tuple[int, str]]] = deque()

    def apply(self, event: AnyEvent) -> None:
        """Take one event; those before engine.started or the first keyframe are passed over."""
        if isinstance(event, RequestArrived):
            self._arrived(event)
        elif isinstance(event, RequestFinished):
            self._finished(event)
        elif isinstance(event, Keyframe):
            self._join(event)
        elif isinstance(event, EngineStarted):
            self._ids = SpanIds(event.run_id)
            self._traces.clear()
            self._ended.clear()
        elif isinstance(event, JournalDropped):
            self._ids = None

    def apply_all(self, events: Iterable[AnyEvent]) -> None:
        """Take events in their order."""
        for event in events:
            self.apply(event)

    def __call__(self, request: str) -> str:
        """The trace id of a request that lives or has just ended, as 32 hex digits.

        Returns:
            "" for one that was never seen, ended long ago, or has no exported trace because its caller did not sample
            it.
        """
        return self._traces.get(request, (0, ""))[1]

    def _arrived(self, e: RequestArrived) -> None:
        if self._ids is None:
            return
        parent = parse_traceparent(e.traceparent)
        exported = parent is None or parent.sampled or self._keep_unsampled
        self._traces[e.request] = (e.t, f"{self._ids.trace_id(e.request, e.t, parent):032x}" if exported else "")

    def _finished(self, e: RequestFinished) -> None:
        trace = self._traces.get(e.request)
        if trace is None:
            return
        self._ended.append((e.request, trace))
        if len(self._ended) > MAX_ENDED:
            request, trace = self._ended.popleft()
            if self._traces.get(request) is trace:
                del self._traces[request]

    def _join(self, e: Keyframe) -> None:
        """Learn the live requests from a keyframe, which holds no traceparent, unless they are known already."""
        if self._ids is not None:
            return
        self._ids = SpanIds(e.started.run_id)
        known, self._traces = self._traces, {}
        for request, t in {each.request: each.arrived_t for each in e.sequences}.items():
            trace = known.get(request)
            if trace is None or trace[0] != t:
                trace = (t, f"{self._ids.trace_id(request, t):032x}")
            self._traces[request] = trace
