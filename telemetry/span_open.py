"""Requests that have not ended and their sequences, as the span projection holds them: drafts, and what hangs on them.

Knows how drafts are named and nested, not what events mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .events import SequenceResumed
from .lives import Lives
from .span_draft import Draft, Place, Value
from .span_ids import SpanIds, TraceParent


class DecodeRun:
    """The tokens that a sequence got one a step, since it is in its state."""

    __slots__ = (
        "first_step", "last_step", "last_t", "longest_ns", "num_intervals", "shortest_ns", "since_t", "start_t",
        "tokens",
    )  # fmt: skip

    def __init__(self, step: int, start_t: int, since_t: int) -> None:
        self.first_step = self.last_step = step
        self.start_t = start_t  # when its first step was planned
        self.since_t = since_t  # the token before, which its intervals begin with; 0: unknown
        self.last_t = since_t
        self.tokens = self.num_intervals = self.shortest_ns = self.longest_ns = 0

    def take(self, step: int, t: int) -> None:
        """Count a token that was read at `t`."""
        if self.last_t:
            interval = t - self.last_t
            if not self.num_intervals or interval < self.shortest_ns:
                self.shortest_ns = interval
            if interval > self.longest_ns:
                self.longest_ns = interval
            self.num_intervals += 1
        else:
            self.since_t = t
        self.tokens += 1
        self.last_step, self.last_t = step, t

    def attributes(self) -> dict[str, Value]:
        """As its span tells them."""
        found: dict[str, Value] = {
            "nanolens.decode.first_step": self.first_step,
            "nanolens.decode.last_step": self.last_step,
            "nanolens.decode.tokens": self.tokens,
            "nanolens.decode.skipped_steps": self.last_step - self.first_step + 1 - self.tokens,
        }
        if self.num_intervals:
            mean = (self.last_t - self.since_t) / self.num_intervals
            found["nanolens.decode.interval_min_seconds"] = self.shortest_ns / 1e9
            found["nanolens.decode.interval_mean_seconds"] = mean / 1e9
            found["nanolens.decode.interval_max_seconds"] = self.longest_ns / 1e9
        return found


@dataclass(slots=True)
class OpenRequest:
    """A request that has not ended.

    Attributes:
        request: its id.
        arrived_t: when it arrived.
        trace_id: of its trace.
        root: its own span; its parent is a span of the caller, or none.
        caller: the span of the caller that it belongs under.
        seqs: its sequences, in order.
        spans: all spans under the root.
        preempts: whether a sequence of it lost its place to another, or took that of another.
    """

    request: str
    arrived_t: int
    trace_id: int
    root: Draft
    caller: TraceParent | None = None
    seqs: list[OpenSequence] = field(default_factory=list)
    spans: list[Draft] = field(default_factory=list)
    preempts: bool = False

    def last_end(self, default: int) -> int:
        """When the last of its sequences ended; `default` where one has not."""
        if not self.seqs or not all(seq.ended for seq in self.seqs):
            return default
        return max(seq.state.end_t for seq in self.seqs)


@dataclass(slots=True)
class OpenSequence:
    """A sequence of a request that has not ended.

    Attributes:
        seq: its id.
        request: the request that it belongs to.
        state: the span of the status that it is in; the parent of what happens in it.
        status: that status; "" before the first.
        ended: the public finish reason, once it has one.
        wait: why it waits, and `wait_t` since when.
        resumed: what its way out of PAUSED brings along.
        chunks: prefill chunks in flight, by their step.
        moves: moves of its blocks under way, by their number.
        run: the tokens decoded since it is in its state.
        token_t: when it got its last token since it is in its state; 0: none yet.
    """

    seq: int
    request: OpenRequest
    state: Draft
    status: str = ""
    ended: str = ""
    wait: str = ""
    wait_t: int = 0
    resumed: SequenceResumed | None = None
    chunks: dict[int, Draft] = field(default_factory=dict)
    moves: dict[int, Draft] = field(default_factory=dict)
    run: DecodeRun | None = None
    token_t: int = 0
    made: dict[str, tuple[int, int]] = field(default_factory=dict)  # kind -> the last one's time, and how many had it

    @property
    def place(self) -> Place:
        """What a link to it leads to: its present state."""
        return Place(self.seq, self.request.trace_id, self.state.span_id)


@dataclass(slots=True)
class PlannedStep:
    """A step in flight."""

    t: int  # when it was planned
    chunks: list[OpenSequence]  # those with a prefill chunk in it


class OpenTraces:
    """All that is open in a run.

    Attributes:
        ids: of the run.
        lives: where the time of each open sequence went.
        requests: the open ones by id.
        seqs: their sequences by id.
        steps: steps in flight.
        filled_by: block -> the span in which its cached content was computed; of a block whose content is lost the
            entry stays until it has new content, and nobody can share it before.
        free: free blocks on the device.
    """

    def __init__(self, run_id: str, lives: Lives, num_blocks: int) -> None:
        self.ids = SpanIds(run_id)
        self.lives = lives
        self.requests: dict[str, OpenRequest] = {}
        self.seqs: dict[int, OpenSequence] = {}
        self.steps: dict[int, PlannedStep] = {}
        self.filled_by: dict[int, Place] = {}
        self.free = num_blocks

    def draft(
        self,
        seq: OpenSequence,
        name: str,
        kind: str,
        start_t: int,
        end_t: int,
        attributes: dict[str, Value],
        named_t: int = 0,
    ) -> Draft:
        """A new span of a sequence, under its present state.

        Args:
            seq: the sequence.
            name: of the span.
            kind: what it is of; with the sequence and a time it makes the id.
            start_t: its begin, in clock nanoseconds.
            end_t: its end; -1: still open.
            attributes: its own, to which the sequence is added.
            named_t: the time in its id; 0: its begin.
        """
        t = named_t or start_t
        last_t, again = seq.made.get(kind, (-1, 0))
        again = again + 1 if last_t == t else 0
        seq.made[kind] = (t, again)
        attributes["nanolens.seq"] = seq.seq
        span_id = self.ids.span_id(seq.seq, kind, t, again)
        draft = Draft(name, span_id, seq.state.span_id, start_t, end_t, attributes)
        seq.request.spans.append(draft)
        return draft

    def enter(self, seq: OpenSequence, status: str, t: int, attributes: dict[str, Value]) -> Draft:
        """End the present state of a sequence and begin another, a span under the root."""
        self.leave(seq, t)
        seq.state = seq.request.root
        seq.status = status
        attributes["nanolens.event"] = "sequence.status"
        seq.state = self.draft(seq, status, "sequence.status", t, -1, attributes)
        return seq.state

    def leave(self, seq: OpenSequence, t: int) -> None:
        """End the present state of a sequence, and what can't outlast it."""
        if seq.state is seq.request.root:
            return
        self.end_wait(seq, t)
        self.interrupt(seq, t)
        for move in seq.moves.values():
            move.parent_id = seq.request.root.span_id
        if seq.state.end_t < 0:
            seq.state.end_t = t

    def interrupt(self, seq: OpenSequence, t: int) -> None:
        """End what is computed for a sequence; a chunk in flight is void, or not known to arrive."""
        self.end_run(seq)
        for chunk in seq.chunks.values():
            chunk.cut(t)
        seq.chunks.clear()
        seq.token_t = 0

    def cut_state(self, seq: OpenSequence, t: int) -> None:
        """End the present state of a sequence without another that follows, unless it is a final one."""
        if seq.state is not seq.request.root:
            seq.state.cut(t)
        self.leave(seq, t)

    def end_wait(self, seq: OpenSequence, t: int) -> None:
        """Add the time that a sequence waited for its present reason to its state."""
        if seq.wait:
            name = f"nanolens.wait.{seq.wait}_seconds"
            before = seq.state.attributes.get(name, 0.0)
            seq.state.attributes[name] = before + (t - seq.wait_t) / 1e9  # type: ignore[operator]
        seq.wait = ""

    def end_run(self, seq: OpenSequence) -> None:
        """Make a span of the tokens that a sequence decoded in its state, with the state's time in its id: a reader
        that joins in its midst doesn't know when it began.
        """
        run, seq.run = seq.run, None
        if run is not None:
            attributes = run.attributes()
            if "nanolens.partial" in seq.state.attributes:
                attributes["nanolens.partial"] = True
            self.draft(seq, "decode", "decode", run.start_t, run.last_t, attributes, seq.state.start_t)

    def close(self, request: OpenRequest, t: int) -> None:
        """End a request and all that is open in it."""
        for seq in request.seqs:
            self.cut_state(seq, t)
            for move in seq.moves.values():
                move.cut(t)
            self.seqs.pop(seq.seq, None)
        self.lives.forget(seq.seq for seq in request.seqs)
        del self.requests[request.request]
        request.root.end_t = t
