"""What the latency model needs of a journal, collected in one pass: steps, and where each sequence stood when.

Knows the meaning of events as telemetry/events.py states it, and nothing of how time is divided. A decode step costs
the same however many sequences decode.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .events import (
    AnyEvent,
    BlocksAllocated,
    BlocksFreed,
    BlocksSwapped,
    EngineContinued,
    EnginePaused,
    EngineStarted,
    JournalDropped,
    Keyframe,
    PrefixMatched,
    RequestArrived,
    RequestFinished,
    SequencePreempted,
    StatusChanged,
    StepFinished,
    StepPlanned,
    StreamStalled,
    SwapFinished,
    WaitReasonChanged,
)
from .state import EngineState
from .step_costs import pairs_of

FINAL = ("FINISHED", "ERROR")


@dataclass(slots=True)
class Rest:
    """A time in which a sequence did not run: WAITING for one reason, or PAUSED."""

    part: str
    begin_t: int
    end_t: int
    reason: str  # of the wait or the pause
    after: str  # reason of the transition that began it


@dataclass(slots=True)
class Run:
    """A time in which a sequence was RUNNING.

    Attributes:
        chunks: (step, first position, tokens, how many of them it had computed before).
        decodes: (first step, last step, keys that the first one's query attends to).
    """

    begin_t: int
    end_t: int = 0
    chunks: list[tuple[int, int, int, int]] = field(default_factory=list)
    decodes: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Track:
    """One sequence. Times are clock nanoseconds.

    Attributes:
        known_t: from when on the journal tells of it: its arrival, or the keyframe that it was joined at.
        gaps: (begin, end) of what the journal lost.
        blocks: pairs of a time and the device blocks held from then on.
        end_t: when it ended; 0 while it lives.
    """

    seq: int
    request: str
    arrived_t: int
    known_t: int
    num_prompt_tokens: int
    priority: int = 0
    rests: list[Rest] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    preemptions: list[SequencePreempted] = field(default_factory=list)
    swaps: list[SwapFinished] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    blocks: array[int] = field(default_factory=lambda: array("q"))
    num_blocks: int = 0
    matched: PrefixMatched | None = None
    status: str = ""
    reason: str = ""
    end_t: int = 0
    first_token_t: int = 0
    last_token_t: int = 0
    num_output_tokens: int = 0
    high: int = 0  # most tokens that it ever had computed
    decode_from: tuple[int, int] | None = None  # (first step, keys) of the decodes that are going on

    def rest(self, part: str, t: int, reason: str, after: str) -> None:
        """Begin a time in which it does not run."""
        self.rests.append(Rest(part, t, 0, reason, after))

    def stop(self, t: int) -> None:
        """End what is going on."""
        last = self.runs[-1] if self.status == "RUNNING" and self.runs else self.rests[-1] if self.rests else None
        if last is not None and not last.end_t:
            last.end_t = t

    def hold(self, t: int, change: int) -> None:
        """Count device blocks that it took (> 0) or gave up."""
        self.num_blocks += change
        self.blocks.append(t)
        self.blocks.append(self.num_blocks)


@dataclass(slots=True)
class RequestTrack:
    """One request. `stalls` are (end, nanoseconds) of times in which its reader held its stream up."""

    request: str
    arrived_t: int
    seqs: list[int]
    num_prompt_tokens: int
    priority: int
    max_tokens: int = 0
    finished: RequestFinished | None = None
    stalls: list[tuple[int, int]] = field(default_factory=list)


class StepTable:
    """Finished steps in columns, in the order in which they were read. Durations are nanoseconds."""

    COLUMNS = (
        "number", "end_t", "device_ns", "plan_ns", "launch_ns", "collect_ns", "wait_ns",
        "prefill_tokens", "prefill_pairs", "decodes", "decode_context",
    )  # fmt: skip

    def __init__(self) -> None:
        self.rows: array[int] = array("q")  # row after row

    def add(self, e: StepFinished, work: tuple[int, int, int, int]) -> None:
        """Append a step, given its prefill tokens, prefill pairs, decodes and decode context."""
        self.rows.extend(
            (e.step, e.t, e.device_ns, e.plan_ns, e.launch_ns, e.collect_ns, e.wait_ns, *work)
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.rows) // len(self.COLUMNS)


class LatencyTracks:
    """The pass over the journal.

    Attributes:
        state: the state projection, which this one runs along.
        tracks: sequence -> its track, in order of arrival; those that have ended too.
        requests: request -> its track. An id that was used again names the last one.
        steps: the finished ones.
        chunks: step, sequence, tokens, pairs; chunk after chunk.
        pauses: [begin, end (0: still), cause] of the times in which the engine was paused.
        heads: (t, sequence or -1, reason): who stands at the head of the queue from then on, and why it waits.
        begin_t: where the journal begins.
        t: the newest event's time.
    """

    def __init__(self) -> None:
        self.state = EngineState()
        self.tracks: dict[int, Track] = {}
        self.requests: dict[str, RequestTrack] = {}
        self.steps = StepTable()
        self.chunks: array[int] = array("q")
        self.pauses: list[tuple[int, int, str]] = []
        self.heads: list[tuple[int, int, str]] = []
        self.begin_t = 0
        self.t = 0
        self._joined = False
        self._head = -1
        self._lost_t = 0  # since when events are missing
        self._planned: dict[int, tuple[int, int, int, int]] = {}
        self._context = 0  # tokens that those who decode have computed
        self._swapping: dict[int, SwapFinished] = {}

    def apply(self, event: AnyEvent) -> None:
        """Take one event.

        Raises:
            AuditError: it does not fit those before it.
        """
        kind = event.__class__
        state = self.state
        if not self._joined:
            state.apply(event)
            if state.joined:
                self._joined = True
                self._join(event)
            return
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
        self._joined, self._lost_t = False, self.state.t
        for track in self.tracks.values():
            if not track.end_t:
                self._stop_decoding(track, self.state.step)
                track.stop(self._lost_t)
                track.status = ""
        self._planned.clear()
        self._context = 0
        self._set_head(self._lost_t, -1, "")

    def finish(self, t: int | None = None) -> None:
        """Close, as of `t`, what is still under way; nothing can be applied afterwards."""
        end = max(self.state.t, t or 0)
        self.t = end
        for track in self.tracks.values():
            if not track.end_t:
                self._read_tokens(track)
                self._stop_decoding(track, self.state.step)
                track.stop(end)
        if self.pauses and not self.pauses[-1][1]:
            begin, _, cause = self.pauses[-1]
            self.pauses[-1] = (begin, end, cause)

    # Joining

    def _join(self, event: AnyEvent) -> None:
        self.t = t = self.state.t
        if isinstance(event, EngineStarted):
            self.tracks.clear()
            self.requests.clear()
            self.begin_t = t
            return
        if not isinstance(event, Keyframe):
            return
        if not self.begin_t:
            self.begin_t = t
        if event.engine_paused and not (self.pauses and not self.pauses[-1][1]):
            self.pauses.append((t, 0, event.engine_paused))
        here = set()
        for s in event.sequences:
            here.add(s.seq)
            track = self.tracks.get(s.seq)
            if track is None:
                track = Track(s.seq, s.request, s.arrived_t, t, s.num_prompt_tokens, s.priority)
                self.tracks[s.seq] = track
                request = self.requests.setdefault(
                    s.request, RequestTrack(s.request, s.arrived_t, [], s.num_prompt_tokens, s.priority, s.max_tokens)
                )
                if s.seq not in request.seqs:
                    request.seqs.append(s.seq)
            elif self._lost_t:
                track.gaps.append((self._lost_t, t))
            track.first_token_t, track.last_token_t = s.first_token_t, s.last_token_t
            track.num_output_tokens = s.num_output_tokens
            held = sum(1 for entry in s.block_table if entry >= 0)
            track.hold(t, held - track.num_blocks)
            track.high = max(track.high, s.num_computed_tokens)
            self._enter(track, s.status, s.reason, t, s.wait_reason)
        for track in self.tracks.values():
            if self._lost_t and not track.end_t and track.seq not in here:
                track.end_t = self._lost_t  # it ended in the gap
                track.hold(self._lost_t, -track.num_blocks)
        self._lost_t = 0
        for seq in self.state.steps.decoding:
            self._start_decoding(self.tracks[seq], self.state.step + 1)

    def _enter(self, track: Track, status: str, reason: str, t: int, wait: str = "") -> None:
        track.status, track.reason = status, reason
        if status == "RUNNING":
            track.runs.append(Run(t))
        elif status == "PAUSED":
            track.rest("paused", t, reason, reason)
        elif status == "WAITING":
            track.rest(_part_of_wait(wait, reason), t, wait, reason)
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

    def _set_head(self, t: int, seq: int, reason: str) -> None:
        self._head = seq
        self.heads.append((t, seq, reason))

    # Events, before the state has them

    def _before_status(self, e: StatusChanged) -> None:
        track = self.tracks.get(e.seq)
        if track is None or not e.old:
            return
        self._read_tokens(track)
        if e.old == "RUNNING":
            self._stop_decoding(track, self.state.step)
        elif e.seq == self._head:
            self._set_head(e.t, -1, "")
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
        self.requests[e.request] = RequestTrack(e.request, e.t, list(e.seqs), prompt, e.priority, e.max_tokens)
        for seq in e.seqs:
            self.tracks[seq] = Track(seq, e.request, e.t, e.t, prompt, e.priority)

    def _request_finished(self, e: RequestFinished) -> None:
        request = self.requests.get(e.request)
        if request is not None:
            request.finished = e

    def _status(self, e: StatusChanged) -> None:
        # The first rest begins with the arrival itself, so that no nanosecond is lost between the two events.
        track = self.tracks[e.seq]
        self._enter(track, e.new, e.reason, e.t if e.old else track.known_t)

    def _waits(self, e: WaitReasonChanged) -> None:
        track = self.tracks[e.seq]
        if track.status == "WAITING":
            track.stop(e.t)
            track.rest(_part_of_wait(e.reason, track.reason), e.t, e.reason, track.reason)
        if e.reason in _HEAD_REASONS:
            self._set_head(e.t, e.seq, e.reason)
        elif e.seq == self._head:
            self._set_head(e.t, -1, "")

    def _matched(self, e: PrefixMatched) -> None:
        if not e.recompute:
            self.tracks[e.seq].matched = e

    def _allocated(self, e: BlocksAllocated) -> None:
        self.tracks[e.seq].hold(e.t, len(e.cached) + len(e.new))

    def _freed(self, e: BlocksFreed) -> None:
        self.tracks[e.seq].hold(e.t, -sum(1 for entry in e.blocks if entry >= 0))

    def _swapped(self, e: BlocksSwapped) -> None:
        came = sum(1 for entry in e.targets if entry >= 0) - sum(1 for entry in e.sources if entry >= 0)
        self.tracks[e.seq].hold(e.t, came)

    def _swap_finished(self, e: SwapFinished) -> None:
        track = self.tracks.get(e.seq)
        if track is not None:
            track.swaps.append(e)

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
        self._planned[e.step] = (tokens, pairs, e.decodes, self._context + e.decodes if e.decodes else 0)
        if e.decodes:
            self._context += e.decodes
        for seq, _, _ in e.chunks:
            if seq in decoding:
                self._start_decoding(self.tracks[seq], e.step + 1)
        for seq in e.idle:
            if seq in decoding:
                self._start_decoding(self.tracks[seq], e.step + 1)

    def _step_finished(self, e: StepFinished) -> None:
        work = self._planned.pop(e.step, None)
        if work is not None:
            self.steps.add(e, work)
        if len(self._planned) > _MOST_IN_FLIGHT:
            self._planned = {step: work for step, work in self._planned.items() if step > e.step}

    def _engine_paused(self, e: EnginePaused) -> None:
        if not self.pauses or self.pauses[-1][1]:
            self.pauses.append((e.t, 0, e.cause))

    def _engine_continued(self, e: EngineContinued) -> None:
        if self.pauses and not self.pauses[-1][1]:
            begin, _, cause = self.pauses[-1]
            self.pauses[-1] = (begin, e.t, cause)

    def _stalled(self, e: StreamStalled) -> None:
        request = self.requests.get(e.request)
        if request is not None:
            request.stalls.append((e.t, e.stalled_ns))


_MOST_IN_FLIGHT = 8
_HEAD_REASONS = frozenset({"no_blocks", "sequence_cap", "token_budget", "engine_paused"})


def _part_of_wait(wait: str, after: str) -> str:
    """The part of the latency model that a wait is, given its reason and that of the transition which began it."""
    if wait == "swap_in":
        return "swap"
    if wait == "engine_paused":
        return "engine_paused"
    if after == "preempted":
        return "preempted"
    return "queue_" + (wait or "next_step")


_BEFORE: dict[type, Callable[[LatencyTracks, Any], None]] = {
    StatusChanged: LatencyTracks._before_status,
    SequencePreempted: LatencyTracks._before_preempted,
    StepPlanned: LatencyTracks._before_planned,
}
_AFTER: dict[type, Callable[[LatencyTracks, Any], None]] = {
    RequestArrived: LatencyTracks._arrived,
    RequestFinished: LatencyTracks._request_finished,
    StatusChanged: LatencyTracks._status,
    WaitReasonChanged: LatencyTracks._waits,
    PrefixMatched: LatencyTracks._matched,
    BlocksAllocated: LatencyTracks._allocated,
    BlocksFreed: LatencyTracks._freed,
    BlocksSwapped: LatencyTracks._swapped,
    SwapFinished: LatencyTracks._swap_finished,
    StepPlanned: LatencyTracks._planned_,
    StepFinished: LatencyTracks._step_finished,
    EnginePaused: LatencyTracks._engine_paused,
    EngineContinued: LatencyTracks._engine_continued,
    StreamStalled: LatencyTracks._stalled,
}
