"""What the latency model needs of a journal, collected in one pass: steps, and where each sequence stood when.

Knows the meaning of events as telemetry/events.py states it, and nothing of how time is divided. A decode step costs
the same however many sequences decode.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from ..errors import AuditError
from .events import (
    AnyEvent,
    EngineStarted,
    JournalDropped,
    Keyframe,
    RequestArrived,
    SequencePreempted,
    SequenceSnapshot,
    StatusChanged,
    StepFinished,
    StepPlanned,
    StreamStalled,
)
from .odd_steps import OddSteps
from .state import EngineState
from .step_costs import pairs_of
from .time_order import MOST_T, TimeOrder
from .track_events import TRACK_HANDLERS, join_pause
from .tracks import FailedStep, RequestTrack, Rest, Run, StepTable, Track, part_of_wait

__all__ = ["LatencyTracks", "RequestTrack", "Rest", "Run", "StepTable", "Track"]


class LatencyTracks:
    """The pass over the journal.

    Attributes:
        state: the state projection, which this one runs along.
        tracks: sequence -> its track, in order of arrival; those that have ended too.
        requests: request -> its track. An id that was used again names the last one.
        all_requests: all of them, in order of arrival.
        owners: sequence -> its request.
        steps: the finished ones.
        chunks: step, sequence, tokens, pairs; chunk after chunk.
        skews: step, slowest rank, nanoseconds beyond the median one; of each step that several ranks tell of.
        odd: steps that may take longer than their work.
        pauses: [begin, end (0: still), cause] of the times in which the engine was paused.
        predicates: number of a breakpoint that was hit -> its predicate.
        head: who stands there now; -1: nobody.
        heads: (t, sequence or -1, reason): who stands at the head of the queue from then on, and why it waits.
        begin_t: where the journal begins.
        unread_t: when the first step was planned that nobody has read yet; 0: none is.
        planned: step -> (t, its work), of those that were neither read nor failed. `failed`: the last one that did.
        t: the newest event's time.
        order: what had to be settled of the times.
    """

    def __init__(self) -> None:
        self.state = EngineState()
        self.tracks: dict[int, Track] = {}
        self.requests: dict[str, RequestTrack] = {}
        self.all_requests: list[RequestTrack] = []
        self.owners: dict[int, RequestTrack] = {}
        self.steps = StepTable()
        self.chunks: array[int] = array("q")
        self.skews: array[int] = array("q")
        self.odd = OddSteps()
        self.pauses: list[tuple[int, int, str]] = []
        self.predicates: dict[int, str] = {}
        self.heads: list[tuple[int, int, str]] = []
        self.begin_t = 0
        self.unread_t = 0
        self.failed: FailedStep | None = None
        self.t = 0
        self.order = TimeOrder()
        self._begun = self._joined = False
        self.head = -1
        self._lost_t = 0  # since when events are missing
        self.planned: dict[int, tuple[int, int, int, int, int]] = {}
        self._context = 0  # tokens that those who decode have computed

    def apply(self, event: AnyEvent) -> None:
        """Take one event.

        Raises:
            AuditError: it does not fit those before it.
        """
        kind = event.__class__
        state = self.state
        t = getattr(event, "t", self.t)
        if not self.t <= t < MOST_T and kind is not StreamStalled:
            event, t = self.order.settle(event, t, self.t), self.t
        if not self._joined:
            state.apply(event)
            if state.joined:
                self._joined = True
                self.t = max(self.t, state.t)
                self._join(event)
            return
        if kind is EngineStarted and self.tracks:
            raise AuditError("engine.started amid the run")
        if t > self.t:
            self.t = t
        before = _BEFORE.get(kind)
        if before is not None:
            before(self, event)
        state.apply(event)
        after = _AFTER.get(kind)
        if after is not None:
            after(self, event)
        elif kind is JournalDropped:
            self.lose()

    def lose(self) -> None:
        """Say that events were missed: what is under way is not known until the next keyframe."""
        self.state.lose()
        if not self._joined:
            return
        self._joined, self._lost_t = False, self.t
        for track in self.tracks.values():
            if not track.end_t:
                self._stop_decoding(track, self.state.step)
                track.stop(self._lost_t)
                track.status = ""
        self.planned.clear()
        self._context = 0
        self.set_head(self._lost_t, -1, "")

    def finish(self, t: int | None = None) -> None:
        """Close, as of `t`, what is still under way; nothing can be applied afterwards."""
        self.t = end = max(self.t, t or 0)
        last = self.steps.last_step
        self.unread_t = min((work[0] for step, work in self.planned.items() if step > last), default=0)
        for track in self.tracks.values():
            if track.end_t:
                continue
            if self._joined:
                self._read_tokens(track)
                self._stop_decoding(track, self.state.step)
                track.stop(end)
            elif end > self._lost_t:
                track.gaps.append((self._lost_t, end))
        if self.pauses and not self.pauses[-1][1]:
            begin, _, cause = self.pauses[-1]
            self.pauses[-1] = (begin, end, cause)

    # Joining

    def _join(self, event: AnyEvent) -> None:
        if not self._begun:
            self._begun, self.begin_t = True, self.state.t
        if isinstance(event, Keyframe):
            join_pause(self, event.engine_paused, self._lost_t)
            self._join_sequences(event, self.t)

    def _join_sequences(self, event: Keyframe, t: int) -> None:
        here = set()
        for s in event.sequences:
            here.add(s.seq)
            track = self.tracks.get(s.seq)
            if track is None:
                track = self._adopt(s, t)
            else:
                track.gaps.append((self._lost_t, t))
            track.first_token_t, track.last_token_t = s.first_token_t, s.last_token_t
            track.num_output_tokens = s.num_output_tokens
            held = sum(1 for entry in s.block_table if entry >= 0)
            track.hold(t, held - track.num_blocks)
            track.high = max(track.high, s.num_computed_tokens)
            self._enter(track, s.status, s.reason, t, s.wait_reason)
        for track in self.tracks.values():
            if not track.end_t and track.seq not in here:
                track.end_t, track.is_end_lost = t, True  # it ended in the gap
                track.gaps.append((self._lost_t, t))
                track.hold(self._lost_t, -track.num_blocks)
        for seq in self.state.steps.decoding:
            self._start_decoding(self.tracks[seq], self.state.step + 1)

    def _adopt(self, s: SequenceSnapshot, t: int) -> Track:
        """A sequence that the journal tells of from here on."""
        track = self.tracks[s.seq] = Track(s.seq, s.request, s.arrived_t, t, s.num_prompt_tokens, s.priority)
        request = self.requests.get(s.request)
        if request is None or request.arrived_t != s.arrived_t:
            request = RequestTrack(s.request, s.arrived_t, [], s.num_prompt_tokens, s.priority, s.max_tokens)
            self._ask(request)
        request.seqs.append(s.seq)
        self.owners[s.seq] = request
        return track

    def _ask(self, request: RequestTrack) -> None:
        before = self.requests.get(request.request)
        if before is not None:
            request.use = before.use + 1
        self.requests[request.request] = request
        self.all_requests.append(request)

    def _enter(self, track: Track, status: str, reason: str, t: int, wait: str = "") -> None:
        track.status, track.reason = status, reason
        if status == "RUNNING":
            track.run(t, self.steps.last_step)
        elif status == "PAUSED":
            track.rest("paused", t, reason, reason)
        elif status == "WAITING":
            track.rest(part_of_wait(wait, reason), t, wait, reason)
        else:
            track.end_t = t

    # Decodes

    def _start_decoding(self, track: Track, step: int) -> None:
        if track.decode_from is None:
            computed = self.state.num_computed_tokens(self.state.sequences[track.seq])
            track.decode_from = (step, computed + 1)
            self._context += computed

    def _stop_decoding(self, track: Track, last: int, computed: int | None = None) -> None:
        """End its decodes with step `last`; `computed`: its tokens, where the state does not hold them any more."""
        if track.decode_from is None:
            return
        first, keys = track.decode_from
        track.decode_from = None
        if computed is None:
            computed = self.state.num_computed_tokens(self.state.sequences[track.seq])
        self._context -= computed
        if last >= first:
            track.runs[-1].decodes.append((first, last, keys))

    def _read_tokens(self, track: Track) -> None:
        """Take over what the state knows of its tokens."""
        seq = self.state.sequences.get(track.seq)
        if seq is not None:
            seq = self.state.steps.settle(seq)
            track.first_token_t, track.last_token_t = seq.first_token_t, seq.last_token_t
            track.num_output_tokens = seq.num_output_tokens
            track.high = max(track.high, seq.num_computed_tokens)

    def set_head(self, t: int, seq: int, reason: str) -> None:
        """Note who stands at the head of the queue."""
        self.head = seq
        self.heads.append((t, seq, reason))

    # Events, before the state has them

    def _before_status(self, e: StatusChanged) -> None:
        track = self.tracks.get(e.seq)
        if track is None or not e.old:
            return
        self._read_tokens(track)
        if e.old == "RUNNING":
            self._stop_decoding(track, self.state.step)
        elif e.seq == self.head:
            self.set_head(e.t, -1, "")
        track.stop(e.t)

    def _before_preempted(self, e: SequencePreempted) -> None:
        track = self.tracks[e.seq]
        self._read_tokens(track)
        self._stop_decoding(track, self.state.step)
        track.preemptions.append(e)

    def _before_planned(self, e: StepPlanned) -> None:
        for seq in e.idle:
            self._stop_decoding(self.tracks[seq], self.state.step)

    # and after

    def _arrived(self, e: RequestArrived) -> None:
        prompt = e.num_prompt_tokens
        request = RequestTrack(e.request, e.t, list(e.seqs), prompt, e.priority, e.max_tokens)
        request.traceparent, request.route = e.traceparent, e.route
        self.odd.arrived(e)
        self._ask(request)
        for seq in e.seqs:
            self.owners[seq] = request
            track = self.tracks[seq] = Track(seq, e.request, e.t, e.t, prompt, e.priority)
            self._enter(track, "WAITING", "arrived", e.t)

    def _status(self, e: StatusChanged) -> None:
        if e.old:  # else it waits since its request arrived
            self._enter(self.tracks[e.seq], e.new, e.reason, e.t)

    def _planned_(self, e: StepPlanned) -> None:
        tokens = pairs = 0
        decoding = self.state.steps.decoding
        for seq, start, count in e.chunks:
            track, own = self.tracks[seq], pairs_of(start, count)
            tokens += count
            pairs += own
            self.chunks.extend((e.step, seq, count, own))
            track.runs[-1].chunks.append((e.step, start, count, min(max(track.high - start, 0), count)))
            track.high = max(track.high, start + count)
        self.odd.planned(e)
        if e.decodes:
            self._context += e.decodes
        self.planned[e.step] = (e.t, tokens, pairs, e.decodes, self._context if e.decodes else 0)
        for seq, _, _ in e.chunks:
            if seq in decoding:
                self._start_decoding(self.tracks[seq], e.step + 1)
        for seq in e.idle:
            if seq in decoding:
                self._start_decoding(self.tracks[seq], e.step + 1)

    def _step_finished(self, e: StepFinished) -> None:
        work = self.planned.pop(e.step, None)
        self.steps.add(e, work[1:] if work else None)
        if len(self.planned) > _MOST_IN_FLIGHT:
            self.planned = {step: work for step, work in self.planned.items() if step > e.step}

_MOST_IN_FLIGHT = 8


_BEFORE: dict[type, Callable[[LatencyTracks, Any], None]] = {
    StatusChanged: LatencyTracks._before_status,
    SequencePreempted: LatencyTracks._before_preempted,
    StepPlanned: LatencyTracks._before_planned,
}
_AFTER: dict[type, Callable[[LatencyTracks, Any], None]] = {
    **TRACK_HANDLERS,
    RequestArrived: LatencyTracks._arrived,
    StatusChanged: LatencyTracks._status,
    StepPlanned: LatencyTracks._planned_,
    StepFinished: LatencyTracks._step_finished,
}
