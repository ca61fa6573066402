"""A journal as a Perfetto trace: gives each event to the tracks that show it. Holds what lives, not what was.

Times in the trace are the journal's own, CLOCK_MONOTONIC nanoseconds; an event that is older than the one before it
stands at that one's time, so that slices nest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

from ..telemetry.events import (
    AnyEvent,
    BlockCopied,
    BlocksAllocated,
    BlocksFreed,
    BlocksSwapped,
    BreakpointHit,
    CallbackFailed,
    EngineContinued,
    EngineError,
    EnginePaused,
    EngineReady,
    EngineStarted,
    EngineStopped,
    JournalDropped,
    Keyframe,
    Mark,
    PrefixMatched,
    PriorityChanged,
    RequestArrived,
    RequestFinished,
    RequestRefused,
    SequencePreempted,
    SequenceResumed,
    StatusChanged,
    StepFinished,
    StepPlanned,
    StepRanks,
    StepRetried,
    StreamStalled,
    SwapFinished,
    WaitReasonChanged,
)
from ..telemetry.state import EngineState
from .describe import describe
from .perfetto_ranks import RankTracks
from .perfetto_sequences import SequenceTracks
from .perfetto_steps import DEVICE_RANK, Counters, StepTracks
from .perfetto_wire import TraceWriter


class PerfettoTrace:
    """Writes the trace of one run, event by event.

    It joins at engine.started or at a keyframe, whose sequences then begin when they arrived. Across a gap, slices are
    cut (`cut` in their arguments) and begin anew.

    Args:
        out: takes the bytes.

    Attributes:
        state: the state projection, which this one runs along.
        writer: None until joined.
    """

    def __init__(self, out: BinaryIO) -> None:
        self.state = EngineState()
        self.writer: TraceWriter | None = None
        self._out = out
        self._joined = False
        self._t = 0
        self._lost_t = 0
        self._paused = False
        self._prefilled: dict[int, int] = {}  # sequence -> step that computes the last of its prompt
        self._awaited: set[int] = set()  # sequences that have computed their prompt and have no token yet

    def apply(self, event: AnyEvent) -> None:
        """Take one event.

        Raises:
            AuditError: it does not fit those before it.
        """
        t = getattr(event, "t", None)
        if t is not None and self._joined:
            if t < self._t:
                event = msgspec.structs.replace(event, t=self._t)
            else:
                self._t = t
        if not self._joined:
            self.state.apply(event)
            if self.state.joined and isinstance(event, EngineStarted | Keyframe):
                self._join(event)
            return
        if isinstance(event, JournalDropped):
            self._note(event)
            self.lose()
            return
        self.state.apply(event)
        handler = _HANDLERS.get(event.__class__)
        if handler is not None:
            handler(self, event)

    def lose(self) -> None:
        """Say that events were missed: the next keyframe goes on."""
        self.state.lose()
        if self._joined:
            self._joined, self._lost_t = False, self._t
            self._sequences.lose(self._t)
            self._steps.close(self._t, "cut")
            self._end_pause(self._t)
            self._prefilled.clear()
            self._awaited.clear()

    # Joining

    def _join(self, event: EngineStarted | Keyframe) -> None:
        started = event.started if isinstance(event, Keyframe) else event
        self._joined, self._t = True, max(event.t, self._lost_t)
        if self.writer is None:
            self._open(started, event.t)
        if isinstance(event, EngineStarted):
            self._counters.set("free blocks", event.t, event.num_blocks)
        else:
            self._sequences.join(event, self._lost_t)
            self._awaited = {seq for seq in self.state.steps.decoding if not self._has_token(seq)}
            self._prefilled = {seq: 0 for seq in self._awaited & self._sequences.prefilling}
            self._counters.set("free blocks", self._t, len(event.free_blocks))
            if event.engine_paused:
                self._begin_pause(event.t, event.engine_paused)
        self._count(self._t)

    def _open(self, started: EngineStarted, t: int) -> None:
        self.writer = writer = TraceWriter(self._out, t, started.wall_offset_ns)
        process = writer.process(started.pid, f"nanolens {started.version}: {started.model}, run {started.run_id}")
        self._engine = writer.track("Engine", process)
        self._counters = Counters(writer, self._engine)
        self._steps = StepTracks(writer, self._engine, self._counters)
        self._ranks = RankTracks(writer, self._engine, DEVICE_RANK)
        self._sequences = SequenceTracks(writer, process)
        self._writer = writer

    # The engine

    def _note(self, e: AnyEvent) -> None:
        self._writer.instant(self._engine, self._t, str(type(e).__struct_config__.tag), {"what": describe(e)})

    def _begin_pause(self, t: int, cause: str) -> None:
        if not self._paused:
            self._paused = True
            self._writer.begin(self._engine, t, "paused", {"cause": cause})
            self._steps.rest(t)

    def _end_pause(self, t: int) -> None:
        if self._paused:
            self._paused = False
            self._writer.end(self._engine, t)

    def _engine_paused(self, e: EnginePaused) -> None:
        self._begin_pause(e.t, e.cause)

    def _engine_continued(self, e: EngineContinued) -> None:
        self._end_pause(e.t)

    def _engine_error(self, e: EngineError) -> None:
        self._note(e)
        self._steps.failed(e.step, e.t)

    def _stopped(self, e: EngineStopped) -> None:
        self._note(e)
        self._end_pause(e.t)
        self._steps.close(e.t, "unread")

    # Steps

    def _planned(self, e: StepPlanned) -> None:
        self._steps.planned(e)
        self._counters.set("free blocks", e.t, e.free)
        for seq, _, _ in e.chunks:
            if seq in self.state.steps.decoding:
                self._prefilled[seq] = e.step
                if not self._has_token(seq):
                    self._awaited.add(seq)

    def _finished(self, e: StepFinished) -> None:
        self._steps.finished(e)
        self._ranks.finished(e.step, e.t)
        for seq in [seq for seq, step in self._prefilled.items() if step <= e.step]:
            del self._prefilled[seq]
            self._sequences.prefilled(seq, e.t)
        for seq in [seq for seq in self._awaited if seq not in self.state.sequences or self._has_token(seq)]:
            self._awaited.discard(seq)
            if seq in self.state.sequences:
                self._sequences.first_token(seq, self.state.sequences[seq].first_token_t)
        if self._paused:
            self._steps.rest(e.t)

    def _has_token(self, seq: int) -> bool:
        return self.state.steps.settle(self.state.sequences[seq]).first_token_t > 0

    # Sequences

    def _status(self, e: StatusChanged) -> None:
        if e.old == "RUNNING":
            self._prefilled.pop(e.seq, None)
        self._sequences.status(e)
        self._count(e.t)

    def _count(self, t: int) -> None:
        waiting, running = len(self.state.waiting), len(self.state.running)
        self._counters.set("waiting", t, waiting)
        self._counters.set("running", t, running)
        self._counters.set("paused", t, len(self.state.sequences) - waiting - running)
        if not running:
            self._steps.rest(t)

    def _allocated(self, e: BlocksAllocated) -> None:
        self._sequences.allocated(e)
        self._counters.set("free blocks", e.t, e.free)

    def _freed(self, e: BlocksFreed) -> None:
        self._sequences.freed(e)
        self._counters.set("free blocks", e.t, e.free)

    def _swapped(self, e: BlocksSwapped) -> None:
        self._sequences.swapped(e)
        self._steps.move(e, self._sequences.name_of(e.seq))
        self._counters.set("free blocks", e.t, e.free)


def _of_steps(handle: Callable[[StepTracks, Any], None]) -> Callable[[PerfettoTrace, Any], None]:
    return lambda trace, event: handle(trace._steps, event)


def _of_sequences(handle: Callable[[SequenceTracks, Any], None]) -> Callable[[PerfettoTrace, Any], None]:
    return lambda trace, event: handle(trace._sequences, event)


_HANDLERS: dict[type, Callable[[PerfettoTrace, Any], None]] = {
    EngineReady: PerfettoTrace._note,
    EngineStopped: PerfettoTrace._stopped,
    EngineError: PerfettoTrace._engine_error,
    EnginePaused: PerfettoTrace._engine_paused,
    EngineContinued: PerfettoTrace._engine_continued,
    BreakpointHit: PerfettoTrace._note,
    RequestRefused: PerfettoTrace._note,
    StepRetried: PerfettoTrace._note,
    Mark: PerfettoTrace._note,
    StepPlanned: PerfettoTrace._planned,
    StepFinished: PerfettoTrace._finished,
    StatusChanged: PerfettoTrace._status,
    BlocksAllocated: PerfettoTrace._allocated,
    BlocksFreed: PerfettoTrace._freed,
    BlocksSwapped: PerfettoTrace._swapped,
    StepRanks: lambda trace, event: trace._ranks.told(event),
    SwapFinished: _of_steps(StepTracks.moved),
    RequestArrived: _of_sequences(SequenceTracks.arrived),
    RequestFinished: _of_sequences(SequenceTracks.finished),
    StreamStalled: _of_sequences(SequenceTracks.stalled),
    CallbackFailed: _of_sequences(SequenceTracks.callback_failed),
    WaitReasonChanged: _of_sequences(SequenceTracks.waits),
    SequencePreempted: _of_sequences(SequenceTracks.preempted),
    PrefixMatched: _of_sequences(SequenceTracks.matched),
    BlockCopied: _of_sequences(SequenceTracks.copied),
    SequenceResumed: _of_sequences(SequenceTracks.resumed),
    PriorityChanged: _of_sequences(SequenceTracks.reprioritised),
}
