"""What the journal is told of readers that hold their streams up: not each stall, but all of their time. No HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..telemetry.clock import Clock, monotonic_ns

EVERY_NS = 1_000_000_000  # at most one event of a request in this time, and one when its stream ends

Tell = Callable[[str, int, int, int], None]  # request, nanoseconds, pieces that waited, when the last stall ended


class _Stalls:
    """Of one request."""

    __slots__ = ("end_t", "ns", "pieces", "told_t")

    def __init__(self) -> None:
        self.ns = self.pieces = self.end_t = 0
        self.told_t = -EVERY_NS


class StallNotes:
    """Adds up stalls of each request until they are told.

    Args:
        tell: is told of them.
        clock: of the journal.
    """

    def __init__(self, tell: Tell, clock: Clock = monotonic_ns) -> None:
        self._tell, self._clock = tell, clock
        self._open: dict[str, _Stalls] = {}

    def add(self, waiting: Mapping[str, int], ns: int) -> None:
        """A stall of a stream has ended.

        Args:
            waiting: request of the engine, of those that the stream tells of -> its pieces that waited.
            ns: how long it was.
        """
        now = self._clock()
        for request, pieces in waiting.items():
            stalls = self._open.setdefault(request, _Stalls())
            stalls.ns += ns
            stalls.pieces = max(stalls.pieces, pieces)
            stalls.end_t = now
            if now - stalls.told_t >= EVERY_NS:
                self._tell_of(request, stalls)
                stalls.told_t = now

    def end(self, requests: Iterable[str]) -> None:
        """The stream of these requests has ended: what was not told yet is told now."""
        for request in requests:
            stalls = self._open.pop(request, None)
            if stalls is not None and stalls.ns:
                self._tell_of(request, stalls)

    def _tell_of(self, request: str, stalls: _Stalls) -> None:
        self._tell(request, stalls.ns, stalls.pieces, stalls.end_t)
        stalls.ns = stalls.pieces = 0
