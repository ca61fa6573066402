"""The exporter: tails a journal, feeds spans and metrics with it, and sends the spans, in a process of its own.

Knows when to batch, when to wait and how far it has come; what a span or a metric is, and how it travels, is others'.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from opentelemetry.sdk.trace import ReadableSpan

from .cursor import CursorFile, OpenRequests, Place
from .engine_process import is_running
from .events import AnyEvent, EngineStarted, EngineStopped, JournalDropped, Keyframe
from .exporter_queue import Batch, SpanCounts, SpanQueue
from .exporter_sender import Sender, Sink
from .exporter_settings import ExporterSettings, Outcome
from .reader import Frame, JournalReader, Position
from .spans import SpanBuilder

NOT_KEPT = ("dropped_by_rules", "dropped_unsampled")  # of the builder's counts
_AT_ONCE = ("told", "away")  # reasons for which nothing more is queued
CHECK_S = 1.0  # between two looks at the engine's process, and two savings of a cursor that moves without spans

logger = logging.getLogger("nanolens.exporter")


class MetricsTarget(Protocol):
    """Metrics that are kept from the same frames (telemetry/exporter_metrics.py)."""

    def apply_all(self, events: list[AnyEvent], num_bytes: int) -> None:
        """Take a frame of events, and its size in the journal."""

    def lose(self) -> None:
        """Events were missed: the next keyframe joins again."""

    def engine_gone(self) -> None:
        """The engine's process has died."""

    def caught_up(self, for_good: bool = False) -> None:
        """All of the journal has been read; `for_good`: and no more of it will be."""

    def set_spans(self, counts: SpanCounts) -> None:
        """What became of the spans so far."""


class Exporter:
    """One export of one run.

    Args:
        reader: of the journal.
        settings: how it works.
        spans: makes spans; None exports none.
        sink: where they go; needed with `spans`.
        metrics: kept from the same events, or None.
        cursor: where the progress is kept, or None.
        resume: the progress of an earlier export of this run; reading begins at its `join`, and what was handled then
            is not sent again.
    """

    def __init__(
        self,
        reader: JournalReader,
        settings: ExporterSettings,
        spans: SpanBuilder | None = None,
        sink: Sink | None = None,
        metrics: MetricsTarget | None = None,
        cursor: CursorFile | None = None,
        resume: Place | None = None,
    ) -> None:
        self._reader, self._settings = reader, settings
        self._spans, self._sink, self._metrics, self._cursor = spans, sink, metrics, cursor
        start = resume.join if resume is not None else reader.start()
        self._start = start
        self._handled = resume or Place(start, start)
        self._open = OpenRequests(start)
        self._read_to = start
        self._here = self._handled  # up to where all spans have been put into batches
        self._saved: tuple[Place, bool] | None = None
        self._saving = threading.Lock()  # the sender saves too
        self._buffer: list[ReadableSpan] = []
        self._buffer_since = 0.0
        self.counts = SpanCounts()
        self._queue = SpanQueue(settings.queue_spans)
        self._sender = (
            Sender(self._queue, sink, self.counts, self._save_sent, settings.backoff, settings.timeout_s)
            if sink is not None
            else None
        )
        self._engine: EngineStarted | None = None
        self._reason = ""
        self._not_kept = 0
        self._gone_at_frame = -1
        self._frames = 0
        self._next_check = 0.0
        self._full_since = 0.0
        self._told_of_full = self._told_of_cursor = False
        self._left_out = False  # a batch found no room when the export was told to end

    def run(self) -> Outcome:
        """Read, and send, until the end that the settings name.

        Raises:
            JournalError: the journal is damaged, or nothing of it is left.
        """
        self._save(self._here)  # before anything is out: what is written before the next cursor is known to be too much
        try:
            frames = self._reader.frames(
                self._start, follow=self._settings.follow, stop=self._must_end, poll_s=self._settings.poll_s
            )
            for frame in frames:
                self._take(frame)
                if self._must_end(waiting=False):
                    break
        except BaseException:
            self._reason = "failed"
            raise
        finally:
            left = self._finish()
        return Outcome(self._reason or "end", self.counts, left)

    def stop(self) -> None:
        """End after the frame that is being read; may be called from a signal handler or another thread."""
        self._reason = self._reason or "told"

    def _take(self, frame: Frame) -> None:
        """Fold one frame, and put the spans that ended with it into batches."""
        self._frames += 1
        before = self._open.oldest
        if frame.gap:
            self._lose(frame.gap)
        self._open.apply(frame)
        self._look_at(frame.events)
        if self._metrics is not None:
            self._metrics.apply_all(frame.events, frame.num_bytes)
        at = Position(frame.segment, frame.offset)
        if self._spans is not None:
            self._spans.apply_all(frame.events)
            self._put(self._spans, at, before)
        self._read_to = _after(at)
        self._here = max(self._here, Place(self._open.oldest, self._read_to), key=_order)

    def _lose(self, gap: str) -> None:
        """Segments were deleted before they were read."""
        logger.warning("journal of run %s: %s; what they held is not exported", self._reader.run, gap)
        if self._metrics is not None:
            self._metrics.lose()
        if self._spans is not None:
            self._spans.apply(JournalDropped(self._spans.t, 0, 0, gap))

    def _look_at(self, events: list[AnyEvent]) -> None:
        for event in events[:2]:
            if isinstance(event, EngineStarted):
                self._engine = event
            elif isinstance(event, Keyframe):
                self._engine = event.started
        if events and isinstance(events[-1], EngineStopped):
            self._reason = self._reason or "stopped"

    def _put(self, spans: SpanBuilder, at: Position, before: Position) -> None:
        """Batch the spans that came out of a frame, but for those that were handled by an earlier export.

        Args:
            spans: what made them.
            at: the frame.
            before: where the oldest request that was open before it can be read from.
        """
        handled, new = self._handled, spans.take()
        not_kept = sum(spans.counts[name] for name in NOT_KEPT)
        fresh, self._not_kept = not_kept - self._not_kept, not_kept
        if (at.segment, at.offset) < (handled.frame.segment, handled.frame.offset):
            return
        first = min(handled.count, len(new)) if at == handled.frame else 0
        for index in range(first, len(new)):
            if not self._buffer:
                self._buffer_since = time.monotonic()
            self._buffer.append(new[index])
            self.counts.recorded += 1
            if len(self._buffer) >= self._settings.batch_spans:
                self._here = Place(before, at, index + 1)
                self._flush()
        self.counts.recorded += fresh
        self.counts.not_kept += fresh

    def _flush(self) -> None:
        """Make the buffered spans a batch, up to `_here`."""
        if not self._buffer or self._sink is None:
            return
        spans, self._buffer = self._buffer, []
        self._full_since = 0.0
        if not self._left_out:
            batch = Batch(self._sink.encode(spans), len(spans), self._here)
            if self._queue.put(batch, self._may_wait):
                return
        if self._reason in _AT_ONCE:  # from here on nothing is queued, so that the cursor stays before what is left
            self._left_out = True
            return
        self.counts.dropped += len(spans)
        if not self._told_of_full:
            logger.warning("the queue of %d spans is full: %s takes them too slowly; what has no room is dropped and "
                           "counted", self._settings.queue_spans, self._sink.name)  # fmt: skip
        self._told_of_full = True

    def _may_wait(self) -> bool:
        """Whether to wait for room in the queue, rather than lose a batch or end."""
        if self._reason in _AT_ONCE or self._settings.drop_when_full:
            return False
        now = time.monotonic()
        self._tick(now)
        if self._sender is None or not self._sender.is_away:
            self._full_since = 0.0
            return True
        self._full_since = self._full_since or now
        is_last = not self._settings.follow or bool(self._reason)
        if is_last and now - self._full_since >= self._settings.drain_s:
            self._reason = "away"
            return False
        return True

    def _must_end(self, waiting: bool = True) -> bool:
        """Do what is due, and whether reading ends here; asked at every wait of the reader, and after each frame.

        A dead engine ends it once the journal was read again after the death was seen.
        """
        if self._reason in _AT_ONCE:
            return True
        if waiting and self._metrics is not None:
            self._metrics.caught_up()
        now = time.monotonic()
        if self._buffer and now - self._buffer_since >= self._settings.batch_age_s:
            self._flush()
        due = self._tick(now)
        if waiting and self._settings.watch_process and self._engine is not None:
            if self._gone_at_frame == self._frames:
                self._reason = "gone"
                return True
            if due or self._gone_at_frame >= 0:
                self._gone_at_frame = -1 if is_running(self._engine) else self._frames
        return False

    def _tick(self, now: float) -> bool:
        """Every second, give counts to the metrics, and save a cursor that moves without spans: whether it was time."""
        if now < self._next_check:
            return False
        self._next_check = now + CHECK_S
        self._count()
        if not self._buffer and not self._queue.spans:
            self._save(self._here)
        return True

    def _count(self) -> None:
        if self._metrics is not None:
            self._metrics.set_spans(self.counts)

    def _finish(self) -> int:
        """Send what is left; how many spans that did not reach."""
        if not self._reason and self._settings.watch_process and self._engine is not None:
            self._reason = "" if is_running(self._engine) else "gone"
        if self._reason in ("", "stopped", "gone") and self._metrics is not None:
            self._metrics.caught_up(for_good=True)
        if self._reason == "gone":
            self._bury()
        self._flush()
        emptied = self._sender is None or self._sender.finish(self._settings.drain_s)
        if emptied and not self._left_out:
            self._save(self._here, ended=self._reason in ("stopped", "gone"))
        if self._sink is not None and emptied:
            self._sink.close()
        self._count()
        return self.counts.pending

    def _bury(self) -> None:
        """The engine died: what was open ends here."""
        if self._metrics is not None:
            self._metrics.engine_gone()
        if self._spans is not None:
            at, before = self._read_to, self._open.oldest
            self._spans.close("the engine's process died before the request ended")
            self._put(self._spans, at, before)
            self._here = max(self._here, Place(before, _after(at)), key=_order)

    def _save_sent(self, batch: Batch) -> None:
        """After a batch is out, in the sender's thread."""
        self._save(batch.place)

    def _save(self, place: Place, ended: bool = False) -> None:
        """Keep the progress. A cursor that can't be written costs a warning; the next save tries again."""
        with self._saving:
            self._save_newer(place, ended)

    def _save_newer(self, place: Place, ended: bool) -> None:
        if self._cursor is None or self._saved == (place, ended):
            return
        if self._saved is not None and place.order < self._saved[0].order:
            return
        try:
            self._cursor.save(self._reader.run, place, ended, self._sink.size if self._sink is not None else 0)
        except OSError as error:
            if not self._told_of_cursor:
                logger.warning("%s: can't be written (%s); until it can, a restart sends spans again that were sent",
                               self._cursor.path, error.strerror)  # fmt: skip
            self._told_of_cursor = True
            return
        self._told_of_cursor = False
        self._saved = (place, ended)


def _after(frame: Position) -> Position:
    """A place behind a frame and not behind what follows it, which may not be known yet."""
    return Position(frame.segment, frame.offset + 1)


def _order(place: Place) -> tuple[int, int, int]:
    return place.order
