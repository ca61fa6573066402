"""What follows from breakpoints that were hit: the record of it, and the pause of the engine or of the sequence."""

from __future__ import annotations

from collections.abc import Callable

from ..telemetry.clock import Clock
from ..telemetry.events import AnyEvent, BreakpointHit
from .breakpoints import Hit
from .request_book import RequestBook
from .scheduler import Scheduler
from .sequence import SequenceStatus


def act_on_hits(
    hits: list[Hit],
    record: Callable[[AnyEvent], None],
    clock: Clock,
    scheduler: Scheduler,
    book: RequestBook,
    drain: Callable[[], None],
) -> None:
    """Record hits, then pause the engine or the sequences; `drain` reads what is in flight before a sequence pauses."""
    for hit in hits:
        record(BreakpointHit(clock(), scheduler.step, hit.number, hit.predicate, hit.event, hit.seq, hit.action))
    for hit in hits:
        if hit.action == "engine":
            scheduler.pause_engine(f"breakpoint {hit.number}")
            continue
        drain()
        seq = book.live_sequence(hit.seq)
        if seq is not None and seq.status in (SequenceStatus.RUNNING, SequenceStatus.WAITING):
            book.pause(seq, "breakpoint")
