"""A run read from a journal as what a replay needs: the settings, the decisions in order, and what is known of tokens.

Knows events only, and nothing of the engine's code.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import AuditError, JournalError
from ...telemetry.events import (
    AnyEvent,
    BlocksCached,
    BlocksDuplicate,
    BlocksFreed,
    CallbackFailed,
    EngineError,
    EngineReady,
    EngineStarted,
    JournalDropped,
    Keyframe,
    Mark,
    RequestArrived,
    RequestFinished,
    RequestRefused,
    SequenceResumed,
    StatusChanged,
    StepFinished,
    StepPlanned,
    StepRanks,
    StreamStalled,
    SwapFinished,
    TokensSampled,
)
from ...telemetry.reader import JournalReader
from ...telemetry.state import EngineState

HASH_BYTES = 8  # of a block's hash in the journal
# Nothing was decided in these. All others tell their time.
PASSED = (
    EngineReady, RequestRefused, StepRanks, TokensSampled, CallbackFailed, JournalDropped, StreamStalled, Mark,
    Keyframe,
)  # fmt: skip

_OF_SEQUENCE = re.compile(r"sequence (\d+): (.*)", re.DOTALL)  # how the error of a request names the one at fault
_OF_TEXT = "decoding its text failed: "


@dataclass(slots=True)
class Outcome:
    """What became of a sequence; as it was last, where it has not ended."""

    seq: int
    request: str
    num_output_tokens: int = 0  # generated and read
    num_appended_tokens: int = 0
    status: str = "WAITING"
    reason: str = ""  # of its last transition
    t: int = 0  # of that
    stops: list[int] = field(default_factory=list)  # generated tokens that it had whenever it met a stop


@dataclass
class Recording:
    """One run.

    Attributes:
        run: its id.
        started: its first event: settings and sizes.
        ready: what preparing cost, by name.
        events: all decisions and what they rest on, in order; no notes, no keyframes, no refusals.
        frame_ends: for each event, the index behind the last one of its frame: commands and steps end frames.
        arrivals: the requests, in order.
        finished: request's arrival (index into `arrivals`) -> how it ended.
        outcomes: sequence -> what became of it.
        hashes: sequence -> place in its table -> hash of the full block there, as far as they are known.
        read: step -> its step.finished.
        moved: step -> the moves whose end was told with it.
        stops: (sequence, step) whose token was a stop.
        row_errors: (sequence, step) whose token was not valid, and why.
        text_errors: sequence whose text could not be decoded, and why.
        overlap: whether steps were launched before the one before was read.
        ended: why the recording ends before the run: "" where it does not.
    """

    run: str
    started: EngineStarted
    ready: dict[str, int] = field(default_factory=dict)
    events: list[AnyEvent] = field(default_factory=list)
    frame_ends: list[int] = field(default_factory=list)
    arrivals: list[RequestArrived] = field(default_factory=list)
    finished: dict[int, RequestFinished] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    hashes: dict[int, dict[int, bytes]] = field(default_factory=dict)
    read: dict[int, StepFinished] = field(default_factory=dict)
    moved: dict[int, list[SwapFinished]] = field(default_factory=dict)
    stops: set[tuple[int, int]] = field(default_factory=set)
    row_errors: dict[tuple[int, int], str] = field(default_factory=dict)
    text_errors: dict[int, str] = field(default_factory=dict)
    overlap: bool = False
    ended: str = ""


def read_recording(path: str | Path, run: str | None = None) -> Recording:
    """Read a run.

    Args:
        path: a journal's directory.
        run: the run to read; None takes the newest.

    Raises:
        JournalError: it can't be read, holds no event, or not the run's beginning: what was decided before is missing.
    """
    reader = JournalReader(path, run)
    noted = [""]
    try:
        recording = record_frames(reader.run, _frames(reader, noted))
    except JournalError as error:
        raise JournalError(f"{path}: run {reader.run}: {error}") from None
    if reader.torn_bytes:
        noted[0] = f"the journal ends in an unfinished frame of {reader.torn_bytes} bytes"
    recording.ended = recording.ended or noted[0]
    return recording


def record_frames(run: str, frames: Iterable[list[AnyEvent]]) -> Recording:
    """A run from its frames, up to the first gap.

    Raises:
        JournalError: they hold nothing, or not the run's beginning.
    """
    iterator = iter(frames)
    first = next(iterator, [])
    if not first:
        raise JournalError("it holds no whole frame: nothing to replay")
    if not isinstance(first[0], EngineStarted):
        raise JournalError("its beginning is no longer on disk: a replay starts with the first decision")
    builder = _Builder(Recording(run, first[0]))
    builder.take(first)
    for frame in iterator:
        if builder.recording.ended:
            break
        builder.take(frame)
    return builder.recording


def _frames(reader: JournalReader, noted: list[str]) -> Iterator[list[AnyEvent]]:
    for frame in reader.frames():
        if frame.gap:
            noted[0] = frame.gap
            return
        yield frame.events


class _Builder:
    """Folds frames into a recording."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._state = EngineState()
        self._size = recording.started.block_size
        self._open: dict[str, int] = {}  # live request -> its arrival
        self._reading = 0
        self._seen: dict[int, set[bytes]] = {}  # sequence -> its hashes
        self._moves: list[SwapFinished] = []  # that ended just before, in this frame

    def take(self, events: list[AnyEvent]) -> None:
        """Take in a frame."""
        r = self.recording
        before, self._moves = len(r.events), []
        for event in events:
            if isinstance(event, JournalDropped):
                r.ended = f"{event.events} events were lost by the writer: {event.reason}"
                break
            self._take(event)
            if not isinstance(event, PASSED):
                r.events.append(event)
        r.frame_ends += [len(r.events)] * (len(r.events) - before)
        planned = {e.step for e in events if isinstance(e, StepPlanned)}
        failed = {e.step for e in events if isinstance(e, EngineError)}
        if planned - r.read.keys() - failed:
            r.overlap = True  # else a frame with a plan holds what was read of it

    def _take(self, event: AnyEvent) -> None:
        r = self.recording
        if isinstance(event, StatusChanged):
            self._status(event)
        elif isinstance(event, RequestArrived):
            self._open[event.request] = len(r.arrivals)
            r.arrivals.append(event)
            for seq in event.seqs:
                r.outcomes[seq] = Outcome(seq, event.request)
                r.hashes[seq] = dict(enumerate(split_hashes(event.block_hashes)))
        elif isinstance(event, RequestFinished):
            r.finished[self._open.pop(event.request, -1)] = event
            self._error(event)
        elif isinstance(event, SequenceResumed):
            self._resumed(event)
        elif isinstance(event, SwapFinished):
            self._moves.append(event)
        elif isinstance(event, StepFinished):
            r.read[event.step], r.moved[event.step], self._moves = event, self._moves, []
            self._reading = event.step
        elif isinstance(event, EngineReady):
            r.ready = event.costs
        elif isinstance(event, BlocksCached | BlocksDuplicate):
            self._told(event)
        if not isinstance(event, SwapFinished | BlocksFreed) and self._moves:  # freed: the KV of one that failed
            self._moves = []
        with contextlib.suppress(AuditError, KeyError, ValueError):  # a replay will come to what does not add up
            self._state.apply(event)

    def _status(self, e: StatusChanged) -> None:
        outcome = self.recording.outcomes.get(e.seq)
        if outcome is None:
            return
        outcome.status, outcome.reason, outcome.t = e.new, e.reason, e.t
        if e.old and e.seq in self._state.sequences:
            outcome.num_output_tokens = self._state.snapshot(e.seq).num_output_tokens
        if e.reason == "stop":
            outcome.stops.append(outcome.num_output_tokens)
            self.recording.stops.add((e.seq, self._reading))

    def _error(self, e: RequestFinished) -> None:
        """Keep what was wrong with one sequence's token or text."""
        found = _OF_SEQUENCE.fullmatch(e.error or "")
        if found is None:
            return
        seq, why = int(found[1]), found[2]
        if why.startswith(_OF_TEXT):
            self.recording.text_errors[seq] = why.removeprefix(_OF_TEXT)
        else:
            self.recording.row_errors[seq, self._reading] = why

    def _resumed(self, e: SequenceResumed) -> None:
        outcome = self.recording.outcomes.get(e.seq)
        if outcome is None or not e.num_appended or e.seq not in self._state.sequences:
            return
        snapshot = self._state.snapshot(e.seq)
        before = snapshot.num_prompt_tokens + snapshot.num_output_tokens + snapshot.num_appended_tokens
        outcome.num_appended_tokens += e.num_appended
        first = (before - 1) // self._size
        self.recording.hashes[e.seq].update(enumerate(split_hashes(e.block_hashes), first))

    def _told(self, e: BlocksCached | BlocksDuplicate) -> None:
        """Keep the hashes of blocks that were filled by output: told one by one, in their order."""
        known, seen = self.recording.hashes.get(e.seq, {}), self._seen.setdefault(e.seq, set())
        if len(seen) < len(known):
            seen.update(known.values())
        for told in split_hashes(e.hashes):
            if told not in seen:
                known[len(known)] = told
                seen.add(told)


def split_hashes(hashes: bytes) -> list[bytes]:
    """The hashes that an event holds, one a block."""
    return [hashes[i : i + HASH_BYTES] for i in range(0, len(hashes), HASH_BYTES)]
