"""Sends batches, one after the other, in a thread of its own; waits and tries again while the receiver is away."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from opentelemetry.sdk.trace import ReadableSpan

from .exporter_queue import Batch, SpanCounts, SpanQueue

logger = logging.getLogger("nanolens.exporter")


def plain(text: str, limit: int = 300) -> str:
    """A receiver's words for a log: what is not printable, such as a terminal's commands, as escapes; cut."""
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[:limit])
    return shown if len(text) <= limit else shown + "..."


class SinkAway(Exception):
    """The receiver can't take a batch now and may later.

    Args:
        why: in words.
        retry_after_s: how long it asked to be left alone, or 0.
    """

    def __init__(self, why: str, retry_after_s: float = 0.0) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class SinkRefused(Exception):
    """The receiver will never take this batch."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch was taken, but for `rejected` of its spans, for the reason in `message`."""

    rejected: int = 0
    message: str = ""


class Sink(Protocol):
    """Where spans go.

    Attributes:
        name: for messages.
        size: bytes of the output file up to the last batch; 0 where there is none.
    """

    name: str
    size: int

    def encode(self, spans: list[ReadableSpan]) -> bytes:
        """A batch as it is sent or written."""

    def send(self, payload: bytes, timeout_s: float) -> Sent:
        """Hand over one batch.

        Raises:
            SinkAway: try again later.
            SinkRefused: don't.
        """

    def close(self) -> None:
        """Give back what it holds."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds before the next try: doubling from `first` to `last`, each shortened by up to half at random."""

    first_s: float = 0.5
    last_s: float = 30.0

    def wait_s(self, failures: int) -> float:
        """After so many failures in a row, from 1."""
        longest: float = min(self.last_s, self.first_s * 2 ** min(failures - 1, 30))
        return longest * random.uniform(0.5, 1.0)


class Sender:
    """The thread that empties a queue into a sink.

    One warning when the receiver goes away and one line when it is back; one warning for the first batch of which it
    refuses something, later ones go to debug.

    Args:
        queue: what is to be sent.
        sink: where to.
        counts: gets what was exported and rejected.
        on_done: called in this thread after each batch that is out of the queue.
        backoff: times between tries.
        timeout_s: for one try.
    """

    def __init__(
        self,
        queue: SpanQueue,
        sink: Sink,
        counts: SpanCounts,
        on_done: Callable[[Batch], None],
        backoff: Backoff,
        timeout_s: float,
    ) -> None:
        self._queue, self._sink, self._counts, self._on_done = queue, sink, counts, on_done
        self._backoff, self._timeout_s = backoff, timeout_s
        self._failures = 0
        self._away_since = 0.0
        self._told_of_refusal = False
        self._deadline = float("inf")
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nanolens-sender", daemon=True)
        self._thread.start()

    @property
    def is_away(self) -> bool:
        """Whether the last try found the receiver away."""
        return self._failures > 0

    def finish(self, drain_s: float) -> bool:
        """Send what is queued for at most so many seconds, then end: whether the queue was emptied."""
        self._deadline = time.monotonic() + drain_s
        self._queue.close()
        self._hurry.set()
        self._thread.join(drain_s + 1.0)  # a try that hangs is left behind with its daemon thread
        return not self._queue.spans

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            if not self._deliver(batch):
                return
            self._queue.done()
            self._on_done(batch)

    def _deliver(self, batch: Batch) -> bool:
        """Send one batch, however often it takes. False when the time to drain is over."""
        while True:
            left = self._deadline - time.monotonic()
            if left <= 0:
                return False
            try:
                sent = self._sink.send(batch.payload, min(self._timeout_s, left))
            except SinkAway as error:
                self._wait(error)
                continue
            except SinkRefused as error:
                sent = Sent(batch.count, str(error))
            except Exception as error:  # the thread must go on: whoever waits for room in the queue waits for it
                logger.debug("%s: a batch failed", self._sink.name, exc_info=True)
                sent = Sent(batch.count, f"{type(error).__name__}: {error}")
            self._back()
            rejected = min(sent.rejected, batch.count)
            if rejected or sent.message:
                self._tell_of_refusal(rejected, batch.count, sent.message)
            self._counts.exported += batch.count - rejected
            self._counts.rejected += rejected
            return True

    def _wait(self, error: SinkAway) -> None:
        self._failures += 1
        if self._failures == 1:
            self._away_since = time.monotonic()
            logger.warning("%s: %s; spans are kept and sent again when it is back", self._sink.name, plain(str(error)))
        seconds = max(self._backoff.wait_s(self._failures), error.retry_after_s)
        if self._hurry.wait(seconds) and (left := self._deadline - time.monotonic()) > 0:
            time.sleep(min(seconds, self._backoff.first_s, left))

    def _back(self) -> None:
        if self._failures:
            away_s = time.monotonic() - self._away_since
            logger.warning("%s: back after %.1f s and %d tries", self._sink.name, away_s, self._failures)
            self._failures = 0

    def _tell_of_refusal(self, rejected: int, count: int, message: str) -> None:
        level = logging.DEBUG if self._told_of_refusal else logging.WARNING
        why = plain(message) or "no reason given"
        logger.log(level, "%s: refused %d of %d spans: %s", self._sink.name, rejected, count, why)
        self._told_of_refusal = True
