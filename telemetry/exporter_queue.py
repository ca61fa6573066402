"""Batches of encoded spans on their way out: a bounded queue between the reader and the sender. Knows no transport."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from .cursor import Place

WAIT_S = 0.2  # between two looks at whether a wait for room still makes sense


@dataclass(slots=True)
class SpanCounts:
    """What became of the spans of an export. `recorded` is the sum of the others and what is on its way.

    Each field is written by one thread only.

    Attributes:
        recorded: spans that were built from the journal, those of earlier exports left out.
        not_kept: those of requests that the tail rules let go.
        exported: taken by the receiver, or written.
        dropped: lost because the queue was full while the receiver was away.
        rejected: refused by the receiver.
    """

    recorded: int = 0
    not_kept: int = 0
    exported: int = 0
    dropped: int = 0
    rejected: int = 0

    @property
    def pending(self) -> int:
        """Spans that are on their way."""
        return self.recorded - self.not_kept - self.exported - self.dropped - self.rejected


@dataclass(frozen=True, slots=True)
class Batch:
    """Encoded spans, and how far the export is once they are out."""

    payload: bytes
    count: int
    place: Place


class SpanQueue:
    """A first-in-first-out queue of batches, bounded by the number of their spans; one writer, one reader.

    Args:
        capacity: spans that it holds; a batch that is larger is taken when it is empty.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._batches: deque[Batch] = deque()
        self._spans = 0  # queued, the batch that is being sent included
        self._changed = threading.Condition()
        self._closed = False

    @property
    def spans(self) -> int:
        """Spans in it, those that are being sent included."""
        return self._spans

    def put(self, batch: Batch, may_wait: Callable[[], bool]) -> bool:
        """Append a batch; where there is no room, wait as long as `may_wait` says so. Whether it was taken."""
        with self._changed:
            while self._spans and self._spans + batch.count > self._capacity:
                if not may_wait():
                    return False
                self._changed.wait(WAIT_S)
            self._batches.append(batch)
            self._spans += batch.count
            self._changed.notify_all()
        return True

    def get(self) -> Batch | None:
        """The oldest batch, which stays in the queue until `done`; waits for one. None when it is closed and empty."""
        with self._changed:
            while not self._batches:
                if self._closed:
                    return None
                self._changed.wait()
            return self._batches[0]

    def done(self) -> None:
        """Remove the batch that `get` gave."""
        with self._changed:
            self._spans -= self._batches.popleft().count
            self._changed.notify_all()

    def close(self) -> None:
        """Let `get` end once the queue is empty."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
