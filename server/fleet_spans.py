"""The router's spans: one for each request that a fleet serves, the parent of the trace in the replica that served it.

Sent over OTLP, where the settings name a receiver, in a thread of their own. Knows no HTTP.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from .. import __version__
from ..telemetry.clock import monotonic_ns, wall_offset_ns
from ..telemetry.cursor import Place
from ..telemetry.endpoint import environment_headers, parse_endpoint
from ..telemetry.exporter_otlp import otlp_sink
from ..telemetry.exporter_queue import Batch, SpanCounts, SpanQueue
from ..telemetry.exporter_sender import Backoff, Sender, Sink
from ..telemetry.reader import Position
from ..telemetry.span_ids import TraceParent, parse_traceparent
from .fleet_messages import Route

CAPACITY = 1 << 14  # spans that wait for a receiver; newer ones are dropped beyond
MAX_BATCH = 256
BATCH_S = 0.2
DRAIN_S = 2.0
TIMEOUT_S = 10.0
NAME = "route"
_NOWHERE = Place(Position(0, 0), Position(0, 0))


@dataclass
class RouterSpan:
    """A request's way through the router.

    Attributes:
        trace_id: of the caller's trace, or a new one.
        span_id: of this span.
        parent: the caller's span, or None.
        start_t: clock nanoseconds.
        attributes: so far.
        error: what went wrong; "": nothing.
        tries: replica -> why it was left again, in order.
    """

    trace_id: int
    span_id: int
    parent: TraceParent | None
    start_t: int
    attributes: dict[str, str | int | float] = field(default_factory=dict)
    error: str = ""
    tries: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def begin(cls, traceparent: str | None, request: str) -> RouterSpan:
        """A span that begins now, under the caller's if that is valid."""
        parent = parse_traceparent(traceparent)
        trace_id = parent.trace_id if parent is not None else secrets.randbits(128) or 1
        span = cls(trace_id, secrets.randbits(64) or 1, parent, monotonic_ns())
        span.attributes["nanolens.request"] = request
        return span

    @property
    def traceparent(self) -> str:
        """What makes this span the parent of the replica's."""
        sampled = self.parent is None or self.parent.sampled
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{'01' if sampled else '00'}"

    def note(self, route: Route) -> None:
        """Note where the request went, and why."""
        self.attributes |= {
            "nanolens.replica": route.replica,
            "nanolens.route.reason": route.reason,
            "nanolens.route.matched_blocks": route.matched.get(route.replica, 0),
            "nanolens.route.best_matched_blocks": route.best_matched,
            "nanolens.route.prompt_blocks": route.blocks,
            "nanolens.route.known_ms": route.known_ms,
            "nanolens.route.loads": " ".join(f"{name}={load}" for name, load in sorted(route.loads.items())),
        }

    def left(self, replica: str, why: str) -> None:
        """Note that a replica did not answer it."""
        self.tries.append((replica, why))
        self.attributes["nanolens.route.retries"] = len(self.tries)
        self.attributes["nanolens.route.left"] = "; ".join(f"{name}: {reason}" for name, reason in self.tries)[:1000]


class RouterSpans:
    """Where the spans go.

    Args:
        model: as it is served.
        sink: a receiver; None: nowhere.

    Attributes:
        counts: what became of them.
    """

    def __init__(self, model: str, sink: Sink | None) -> None:
        self.counts = SpanCounts()
        self._sink = sink
        self._waiting: list[ReadableSpan] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._offset_ns = wall_offset_ns()
        self._scope = InstrumentationScope("nanolens", __version__)
        self._resource = Resource(
            {
                "service.name": os.environ.get("OTEL_SERVICE_NAME") or "nanolens-router",
                "service.version": __version__, "service.instance.id": secrets.token_hex(8),
                "gen_ai.request.model": model,
            }
        )  # fmt: skip
        self._queue = SpanQueue(CAPACITY)
        self._thread: threading.Thread | None = None
        if sink is not None:
            self._sender = Sender(self._queue, sink, self.counts, lambda batch: None, Backoff(), TIMEOUT_S)
            self._thread = threading.Thread(target=self._run, args=(sink.encode,), name="nanolens-router", daemon=True)
            self._thread.start()

    @classmethod
    def to(cls, model: str, url: str | None) -> RouterSpans:
        """To an OTLP receiver, with the headers of the environment.

        Raises:
            InvalidConfig: a header that is none, or gRPC without its package.
        """
        return cls(model, None if url is None else otlp_sink(parse_endpoint(url), environment_headers(os.environ)))

    def end(self, span: RouterSpan) -> None:
        """A span ends now; where its caller did not sample the trace it is dropped, as the replica's are."""
        if self._sink is None or (span.parent is not None and not span.parent.sampled):
            return
        finished = self._readable(span)
        with self._lock:
            self.counts.recorded += 1
            if len(self._waiting) < CAPACITY:
                self._waiting.append(finished)
            else:
                self.counts.dropped += 1
        self._wake.set()

    def close(self) -> None:
        """Send what waits, for at most DRAIN_S."""
        if self._thread is None or self._sink is None:
            return
        self._closing = True
        self._wake.set()
        self._thread.join(DRAIN_S)
        self._sender.finish(DRAIN_S)
        self._sink.close()

    def _run(self, encode: Callable[[list[ReadableSpan]], bytes]) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if not self._closing:
                threading.Event().wait(BATCH_S)  # more may come
            while True:
                with self._lock:
                    spans, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
                if not spans:
                    break
                if not self._queue.put(Batch(encode(spans), len(spans), _NOWHERE), may_wait=lambda: False):
                    self.counts.dropped += len(spans)
            if self._closing:
                return

    def _readable(self, span: RouterSpan) -> ReadableSpan:
        sampled = TraceFlags(TraceFlags.SAMPLED)
        above = span.parent
        parent = None if above is None else SpanContext(span.trace_id, above.span_id, True, sampled)
        return ReadableSpan(
            name=NAME,
            context=SpanContext(span.trace_id, span.span_id, False, sampled),
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=span.start_t + self._offset_ns,
            end_time=monotonic_ns() + self._offset_ns,
            instrumentation_scope=self._scope,
        )
