"""Where the engine leaves its events: a list append on the hot path, one frame a step at flush.

Knows nothing of what the events mean, nor of files beyond the writer's `append`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from .clock import Clock, monotonic_ns
from .events import AnyEvent, EngineStopped, Keyframe
from .journal import JournalWriter
from .totals import Totals

logger = logging.getLogger(__name__)

Subscriber = Callable[[Sequence[AnyEvent]], None]
KeyframeMaker = Callable[[], Keyframe]


class Recorder:
    """Collects events and, once a step, hands them on as one batch.

    The engine's loop is the only caller; nothing here locks. The engine sets `make_keyframe` before its first flush:
    it returns its state as of now, with `step` the last planned step and `totals` left empty (they are filled here).

    Args:
        writer: where frames go; None keeps no file and still feeds subscribers.
        clock: nanoseconds, monotonic.
        keyframe_interval_ns: time between keyframes within a segment.

    Attributes:
        on: True; `NullRecorder.on` is False, for callers that would build costly events.
        record: `record(event)` appends to a list and does nothing else.
        totals: the run's counters, up to the last flush.
    """

    on = True

    def __init__(
        self, writer: JournalWriter | None, clock: Clock = monotonic_ns, keyframe_interval_ns: int = 5_000_000_000
    ) -> None:
        self._events: list[AnyEvent] = []
        self.record: Callable[[AnyEvent], None] = self._events.append
        self.totals = Totals()
        self.make_keyframe: KeyframeMaker | None = None
        self._writer = writer
        self._clock = clock
        self._interval = keyframe_interval_ns
        self._next_keyframe = clock() + keyframe_interval_ns
        self._subscribers: list[Subscriber] = []
        if writer is not None:
            writer.make_keyframe = self._keyframe

    def subscribe(self, subscriber: Subscriber) -> None:
        """Give `subscriber` each batch from the next flush on; one that raises is dropped with a warning.

        The batch is shared between subscribers: they may keep it and must not change it. Without a journal there are
        no keyframes: a subscriber that needs the state subscribes before the first flush.
        """
        self._subscribers.append(subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Stop feeding `subscriber`; one that is not subscribed is ignored."""
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)

    def flush(self, step: int) -> None:
        """End a step: count its events, write them as one frame, feed the subscribers. Never raises for the journal:
        what the disk refuses or msgpack has no form for is dropped and counted there.

        Args:
            step: the step that ends, for messages.
        """
        events = self._events
        if not events:
            return
        self.totals.apply_all(events)
        if self._writer is not None:
            self._writer.append(events)
            if not isinstance(events[-1], EngineStopped) and self.keyframe_due():
                self._writer.append_keyframe()
            self._count_dropped()
        if self._subscribers:
            self._publish(events.copy(), step)
        events.clear()  # in place: `record` is bound to this list

    def keyframe_due(self) -> bool:
        """Whether the next flush writes a keyframe because the interval has passed."""
        return self.make_keyframe is not None and self._clock() >= self._next_keyframe

    def close(self) -> None:
        """Flush what is left and close the journal. A second call does nothing."""
        self.flush(-1)
        if self._writer is not None:
            self._writer.close()
            self._count_dropped()  # closing may find that the open segment was deleted
            self._writer = None

    def leave(self) -> None:
        """In a fork of the engine's process: write no more, and feed nobody."""
        self._writer = None
        self._subscribers.clear()
        self._events.clear()

    def _keyframe(self) -> Keyframe | None:
        """The engine's keyframe with the totals put in; None while the engine has set no maker."""
        if self.make_keyframe is None:
            return None
        keyframe = self.make_keyframe()
        self._count_dropped()
        keyframe.totals = self.totals.snapshot()
        self._next_keyframe = self._clock() + self._interval
        return keyframe

    def _count_dropped(self) -> None:
        """The writer alone knows what was lost; every journal.dropped is followed by a keyframe with these figures."""
        if self._writer is not None:
            self.totals.counts["dropped_events"] = self._writer.dropped_events
            self.totals.counts["dropped_frames"] = self._writer.dropped_frames

    def _publish(self, batch: list[AnyEvent], step: int) -> None:
        for subscriber in tuple(self._subscribers):
            try:
                subscriber(batch)
            except Exception:
                self.unsubscribe(subscriber)
                logger.warning("a subscriber of the recorder failed at step %d and was dropped", step, exc_info=True)


class NullRecorder:
    """The recorder of an engine with `recording=False`: the same surface, and nothing happens."""

    on = False

    def __init__(self) -> None:
        self.totals = Totals()
        self.make_keyframe: KeyframeMaker | None = None

    def record(self, event: AnyEvent) -> None:
        """Drop the event."""

    def subscribe(self, subscriber: Subscriber) -> None:
        """Accept and never feed it."""

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Nothing to stop."""

    def flush(self, step: int) -> None:
        """Do nothing."""

    def keyframe_due(self) -> bool:
        """Never."""
        return False

    def leave(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
