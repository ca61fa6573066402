"""How an export works, and how one ended: values alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from .exporter_queue import SpanCounts
from .exporter_sender import Backoff


@dataclass(frozen=True, slots=True)
class ExporterSettings:
    """How an export works; times in seconds, sizes in spans.

    Attributes:
        follow: go on as the journal grows, until the engine stops or its process is gone.
        batch_spans: a batch is sent when it has so many.
        batch_age_s: or when its first span is so old.
        queue_spans: spans that are kept while the receiver is away or slow.
        drop_when_full: when the queue is full, lose new spans, so that reading goes on and metrics stay up to date;
            else reading waits, and the journal keeps what comes.
        drain_s: for sending what is left at the end; also how long an export that doesn't follow bears an outage.
        timeout_s: of one try to send, from its first byte to the last of the answer.
        poll_s: between looks at the journal's end.
        watch_process: whether the engine's process can be seen from here.
        backoff: between tries while the receiver is away.
    """

    follow: bool = True
    batch_spans: int = 512
    batch_age_s: float = 1.0
    queue_spans: int = 100_000
    drop_when_full: bool = False
    drain_s: float = 10.0
    timeout_s: float = 10.0
    poll_s: float = 0.1
    watch_process: bool = True
    backoff: Backoff = field(default_factory=Backoff)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an export ended.

    Attributes:
        reason: "stopped" (the run's last event was read), "gone" (the engine died), "told" (`stop` was called), "end"
            (of the journal), "away" (the receiver, for too long).
        counts: what became of the spans.
        left: spans that were neither sent nor dropped; the next export begins with them.
    """

    reason: str
    counts: SpanCounts
    left: int
