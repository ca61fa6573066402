"""The journal's writer: frames appended to rotating segments under a cap. Knows not what events mean.

No failure reaches the engine: what can't be written or encoded is counted, reported, and made up for by a keyframe.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from .clock import Clock, monotonic_ns
from .events import AnyEvent, EngineStopped, JournalDropped, Keyframe
from .frames import ENCODE_ERRORS, FrameEncoder
from .segments import SegmentFiles

logger = logging.getLogger(__name__)

MAX_SEGMENT_BYTES = 64 << 20
FIRST_RETRY_NS = 1_000_000_000
LAST_RETRY_NS = 30_000_000_000
CHECK_INTERVAL_NS = 1_000_000_000  # how often the open segment is checked to be still in its directory


class JournalWriter:
    """Appends frames to `<directory>/<run_id>-<number>.journal`.

    A segment begins with a keyframe, except a run's first one, which begins with the first batch (engine.started).
    After a failure the segment is closed at its last whole frame; a fresh one is tried after a back-off of 1 s,
    doubling to 30 s, and begins with journal.dropped and a keyframe. Nothing is synced: the files survive the process,
    not the host.

    An event that can't be encoded is left out alone: journal.dropped stands in its place, the rest of its batch and a
    keyframe follow. A keyframe that can't be encoded is left out uncounted, since it holds no fact of its own.

    The cap holds for the whole directory, so that runs that follow each other don't fill the disk; the oldest segments
    go first, and none for what does not fit without them: where the state has outgrown the cap, new events are lost and
    the newest segments stay. Give engines that run at the same time a directory each.

    Args:
        directory: created if need be.
        run_id: names the files: 1 to 200 bytes without a path separator.
        cap: bytes that all segments in `directory` may take.
        segment_bytes: bytes after the opening frame that fill a segment; None: an eighth of the cap, at most 64 MiB.
        clock: times the back-off and stamps journal.dropped.

    Attributes:
        make_keyframe: gives the state after all events appended so far, or None; the recorder sets it.
        dropped_events: events lost so far.
        dropped_frames: frames lost so far.

    Raises:
        ValueError: a run id that can't name a file.
    """

    def __init__(
        self,
        directory: str | Path,
        run_id: str,
        cap: int = 1 << 30,
        segment_bytes: int | None = None,
        clock: Clock = monotonic_ns,
    ) -> None:
        if not run_id or os.sep in run_id or "\0" in run_id or len(run_id.encode()) > 200:
            raise ValueError(f"run_id={run_id!r}: must be a file name of 1 to 200 bytes without {os.sep!r}")
        self.make_keyframe: Callable[[], Keyframe | None] | None = None
        self.dropped_events = 0
        self.dropped_frames = 0
        self._files = SegmentFiles(Path(directory), run_id, cap)
        self._segment_bytes = segment_bytes or min(MAX_SEGMENT_BYTES, cap // 8)
        self._room = min(self._segment_bytes, cap // 8)  # that a keyframe leaves for the frames behind it
        self._clock = clock
        self._encoder = FrameEncoder()
        self._reported = (0, 0)  # events and frames that journal.dropped has told of
        self._unchecked = (0, 0)  # written since the open segment was last seen in its directory
        self._next_check = 0
        self._why_bad = ""  # of the last event that could not be encoded
        self._failure: str | None = None  # why frames are being lost now; the error itself would keep its frames alive
        self._retry_at = 0
        self._backoff = FIRST_RETRY_NS
        self._warned = False
        self._warned_of_bad = False
        self._closed = False

    @property
    def path(self) -> Path:
        """The segment that is open, or was last."""
        return self._files.path

    def append(self, events: list[AnyEvent]) -> None:
        """Write one frame of at least one event; start the next segment when this one is full.

        No error of the disk and no event that can't be encoded reaches the caller.
        """
        now = self._clock()
        stopped = events[-1] if isinstance(events[-1], EngineStopped) else None
        if self._closed:
            self._lose(len(events), 1)
            return
        if self._failure is not None:
            self._append_failing(events, stopped, now)
            return
        try:
            frame = self._encoder.encode(events)
        except ENCODE_ERRORS:
            self._append_without_bad(events, stopped, now)
        else:
            self._write(frame, len(events), now)
        if (
            self._failure is None
            and stopped is None
            and self._files.size - self._files.opening_size >= self._segment_bytes
        ):
            self._rotate(now)

    def append_keyframe(self) -> None:
        """Write one more keyframe into the open segment, so that readers can join here, if it fits under the cap."""
        if not self._files.is_open or self.make_keyframe is None:
            return
        keyframe = self.make_keyframe()
        if keyframe is None:
            return
        try:
            frame = self._encoder.encode([keyframe])
            if self._files.fits(len(frame)):
                self._files.write(frame)
        except ENCODE_ERRORS:
            self._encodable([keyframe])  # tells of it
        except OSError as error:
            self._lose(1, 1)
            self._fail(error, self._clock())

    def close(self) -> None:
        """Close the open segment; later batches are counted as dropped. A second call does nothing."""
        if self._files.is_open:
            now = self._clock()
            try:
                self._check(now)
            except OSError as error:
                self._fail(error, now)
        self._files.close()
        self._closed = True

    def _write(self, frame: bytearray, events: int, now: int) -> None:
        """Append a frame of that many events to the open segment, or begin the run's first one with it."""
        try:
            if now >= self._next_check and self._files.is_open:
                self._check(now)
            if self._files.is_open:
                self._files.write(frame)
            else:
                self._files.open(frame)
                self._next_check = now + CHECK_INTERVAL_NS
        except OSError as error:
            self._lose(events, 1)
            self._fail(error, now)
            return
        self._unchecked = (self._unchecked[0] + events, self._unchecked[1] + 1)

    def _append_without_bad(self, events: list[AnyEvent], stopped: EngineStopped | None, now: int) -> None:
        """Write what can be encoded of a batch, journal.dropped in the place of the first that can't, and a keyframe.

        engine.stopped stays the run's last event.
        """
        batch = events if stopped is None else events[:-1]
        good = self._encodable(batch)
        ending = [] if stopped is None else self._encodable([stopped])
        place = next((i for i, event in enumerate(good) if event is not batch[i]), len(good))
        told, self._reported = self._reported, (self.dropped_events, self.dropped_frames)
        dropped = JournalDropped(now, self.dropped_events - told[0], self.dropped_frames - told[1], self._why_bad)
        self._write(self._encoder.encode([*good[:place], dropped, *good[place:]]), len(good), now)
        if self._failure is not None:
            self._reported = told
            self._lose(len(ending), 0)
            return
        keyframe = self.make_keyframe() if self.make_keyframe is not None else None
        ending = self._encodable([] if keyframe is None else [keyframe]) + ending
        if ending:
            self._write(self._encoder.encode(ending), len(ending), now)

    def _encodable(self, events: list[AnyEvent]) -> list[AnyEvent]:
        """The events that can be encoded, in their order; the others are counted, keyframes aside, and told once."""
        good = []
        for event in events:
            why = self._encoder.why_not(event)
            if not why:
                good.append(event)
                continue
            self._why_bad = why
            if not isinstance(event, Keyframe):
                self._lose(1, 0)
            level = logging.DEBUG if self._warned_of_bad else logging.WARNING
            logger.log(level, "journal in %s: %s; what can't be encoded is left out and counted, generation goes on",
                       self._files.directory, why)  # fmt: skip
            self._warned_of_bad = True
        return good

    def _append_failing(self, events: list[AnyEvent], stopped: EngineStopped | None, now: int) -> None:
        """Lose a batch: the next segment's keyframe will hold its effect. engine.stopped alone may still follow."""
        if stopped is None:
            self._lose(len(events), 1)
            if now >= self._retry_at:
                self._open_next(now)
            return
        self._lose(len(events) - 1, 1)
        ending = self._encodable([stopped])
        self._open_next(now, ending)
        if self._failure is not None:
            self._lose(len(ending), 0)

    def _rotate(self, now: int) -> None:
        try:
            self._check(now)
        except OSError as error:
            self._fail(error, now)
            return
        self._open_next(now)

    def _open_next(self, now: int, ending: Sequence[AnyEvent] = ()) -> None:
        """Start a segment that a reader can join: journal.dropped if anything was lost, a keyframe, the run's end."""
        opening: list[AnyEvent] = []
        lost = (self.dropped_events, self.dropped_frames)
        if lost != self._reported:
            events, frames = lost[0] - self._reported[0], lost[1] - self._reported[1]
            opening.append(JournalDropped(now, events, frames, self._failure or self._why_bad))
        keyframe = self.make_keyframe() if self.make_keyframe is not None else None
        if keyframe is not None:
            opening += self._encodable([keyframe])
        opening += ending
        try:
            self._files.open(self._encoder.encode(opening) if opening else b"", self._room)
        except OSError as error:
            self._fail(error, now)
            return
        if self._failure is not None:
            logger.debug("journal: writing again, to %s; %d events were lost", self.path, lost[0] - self._reported[0])
        self._failure, self._reported, self._backoff = None, lost, FIRST_RETRY_NS
        self._unchecked, self._next_check = (0, 0), now + CHECK_INTERVAL_NS

    def _check(self, now: int) -> None:
        """Notice a segment that was deleted under the writer: what went into it since the last look is lost."""
        self._next_check = now + CHECK_INTERVAL_NS
        unchecked, self._unchecked = self._unchecked, (0, 0)
        try:
            self._files.check()
        except OSError:
            self._lose(*unchecked)
            raise

    def _lose(self, events: int, frames: int) -> None:
        self.dropped_events += events
        self.dropped_frames += frames

    def _fail(self, error: OSError, now: int) -> None:
        """Begin or go on losing frames; the first failure of a writer is told as a warning, later ones to debug."""
        level = logging.DEBUG if self._warned else logging.WARNING
        self._failure = str(error)
        logger.log(level, "journal in %s: %s; events are lost until it can be written again, generation goes on",
                   self._files.directory, self._failure)  # fmt: skip
        self._warned = True
        self._retry_at = now + self._backoff
        self._backoff = min(2 * self._backoff, LAST_RETRY_NS)
