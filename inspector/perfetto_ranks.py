"""Perfetto tracks of the ranks that share a model: what each took of a step, its own work and what it waited.

Knows steps by number alone. A journal of one rank has no such tracks.
"""

from __future__ import annotations

from collections import deque

from ..telemetry.events import StepRanks
from .perfetto_wire import TraceWriter

MOST_UNTOLD = 8  # steps that were read and whose ranks may yet tell what they took


class RankTracks:
    """A track for each rank.

    A slice `step` ends when the step was read, and is as long as its time on that rank, as far as the one before leaves
    room. Within it lie `own work` and `collectives`: these are spread over the step, and stand here as one at its end,
    so that what ranks wait for each other can be seen.

    Args:
        writer: of the trace.
        engine: the track that they stand under.
        place: their order there.
    """

    def __init__(self, writer: TraceWriter, engine: int, place: int) -> None:
        self._writer, self._engine, self._place = writer, engine, place
        self._parent = 0
        self._tracks: list[int] = []
        self._until: list[int] = []  # where the last slice of each ends
        self._read: deque[tuple[int, int]] = deque(maxlen=MOST_UNTOLD)  # steps, and when they were read

    def finished(self, step: int, t: int) -> None:
        """A step's tokens were read."""
        self._read.append((step, t))

    def told(self, e: StepRanks) -> None:
        """What it took on each rank; nothing where it is not known when that was."""
        t = next((t for step, t in self._read if step == e.step), None)
        if t is None:
            return
        for rank, (device, waited) in enumerate(zip(e.device_ns, e.collective_ns, strict=False)):
            track = self._track(rank)
            begin = max(t - device, self._until[rank])
            if begin < t:
                self._step(track, begin, max(begin, t - waited), t, e.step)
                self._until[rank] = t

    def _step(self, track: int, begin: int, waits: int, end: int, step: int) -> None:
        writer = self._writer
        writer.begin(track, begin, "step", {"step": step, "own_ns": waits - begin, "collective_ns": end - waits})
        for name, since, to in (("own work", begin, waits), ("collectives", waits, end)):
            if since < to:
                writer.begin(track, since, name)
                writer.end(track, to)
        writer.end(track, end)

    def _track(self, rank: int) -> int:
        if not self._parent:
            self._parent = self._writer.track("Ranks", self._engine, self._place)
        while len(self._tracks) <= rank:
            number = len(self._tracks)
            self._tracks.append(self._writer.track(f"Rank {number}", self._parent, number + 1))
            self._until.append(0)
        return self._tracks[rank]
