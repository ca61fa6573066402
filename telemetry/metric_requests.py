"""How long requests and their parts took, folded from events into histograms. Knows no blocks.

A request of n > 1 is observed once: its times are those of its sequence that ends last, so that the parts add up to
the whole; its first token is the first of any. Intervals between tokens are each sequence's own.
"""

from __future__ import annotations

from .events import AnyEvent, EngineStarted, Keyframe, RequestFinished, StepFinished
from .life import Life
from .lives import Lives
from .metric_families import PREFIX
from .metric_histogram import Histograms, TraceOf
from .state import EngineState

PARTS = ("queue", "prefill", "decode", "preempted", "paused")
_SERVED = ("stop", "length")  # OpenTelemetry's conventions time the tokens of successful responses


class RequestTimes:
    """Times of requests. A step costs O(sequences that get a token), and one observation for each distinct interval.

    Only requests that were seen from their arrival are observed as a whole; of others, the intervals between tokens and
    a first token that is still to come.

    Args:
        histograms: where to observe.
        state: the state before each event that `apply` is given; it is only read.
        trace_of: the trace id of a request, or "".
    """

    def __init__(self, histograms: Histograms, state: EngineState, trace_of: TraceOf) -> None:
        self._of, self._state, self._trace_of = histograms.of, state, trace_of
        self.lives = Lives()
        self._first_ns: dict[str, int] = {}  # request with a first token -> how long that took
        self._ttft = self._of(PREFIX + "time_to_first_token_seconds")
        self._intervals = self._of(PREFIX + "inter_token_seconds")
        self._whole = self._of(PREFIX + "request_seconds")
        self._parts = [self._of(f"{PREFIX}{part}_seconds") for part in PARTS]
        self._preemptions = self._of(PREFIX + "request_preemptions")

    def apply(self, event: AnyEvent) -> None:
        """Take an event before the state does."""
        joined = self._state.joined
        self.lives.apply(event)
        if isinstance(event, StepFinished):
            if joined:
                self._tokens(event)
        elif isinstance(event, RequestFinished):
            if joined:
                self._finished(event)
        elif isinstance(event, Keyframe):
            if not joined:
                self._join(event)
        elif isinstance(event, EngineStarted):
            self._first_ns.clear()

    def lose(self) -> None:
        """Say that events were missed."""
        self.lives.lose()

    def _wall_ns(self, t: int) -> int:
        started = self._state.started
        return t + started.wall_offset_ns if started is not None else 0

    def _first(self, request: str, t: int) -> None:
        """A request's first token was read at `t`; it had none before."""
        arrived = self._state.requests.get(request)
        if arrived is not None:
            took = self._first_ns[request] = t - arrived.arrived_t
            self._ttft.observe(took, 1, self._trace_of(request), self._wall_ns(t))

    def _tokens(self, e: StepFinished) -> None:
        for life in self.lives.sampled:
            if life.first_token_t == e.t and life.request not in self._first_ns:
                self._first(life.request, e.t)
        for interval, (count, request) in self.lives.intervals.items():
            self._intervals.observe(interval, count, self._trace_of(request), self._wall_ns(e.t))

    def _finished(self, e: RequestFinished) -> None:
        request = self._state.requests.get(e.request)
        first_ns = self._first_ns.pop(e.request, None)
        if request is None:
            return
        known = [self.lives.lives[seq] for seq in request.seqs if seq in self.lives.lives]
        self.lives.forget(request.seqs)
        if not known or any(life.since_t != request.arrived_t for life in known):
            return  # it was under way when this reader joined
        last = max(known, key=lambda life: life.until_t)
        self._preemptions.observe(sum(life.num_preemptions for life in known))
        self._observe(e, last, first_ns)

    def _observe(self, e: RequestFinished, last: Life, first_ns: int | None) -> None:
        trace, wall_ns = self._trace_of(e.request), self._wall_ns(last.until_t)
        spent = (last.queued_ns, last.prefill_ns, last.decode_ns, last.preempted_ns, last.paused_ns)
        for histogram, ns in zip(self._parts, spent, strict=True):
            histogram.observe(ns, 1, trace, wall_ns)
        self._whole.observe(last.lifetime_ns, 1, trace, wall_ns)
        self._of("gen_ai_server_request_duration_seconds").observe(last.lifetime_ns, 1, trace, wall_ns)
        if e.finish_reason not in _SERVED:
            return
        if first_ns is not None:
            self._of("gen_ai_server_time_to_first_token_seconds").observe(first_ns, 1, trace, wall_ns)
        if last.num_intervals:
            mean_ns = round(last.interval_ns / last.num_intervals)
            self._of("gen_ai_server_time_per_output_token_seconds").observe(mean_ns, 1, trace, wall_ns)

    def _join(self, e: Keyframe) -> None:
        """Take over what lives. Requests known from before a gap may have got their first token in it."""
        live = {each.seq for each in e.sequences}
        self.lives.forget([seq for seq in self.lives.lives if seq not in live])
        first_t: dict[str, int] = {}
        for each in e.sequences:
            if each.first_token_t:
                first_t[each.request] = min(each.first_token_t, first_t.get(each.request, each.first_token_t))
        arrived = {each.request: each.arrived_t for each in e.sequences}
        for request, t in first_t.items():
            before = self._state.requests.get(request)
            if before is not None and before.arrived_t == arrived[request] and request not in self._first_ns:
                self._first(request, t)
        self._first_ns = {
            request: self._first_ns.get(request, t - arrived[request]) for request, t in first_t.items()
        }
