"""The `spans` projection: a trace for each request, with a span for each transition, allocation, swap and preemption.

Knows the meaning of events as telemetry/events.py states it, and nothing of where finished spans go. From arrival to
end a request's spans are drafts, so memory is bounded by what is open, and by the blocks of the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from .events import (
    AnyEvent,
    CallbackFailed,
    EngineStarted,
    EngineStopped,
    JournalDropped,
    Keyframe,
    RequestArrived,
    RequestFinished,
    RequestRefused,
    SequenceSnapshot,
    StreamStalled,
)
from .lives import Lives
from .span_blocks import BLOCK_HANDLERS, join_blocks
from .span_draft import SpanMaker, Value
from .span_open import OpenRequest, OpenSequence, OpenTraces
from .span_roots import fail_root, finish_root, note_lives, open_arrived, open_joined, outcome_of, refused
from .span_states import STATE_HANDLERS
from .tail_rules import KEEP_ALL, TailRules

SCOPE = "nanolens.telemetry"
OUTCOMES = ("recorded", "kept", "dropped_by_rules", "dropped_unsampled")
_EVENT_HANDLERS = STATE_HANDLERS | BLOCK_HANDLERS


class _Run(NamedTuple):
    """What belongs to one run."""

    started: EngineStarted
    traces: OpenTraces
    maker: SpanMaker


class SpanBuilder:
    """Builds spans from the events of a journal, in their order.

    It joins at engine.started or at a keyframe. What began before a keyframe where it joined, also after a gap
    (journal.dropped), is marked `nanolens.partial`; ids are those that a reader from the start finds, except where a
    caller's trace is not known any more. Links lead into the traces of other requests: what these lead to is there once
    that request has ended, if the rules keep it.

    Args:
        resource_attributes: of all spans, over those that the run itself gives (service name, version and instance).
        rules: which traces are kept.

    Attributes:
        counts: spans of requests that have ended: recorded, and of these kept, dropped by the rules, and dropped
            because their caller did not sample the trace.
        t: time of the newest event.
    """

    def __init__(self, resource_attributes: Mapping[str, Value] | None = None, rules: TailRules = KEEP_ALL) -> None:
        self.counts: dict[str, int] = dict.fromkeys(OUTCOMES, 0)
        self.t = 0
        self._resource_attributes = dict(resource_attributes or {})
        self._rules = rules
        self._run: _Run | None = None
        self._joined = False
        self._out: list[ReadableSpan] = []
        self._handlers: dict[type, Callable[[_Run, Any], None]] = {
            EngineStopped: self._stopped,
            JournalDropped: self._dropped,
            RequestArrived: self._arrived,
            RequestRefused: self._refused,
            RequestFinished: self._finished,
            CallbackFailed: self._callback_failed,
            StreamStalled: self._stalled,
        }

    @property
    def open_requests(self) -> dict[str, int]:
        """Requests that have not ended: id -> clock time of the arrival."""
        return {} if self._run is None else {name: r.arrived_t for name, r in self._run.traces.requests.items()}

    def apply(self, event: AnyEvent) -> None:
        """Take one event; those before the first whole state are passed over."""
        if isinstance(event, EngineStarted):
            self.close("the engine ended before the request")
            self._begin(event).traces.lives.apply(event)
        elif isinstance(event, Keyframe):
            if not self._joined:
                self._join(event)
        elif self._joined and self._run is not None:
            run, kind = self._run, event.__class__
            run.traces.lives.apply(event)
            if (handler := _EVENT_HANDLERS.get(kind)) is not None:
                handler(run.traces, event)
            elif (own := self._handlers.get(kind)) is not None:
                own(run, event)
            t = getattr(event, "t", 0)
            if t > self.t:
                self.t = t

    def apply_all(self, events: Iterable[AnyEvent]) -> None:
        """Take events in their order."""
        for event in events:
            self.apply(event)

    def take(self) -> list[ReadableSpan]:
        """The spans that have come out since the last call: of each request that ended, the root first."""
        spans, self._out = self._out, []
        return spans

    def close(self, message: str = "the journal ends before the request") -> None:
        """End what is open at the time of the newest event, as failed: nothing more will come from this engine."""
        if self._run is not None:
            for request in list(self._run.traces.requests.values()):
                fail_root(request, "engine", message)
                self._end(self._run, request, self.t, "")

    # Joining

    def _begin(self, started: EngineStarted) -> _Run:
        own: dict[str, Value] = {
            "service.name": "nanolens",
            "service.version": started.version,
            "service.instance.id": started.run_id,
            "process.pid": started.pid,
        }
        resource = Resource({**own, **self._resource_attributes})
        maker = SpanMaker(resource, InstrumentationScope(SCOPE, started.version), started.wall_offset_ns)
        self._run = _Run(started, OpenTraces(started.run_id, Lives(), started.num_blocks), maker)
        self._joined, self.t = True, started.t
        return self._run

    def _join(self, e: Keyframe) -> None:
        """Begin with the state of a keyframe, or go on with it after a gap."""
        run = self._run
        if run is None or run.started.run_id != e.started.run_id:
            self.close("the engine ended before the request")
            run = self._begin(e.started)
        traces = run.traces
        traces.lives.apply(e)
        live = {(each.request, each.arrived_t) for each in e.sequences}
        for request in list(traces.requests.values()):
            request.root.attributes["nanolens.partial"] = True
            if (request.request, request.arrived_t) not in live:
                self._end(run, request, self.t, "")
        for snapshot in e.sequences:
            self._take_over(run, snapshot, e.t)
        for seq in set(traces.seqs).difference(each.seq for each in e.sequences):
            traces.cut_state(traces.seqs[seq], self.t)
        join_blocks(traces, e)
        self._joined, self.t = True, max(self.t, e.t)

    @staticmethod
    def _take_over(run: _Run, s: SequenceSnapshot, t: int) -> None:
        """Go on with a live sequence of a keyframe: in the state that is known, or in another one."""
        traces = run.traces
        request = traces.requests.get(s.request)
        if request is None:
            request = open_joined(traces.ids, run.started, s.request, s.arrived_t)
            traces.requests[s.request] = request
        seq = traces.seqs.get(s.seq)
        if seq is None:
            seq = traces.seqs[s.seq] = OpenSequence(s.seq, request, request.root)
            request.seqs.append(seq)
        seq.state.attributes["nanolens.partial"] = True
        if seq.status != s.status or seq.state.start_t != s.status_t:
            traces.enter(seq, s.status, s.status_t, {"nanolens.to": s.status, "nanolens.reason": s.reason})
            seq.state.attributes["nanolens.partial"] = True
        else:
            traces.interrupt(seq, t)
        if s.wait_reason != seq.wait:
            traces.end_wait(seq, t)
            seq.wait, seq.wait_t = s.wait_reason, t

    # Requests

    def _stopped(self, run: _Run, e: EngineStopped) -> None:
        self.t = max(self.t, e.t)
        self.close(f"the engine stopped before the request ended: {e.reason}")

    def _dropped(self, run: _Run, e: JournalDropped) -> None:
        self._joined = False

    def _arrived(self, run: _Run, e: RequestArrived) -> None:
        traces = run.traces
        request = traces.requests[e.request] = open_arrived(traces.ids, run.started, e)
        for seq_id in e.seqs:
            seq = traces.seqs[seq_id] = OpenSequence(seq_id, request, request.root)
            request.seqs.append(seq)

    def _refused(self, run: _Run, e: RequestRefused) -> None:
        self._emit(run, refused(run.traces.ids, run.started, e), "refused")

    def _finished(self, run: _Run, e: RequestFinished) -> None:
        request = run.traces.requests.get(e.request)
        if request is not None:
            finish_root(request, e)
            # request.finished follows the callbacks of the last end, which may take long: they are the caller's time.
            self._end(run, request, request.last_end(e.t), e.finish_reason)

    def _callback_failed(self, run: _Run, e: CallbackFailed) -> None:
        request = run.traces.requests.get(e.request)
        if request is not None:
            request.root.event("callback.failed", e.t, message=e.message)

    def _stalled(self, run: _Run, e: StreamStalled) -> None:
        request = run.traces.requests.get(e.request)
        if request is not None:
            seconds = e.stalled_ns / 1e9
            request.root.event("stream.stalled", e.t, stalled_seconds=seconds, pieces=e.pieces)

    def _end(self, run: _Run, request: OpenRequest, t: int, finish_reason: str) -> None:
        lives = run.traces.lives.lives
        note_lives(request, [lives[seq.seq] for seq in request.seqs if seq.seq in lives])
        run.traces.close(request, t)
        self._emit(run, request, finish_reason)

    def _emit(self, run: _Run, request: OpenRequest, finish_reason: str) -> None:
        """Give out the spans of a request that has ended, if the rules keep them."""
        count, outcome = 1 + len(request.spans), outcome_of(request, finish_reason)
        self.counts["recorded"] += count
        if self._rules.drops_as_unsampled(outcome):
            self.counts["dropped_unsampled"] += count
        elif not self._rules.keeps(outcome):
            self.counts["dropped_by_rules"] += count
        else:
            self.counts["kept"] += count
            self._out += run.maker.finish(request.trace_id, request.root, request.spans)
