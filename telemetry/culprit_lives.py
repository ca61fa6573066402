"""Who lived, ran and held blocks in a time, and who stood at the head of the queue. Divides no time of its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

import numpy as np

from .latency_tracks import LatencyTracks, Track

Interval = tuple[int, int]


def clip(intervals: Iterable[Interval], begin: int, end: int) -> list[Interval]:
    """What of some intervals lies within another one."""
    found = ((max(since, begin), min(to, end)) for since, to in intervals)
    return [(since, to) for since, to in found if since < to]


class LifeIndex:
    """Questions about all sequences of a journal.

    Args:
        tracks: the pass over it, finished.
    """

    def __init__(self, tracks: LatencyTracks) -> None:
        self._tracks = list(tracks.tracks.values())
        self._end = tracks.t
        self._from = np.array([track.known_t for track in self._tracks], dtype=np.int64)
        self._to = np.array([track.end_t or tracks.t + 1 for track in self._tracks], dtype=np.int64)
        self._heads = tracks.heads
        self._head_times = [t for t, _, _ in tracks.heads]

    def alive(self, begin: int, end: int) -> Iterator[Track]:
        """The sequences that lived at some moment of a time, in order of arrival."""
        for index in np.flatnonzero((self._from < end) & (self._to > begin)):
            yield self._tracks[index]

    def holders(self, intervals: Iterable[Interval], but: int) -> dict[int, float]:
        """Sequence -> blocks it held times nanoseconds, within intervals."""
        found: dict[int, float] = {}
        for begin, end in intervals:
            for track in self.alive(begin, end):
                held = _held(track, begin, end) if track.seq != but else 0
                if held:
                    found[track.seq] = found.get(track.seq, 0.0) + held
        return found

    def runners(self, intervals: Iterable[Interval], but: int) -> dict[int, float]:
        """Sequence -> nanoseconds in RUNNING, within intervals."""
        found: dict[int, float] = {}
        for begin, end in intervals:
            for track in self.alive(begin, end):
                if track.seq == but:
                    continue
                ran = sum(b - a for a, b in clip(((r.begin_t, r.end_t or self._end) for r in track.runs), begin, end))
                if ran:
                    found[track.seq] = found.get(track.seq, 0.0) + ran
        return found

    def heads(self, intervals: Iterable[Interval], but: int) -> list[tuple[int, int, int, str]]:
        """(begin, end, sequence, why it waited) of those that stood at the head of the queue, without gaps between."""
        found: list[tuple[int, int, int, str]] = []
        for begin, end in intervals:
            index = max(0, bisect_right(self._head_times, begin) - 1)
            while index < len(self._heads) and self._heads[index][0] < end:
                since, seq, reason = self._heads[index]
                to = self._head_times[index + 1] if index + 1 < len(self._heads) else end
                since, to = max(since, begin), min(to, end)
                if since < to and seq not in (-1, but):
                    found.append((since, to, seq, reason))
                index += 1
        return found


def joined(intervals: Iterable[Interval]) -> list[Interval]:
    """Intervals in order, those that touch made one."""
    found: list[Interval] = []
    for begin, end in intervals:
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _held(track: Track, begin: int, end: int) -> int:
    """Blocks times nanoseconds that a sequence held within a time."""
    times, counts = track.blocks[::2], track.blocks[1::2]
    index, total, at = bisect_right(times, begin) - 1, 0, begin
    while at < end:
        stop = min(end, times[index + 1]) if index + 1 < len(times) else end
        if index >= 0:
            total += counts[index] * (stop - at)
        at, index = max(at, stop), index + 1
        if index >= len(times):
            break
    return total
